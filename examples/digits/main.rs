//! Trains a small network on handwritten digits: augmented, shuffled, and uploaded while it learns.
//!
//! ```sh
//! cargo run --release --example digits
//! ```
//! Run it again with `--workers 0` or `--workers 8`: the weights come out the same, bit for bit.

#![allow(clippy::print_stdout, reason = "an example talks to people")]
#![allow(clippy::unwrap_used, reason = "a panic in enqueued work is an error of the next call on its stream")]

mod digit;
mod network;
mod score;

use std::io::{self, IsTerminal};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use anyhow::Result;
use clap::Parser;
use indicatif::ProgressBar;
use warpfeed::sampler::Remainder;
use warpfeed::source::{self, SourceExt};
use warpfeed::{Device, Field, Loader, Runtime, Stats, Stream};

use digit::PIXELS;
use network::Network;
use score::Score;

/// Trains a small network on handwritten digits
#[derive(Debug, Clone, Parser)]
pub(crate) struct Options {
    /// Threads that read and augment; 0: the training loop does it itself
    #[arg(long, default_value_t = cpus())]
    pub(crate) workers: usize,
    /// Passes over the training set
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) epochs: u64,
    /// Keys the split, the order, the augmentation and the first weights
    #[arg(long, default_value_t = 42)]
    pub(crate) seed: u64,
    /// Deal the labels out at random: nothing can be learned, and the accuracy shows it
    #[arg(long)]
    pub(crate) shuffle_labels: bool,
    /// Print the outcome as one line of JSON
    #[arg(long)]
    pub(crate) json: bool,
}

fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// What a run came to.
pub(crate) struct Outcome {
    pub(crate) score: Score,
    /// A hash of the final weights.
    pub(crate) weights: u64,
    pub(crate) stats: Stats,
}

fn main() -> Result<()> {
    let log = tracing_subscriber::fmt().without_time().with_target(false);
    log.with_writer(io::stderr).with_ansi(io::stderr().is_terminal()).init();
    let options = Options::parse();
    let start = Instant::now();
    let Outcome { score, weights, stats } = train(&options)?;
    let (accuracy, seconds) = (score.accuracy(), start.elapsed().as_secs_f64());
    if options.json {
        let weights = format!("{weights:016x}");
        let line = serde_json::json!({
            "accuracy": accuracy, "held_out": score.seen(), "weights": weights, "epochs": options.epochs,
            "seed": options.seed, "workers": options.workers, "samples": stats.samples, "seconds": seconds,
        });
        println!("{line}");
    } else {
        println!("\n{score}\n\n{stats}\n");
        println!("held-out accuracy {:.1} % after {seconds:.1} s; weights {weights:016x}", 100.0 * accuracy);
    }
    Ok(())
}

/// Trains as `options` say, and tries the network on digits that it never saw.
pub(crate) fn train(options: &Options) -> Result<Outcome> {
    let &Options { epochs, seed, .. } = options;
    let mut digits = digit::load();
    if options.shuffle_labels {
        digit::shuffle_labels(&mut digits, seed);
    }
    let (training, held_out) = source::from_vec(digits).split(0.8, seed)?;

    let device = Device::auto()?;
    let compute = device.new_stream()?;
    let runtime = Runtime::new(options.workers, 64 << 20, 64 << 20)?;
    let fields = [Field::new::<u8>("image", &[8, 8]), Field::scalar::<u8>("label")];
    let training = Loader::builder(training)
        .decode_with(fields.clone(), |sample, row| {
            let mut rng = sample.rng();
            let digit = sample.read()?;
            row.copy("image", &digit.augmented(&mut rng))?;
            Ok(row.set("label", digit.label)?)
        })
        .batch_size(32)
        .shuffle(seed)
        .epochs(epochs)
        .runtime(&runtime)
        .build(&device)?;
    let held_out = Loader::builder(held_out)
        .decode_with(fields, |sample, row| {
            let digit = sample.read()?;
            row.copy("image", &digit.image)?;
            Ok(row.set("label", digit.label)?)
        })
        .batch_size(128)
        .remainder(Remainder::Uneven)
        .runtime(&runtime)
        .build(&device)?;

    let network = Arc::new(Mutex::new(Network::new(seed)));
    let mut score = Score::default();
    let bar = ProgressBar::new(epochs * training.len().unwrap_or(0));
    for epoch in 0..epochs {
        let rate = 0.1 * (1.0 - epoch as f32 / epochs as f32);
        for batch in training.epoch(&compute)? {
            let network = network.clone();
            // Queued on the stream, as a kernel would be: the loop goes on to the next batch at once.
            batch?.enqueue(&compute, move |batch| {
                let (images, labels) = (batch.get("image").unwrap(), batch.get("label").unwrap());
                network.lock().unwrap().train(images, labels, rate);
            })?;
            bar.inc(1);
        }
        score = evaluate(&held_out, &network, &compute)?;
        let loss = network.lock().unwrap().take_loss();
        if !options.json {
            let accuracy = 100.0 * score.accuracy();
            bar.suspend(|| println!("epoch {epoch:>2}: loss {loss:.3}, held-out accuracy {accuracy:.1} %"));
        }
    }
    bar.finish_and_clear();
    let weights = network.lock().unwrap().hash();
    Ok(Outcome { score, weights, stats: training.stats() })
}

/// Tries the network on every digit of `loader`, behind the training steps that `compute` holds already.
fn evaluate(loader: &Loader, network: &Arc<Mutex<Network>>, compute: &Stream) -> Result<Score> {
    let score = Arc::new(Mutex::new(Score::default()));
    for batch in loader.epoch(compute)? {
        let (network, score) = (network.clone(), score.clone());
        batch?.enqueue(compute, move |batch| {
            let (network, mut score) = (network.lock().unwrap(), score.lock().unwrap());
            let (images, labels) = (batch.get::<u8>("image").unwrap(), batch.get::<u8>("label").unwrap());
            for (image, &label) in images.chunks_exact(PIXELS).zip(labels) {
                score.mark(image, label, network.classify(image));
            }
        })?;
    }
    compute.synchronize()?;
    let score = score.lock().unwrap().clone();
    Ok(score)
}

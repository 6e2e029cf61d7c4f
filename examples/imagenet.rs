//! Trains a small convolutional classifier on a folder of class folders: decoded, cropped and flipped by the loader's
//! workers, and uploaded while it learns.
//!
//! ```sh
//! cargo run --release --example imagenet -- --sheet target/imagenet.png
//! ```
//! Without `--data` it takes the photographs of Debian's package `tuxpaint-stamps-default`, or draws some shapes. Run it
//! again with `--workers 0` or `--workers 8`: the weights come out the same, bit for bit.

#![allow(clippy::print_stdout, reason = "an example talks to people")]
#![allow(clippy::unwrap_used, reason = "a panic in enqueued work is an error of the next call on its stream")]

#[allow(dead_code, reason = "the other example uses the rest")]
mod vision;

use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use anyhow::{Result, ensure};
use clap::Parser;
use indicatif::ProgressBar;
use warpfeed::decode::Image;
use warpfeed::sampler::Remainder;
use warpfeed::source::{ImageFolder, SourceExt};
use warpfeed::{Device, Loader, Runtime, SampleRng, Stats, Stream};

use vision::boxes::{cross_entropy, largest};
use vision::canvas::{Canvas, GREEN, LINE, RED, sheet};
use vision::network::{Layer, Network, Shape};
use vision::objects::{Objects, STAMPS};

/// Trains a small convolutional classifier on folders of images
#[derive(Debug, Clone, Parser)]
pub(crate) struct Options {
    /// A folder that holds a folder of images for each class
    #[arg(long)]
    pub(crate) data: Option<PathBuf>,
    /// Where the photographs of tuxpaint-stamps-default are, unless --data is given; where they are not, shapes are drawn
    #[arg(long, default_value = STAMPS)]
    pub(crate) stamps: PathBuf,
    /// Threads that read and decode; 0: the training loop does it itself
    #[arg(long, default_value_t = cpus())]
    pub(crate) workers: usize,
    /// Passes over the training set
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) epochs: u64,
    /// Images of a step
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub(crate) batch_size: u16,
    /// How far the first step goes; the last goes almost nowhere
    #[arg(long, default_value_t = 0.003)]
    pub(crate) rate: f32,
    /// Keys the split, the order, the crops and the first weights
    #[arg(long, default_value_t = 42)]
    pub(crate) seed: u64,
    /// Width and height of the images that the network sees
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u16).range(8..=512))]
    pub(crate) side: u16,
    /// Filters of the first layer; the later ones have more
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(crate) filters: u16,
    /// Write a picture of held-out images and what they were taken for
    #[arg(long, value_name = "PNG")]
    pub(crate) sheet: Option<PathBuf>,
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
    /// The part of the held-out images, 0 to 1, that are of the class that most training images are of.
    pub(crate) baseline: f64,
    /// The mean loss of each epoch.
    pub(crate) losses: Vec<f32>,
    /// A hash of the final weights.
    pub(crate) weights: u64,
    pub(crate) stats: Stats,
}

/// How held-out images were classified.
#[derive(Debug, Clone, Default)]
pub(crate) struct Score {
    /// The images that are of each class, and those of them that were taken for it.
    pub(crate) classes: Vec<[usize; 2]>,
    /// Some images with their class and what they were taken for.
    shown: Vec<(Canvas, usize, usize)>,
}

impl Score {
    pub(crate) fn seen(&self) -> usize {
        self.classes.iter().map(|[seen, _]| seen).sum()
    }

    /// The part, 0 to 1, that was classified rightly.
    pub(crate) fn accuracy(&self) -> f64 {
        self.classes.iter().map(|[_, right]| right).sum::<usize>() as f64 / self.seen().max(1) as f64
    }
}

fn main() -> Result<()> {
    let log = tracing_subscriber::fmt().without_time().with_target(false);
    log.with_writer(io::stderr).with_ansi(io::stderr().is_terminal()).init();
    let options = Options::parse();
    let start = Instant::now();
    let Outcome { score, baseline, losses, weights, stats } = train(&options)?;
    let (accuracy, seconds) = (score.accuracy(), start.elapsed().as_secs_f64());
    if options.json {
        let line = serde_json::json!({
            "accuracy": accuracy, "baseline": baseline, "held_out": score.seen(), "losses": losses,
            "weights": format!("{weights:016x}"), "epochs": options.epochs, "seed": options.seed,
            "workers": options.workers, "samples": stats.samples, "seconds": seconds,
        });
        println!("{line}");
    } else {
        println!("\n{stats}\n");
        println!(
            "held-out accuracy {:.1} % of {} images after {seconds:.1} s (always the most frequent class: {:.1} %); weights {weights:016x}",
            100.0 * accuracy,
            score.seen(),
            100.0 * baseline
        );
    }
    Ok(())
}

/// Trains as `options` say, and tries the network on images that it never saw.
pub(crate) fn train(options: &Options) -> Result<Outcome> {
    let &Options { epochs, seed, json, .. } = options;
    let (side, filters) = (usize::from(options.side), usize::from(options.filters));
    let made = tempfile::tempdir()?;
    let folder = match &options.data {
        Some(folder) => folder,
        None => {
            let objects = Objects::find(&options.stamps, 60, seed)?;
            if !json {
                println!("{}", objects.told());
            }
            write_folders(&objects, made.path(), seed)?;
            made.path()
        }
    };
    let images = ImageFolder::open(folder)?;
    let classes = images.classes().to_vec();
    let (training, held_out) = images.split(0.75, seed)?;

    let device = Device::auto()?;
    let compute = device.new_stream()?;
    let runtime = Runtime::new(options.workers, 64 << 20, 64 << 20)?;
    let crops = Image::rgb8(side, side)
        .random_resized_crop((0.35, 1.0), (0.75, 4.0 / 3.0))
        .flip(0.5)
        .without_geometry();
    let training = Loader::builder(training)
        .decode(crops)
        .batch_size(options.batch_size.into())
        .shuffle(seed)
        .epochs(epochs)
        .runtime(&runtime)
        .build(&device)?;
    let held_out = Loader::builder(held_out)
        .decode(Image::rgb8(side, side).without_geometry())
        .batch_size(32)
        .remainder(Remainder::Uneven)
        .runtime(&runtime)
        .build(&device)?;

    let input = Shape { height: side, width: side, channels: 3 };
    let layers = [
        Layer::filters(filters),
        Layer::MaxPool,
        Layer::filters(2 * filters),
        Layer::MaxPool,
        Layer::filters(3 * filters),
        Layer::MaxPool,
        Layer::filters(4 * filters),
        Layer::Mean,
        Layer::Convolution { side: 1, outputs: classes.len(), rectified: false },
    ];
    let network = Arc::new(Mutex::new(Network::new(input, &layers, seed)));
    let (mut losses, mut score) = (Vec::new(), Score::default());
    let counts = Arc::new(Mutex::new(vec![0usize; classes.len()]));
    let bar = ProgressBar::new(epochs * training.len().unwrap_or(0));
    for epoch in 0..epochs {
        // Down to 0 along half a cosine.
        let done = epoch as f32 / epochs as f32;
        let rate = options.rate / 2.0 * (1.0 + (std::f32::consts::PI * done).cos());
        let loss = Arc::new(Mutex::new((0.0, 0)));
        for batch in training.epoch(&compute)? {
            let (network, loss, counts) = (network.clone(), loss.clone(), counts.clone());
            // Queued on the stream, as kernels would be: the loop goes on to the next batch at once.
            batch?.enqueue(&compute, move |batch| {
                let labels = batch.get::<i64>("label").unwrap();
                let images = batch.get::<u8>("image").unwrap();
                let mean = network
                    .lock()
                    .unwrap()
                    .train(images, rate, |k, scores, slope| cross_entropy(scores, labels[k] as usize, slope));
                let mut loss = loss.lock().unwrap();
                *loss = (loss.0 + mean * labels.len() as f32, loss.1 + labels.len());
                let mut counts = counts.lock().unwrap();
                labels.iter().for_each(|&label| counts[label as usize] += 1);
            })?;
            bar.inc(1);
        }
        compute.synchronize()?;
        let (sum, seen) = *loss.lock().unwrap();
        losses.push(sum / seen.max(1) as f32);
        let last = epoch + 1 == epochs;
        if last || (!json && (epoch + 1).is_multiple_of(5)) {
            score = evaluate(&held_out, &network, &compute, classes.len())?;
            if !json {
                let (loss, accuracy) = (losses[losses.len() - 1], 100.0 * score.accuracy());
                let line = format!("epoch {epoch:>3}: loss {loss:.3}, held-out accuracy {accuracy:.1} %");
                bar.suspend(|| println!("{line}"));
            }
        }
    }
    bar.finish_and_clear();
    ensure!(score.seen() > 0, "no image was held out: {} is too small", folder.display());
    if !json {
        for (name, [seen, right]) in classes.iter().zip(&score.classes) {
            println!("{name:>16}: {right} of {seen}");
        }
    }
    if let Some(path) = &options.sheet {
        show(&score, &classes)?.save_png(path)?;
    }
    let counts = counts.lock().unwrap();
    let most = (0..counts.len()).max_by_key(|&k| counts[k]).unwrap_or(0);
    let baseline = score.classes[most][0] as f64 / score.seen() as f64;
    let weights = network.lock().unwrap().hash();
    Ok(Outcome { score, baseline, losses, weights, stats: training.stats() })
}

/// Tries the network on every image of `loader`.
fn evaluate(
    loader: &Loader,
    network: &Arc<Mutex<Network>>,
    compute: &Stream,
    classes: usize,
) -> Result<Score> {
    const SHOWN: usize = 48;
    let score = Score { classes: vec![[0; 2]; classes], shown: Vec::new() };
    let score = Arc::new(Mutex::new(score));
    for batch in loader.epoch(compute)? {
        let (network, score) = (network.clone(), score.clone());
        batch?.enqueue(compute, move |batch| {
            let (network, mut score) = (network.lock().unwrap(), score.lock().unwrap());
            let (images, labels) = (batch.get::<u8>("image").unwrap(), batch.get::<i64>("label").unwrap());
            let Shape { width, height, .. } = network.input();
            let pictures = images.chunks_exact(network.input().len());
            for ((scores, pixels), &label) in network.infer(images).iter().zip(pictures).zip(labels) {
                let (label, guess) = (label as usize, largest(scores));
                score.classes[label][0] += 1;
                score.classes[label][1] += usize::from(guess == label);
                if score.shown.len() < SHOWN {
                    let picture = Canvas { width, height, pixels: pixels.to_vec() };
                    score.shown.push((picture, label, guess));
                }
            }
        })?;
    }
    compute.synchronize()?;
    let score = score.lock().unwrap().clone();
    Ok(score)
}

/// Held-out images with what they were taken for below: green where that is right, else red with what they are.
fn show(score: &Score, classes: &[String]) -> Result<Canvas> {
    const SIDE: usize = 112;
    let pictures = score.shown.iter().map(|(picture, label, guess)| {
        let mut canvas = Canvas::plain(SIDE, SIDE + 2 * LINE, [0; 3]);
        canvas.draw(&picture.resized(SIDE, SIDE)?, 0, 0);
        let color = if guess == label { GREEN } else { RED };
        canvas.outline([0.0, 0.0, SIDE as f32, SIDE as f32], color);
        canvas.write(&classes[*guess], 2, SIDE, color);
        if guess != label {
            canvas.write(&format!("not {}", classes[*label]), 2, SIDE + LINE, color);
        }
        Ok(canvas)
    });
    Ok(sheet(&pictures.collect::<Result<Vec<_>>>()?, 8))
}

/// Writes each object into the folder of its class: photographs as JPEG on grey, drawings on blots of colour, as JPEG and
/// PNG in turn.
fn write_folders(objects: &Objects, folder: &Path, seed: u64) -> Result<()> {
    for class in &objects.classes {
        let folder = folder.join(&class.name);
        std::fs::create_dir(&folder)?;
        for (number, object) in class.objects.iter().enumerate() {
            // What lies under the alpha of a photograph differs from class to class, and would tell.
            let mut canvas = object.on([128; 3]);
            if objects.made {
                let mut rng = SampleRng::new(seed, 0, number as u64);
                canvas = Canvas::blots(canvas.width, canvas.height, &mut rng)?;
                object.paste(&mut canvas, object.width / 16, object.height / 16);
            }
            if objects.made && number % 2 == 1 {
                canvas.save_png(&folder.join(format!("{number:03}.png")))?;
            } else {
                canvas.save_jpeg(&folder.join(format!("{number:03}.jpg")))?;
            }
        }
    }
    Ok(())
}

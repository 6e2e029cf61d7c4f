//! Trains a small detector on images with boxes: letterboxed by the loader's workers, boxes with them, and uploaded while
//! it learns.
//!
//! ```sh
//! cargo run --release --example yolo -- --sheet target/yolo.png
//! ```
//! Without `--data` it makes scenes of the photographs of Debian's package `tuxpaint-stamps-default`, or of drawn shapes, as JPEG
//! files with YOLO labels. Run it again with `--workers 0` or `--workers 8`: the weights come out the same, bit for bit.

#![allow(clippy::print_stdout, reason = "an example talks to people")]
#![allow(clippy::unwrap_used, reason = "a panic in enqueued work is an error of the next call on its stream")]

#[allow(dead_code, reason = "the other example uses the rest")]
mod vision;

use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use clap::Parser;
use indicatif::ProgressBar;
use warpfeed::decode::{Geometry, Image};
use warpfeed::sampler::Remainder;
use warpfeed::source::{Detection, Source, SourceExt, Subset};
use warpfeed::{Device, ErrorKind, Loader, Runtime, Stats, Stream};

use vision::boxes::{Found, Head, Score, VALUES, best_fixed};
use vision::canvas::{Canvas, GREEN, LINE, RED, WHITE, sheet};
use vision::network::{Layer, Network, Shape};
use vision::objects::{Objects, STAMPS};
use vision::scenes;

/// Trains a small detector on images with boxes
#[derive(Debug, Clone, Parser)]
pub(crate) struct Options {
    /// A detection set: YOLO's data.yaml or its folder, COCO's JSON
    #[arg(long)]
    pub(crate) data: Option<PathBuf>,
    /// Where the photographs of tuxpaint-stamps-default are, unless --data is given; where they are not, shapes are drawn
    #[arg(long, default_value = STAMPS)]
    pub(crate) stamps: PathBuf,
    /// Scenes to make for training, unless --data is given; a quarter of that for validation
    #[arg(long, default_value_t = 1200, value_parser = clap::value_parser!(u64).range(4..))]
    pub(crate) scenes: u64,
    /// Threads that read and decode; 0: the training loop does it itself
    #[arg(long, default_value_t = cpus())]
    pub(crate) workers: usize,
    /// Passes over the training set
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) epochs: u64,
    /// Images of a step
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub(crate) batch_size: u16,
    /// How far the first step goes; the last goes almost nowhere
    #[arg(long, default_value_t = 0.003)]
    pub(crate) rate: f32,
    /// Keys the scenes, the order, the flips and the first weights
    #[arg(long, default_value_t = 42)]
    pub(crate) seed: u64,
    /// Cells along a side of the grid of the detector; the images that it sees have 16 times as many pixels
    #[arg(long, default_value_t = 6, value_parser = clap::value_parser!(u16).range(2..=40))]
    pub(crate) grid: u16,
    /// Filters of the first layer; the later ones have more
    #[arg(long, default_value_t = 12, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(crate) filters: u16,
    /// Write a picture of held-out images with their boxes, and those found
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
    /// Of the detector, and of the fixed box that fits the training set best, said of every image.
    pub(crate) score: Score,
    pub(crate) baseline: Score,
    /// The mean loss of each epoch.
    pub(crate) losses: Vec<f32>,
    /// A hash of the final weights.
    pub(crate) weights: u64,
    pub(crate) stats: Stats,
}

/// A held-out image with what was found in it.
#[derive(Clone)]
struct Shown {
    picture: Canvas,
    geometry: Geometry,
    found: Vec<Found>,
    truth: Vec<Found>,
}

fn main() -> Result<()> {
    let log = tracing_subscriber::fmt().without_time().with_target(false);
    log.with_writer(io::stderr).with_ansi(io::stderr().is_terminal()).init();
    let options = Options::parse();
    let start = Instant::now();
    let Outcome { score, baseline, losses, weights, stats } = train(&options)?;
    let seconds = start.elapsed().as_secs_f64();
    if options.json {
        let line = serde_json::json!({
            "mean_iou": score.mean_overlap(), "ap50": score.ap50(), "boxes": score.boxes(),
            "baseline_mean_iou": baseline.mean_overlap(), "baseline_ap50": baseline.ap50(), "losses": losses,
            "weights": format!("{weights:016x}"), "epochs": options.epochs, "seed": options.seed,
            "workers": options.workers, "samples": stats.samples, "seconds": seconds,
        });
        println!("{line}");
    } else {
        println!("\n{stats}\n");
        println!(
            "held-out mean IoU {:.3}, AP50 {:.3} over {} boxes after {seconds:.1} s (always the best fixed box: {:.3}, {:.3}); weights {weights:016x}",
            score.mean_overlap(),
            score.ap50(),
            score.boxes(),
            baseline.mean_overlap(),
            baseline.ap50()
        );
    }
    Ok(())
}

/// Trains as `options` say, and tries the network on images that it never saw.
pub(crate) fn train(options: &Options) -> Result<Outcome> {
    let &Options { epochs, seed, json, .. } = options;
    let (grid, filters) = (usize::from(options.grid), usize::from(options.filters));
    let made = tempfile::tempdir()?;
    let path = match &options.data {
        Some(path) => path.clone(),
        None => {
            let objects = Objects::find(&options.stamps, 40, seed)?;
            if !json {
                println!("scenes of {}", objects.told());
            }
            scenes::write(objects, [options.scenes, options.scenes / 4], made.path(), seed)?
        }
    };
    let set = open(&path, seed)?;
    if !json {
        println!("{}", set.found);
    }
    let head = Head { grid, classes: set.names.len() };

    let device = Device::auto()?;
    let compute = device.new_stream()?;
    let runtime = Runtime::new(options.workers, 64 << 20, 64 << 20)?;
    let side = 16 * grid;
    let training = Loader::builder(set.training)
        .decode(Image::rgb8(side, side).letterbox().flip(0.5).without_geometry())
        .batch_size(options.batch_size.into())
        .shuffle(seed)
        .epochs(epochs)
        .runtime(&runtime)
        .build(&device)?;
    let held_out = Loader::builder(set.held_out)
        .decode(Image::rgb8(side, side).letterbox())
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
        Layer::MaxPool,
        Layer::filters(6 * filters),
        Layer::Convolution { side: 3, outputs: head.outputs(), rectified: false },
    ];
    let network = Arc::new(Mutex::new(Network::new(input, &layers, seed)));
    let mut losses = Vec::new();
    let bar = ProgressBar::new(epochs * training.len().unwrap_or(0));
    let truth = Arc::new(Mutex::new(Vec::new()));
    for epoch in 0..epochs {
        // Down to 0 along half a cosine.
        let done = epoch as f32 / epochs as f32;
        let rate = options.rate / 2.0 * (1.0 + (std::f32::consts::PI * done).cos());
        let loss = Arc::new(Mutex::new((0.0, 0)));
        for batch in training.epoch(&compute)? {
            let (network, loss, truth) = (network.clone(), loss.clone(), truth.clone());
            // Queued on the stream, as kernels would be: the loop goes on to the next batch at once.
            batch?.enqueue(&compute, move |batch| {
                let boxes: Vec<_> =
                    (0..batch.len()).map(|k| batch.ragged::<f32>("boxes", k).unwrap()).collect();
                let images = batch.get::<u8>("image").unwrap();
                let mean = network
                    .lock()
                    .unwrap()
                    .train(images, rate, |k, output, slope| head.loss(output, boxes[k], slope));
                let mut loss = loss.lock().unwrap();
                *loss = (loss.0 + mean * boxes.len() as f32, loss.1 + boxes.len());
                if epoch == 0 {
                    let all = boxes.iter().flat_map(|boxes| boxes.chunks_exact(VALUES));
                    truth.lock().unwrap().extend(all.map(Found::labelled));
                }
            })?;
            bar.inc(1);
        }
        compute.synchronize()?;
        let (sum, seen) = *loss.lock().unwrap();
        losses.push(sum / seen.max(1) as f32);
        if !json {
            let loss = losses[losses.len() - 1];
            bar.suspend(|| println!("epoch {epoch:>3}: loss {loss:.3}"));
        }
    }
    bar.finish_and_clear();
    let (score, shown) = evaluate(&held_out, &network, &compute, head)?;
    ensure!(score.boxes() > 0, "no box was held out: {} is too small", path.display());
    let baseline = score.of_fixed(best_fixed(&truth.lock().unwrap()), head.classes);
    if !json {
        trace_back(&shown, &set.names);
    }
    if let Some(path) = &options.sheet {
        show(&shown, &set.names)?.save_png(path)?;
    }
    let weights = network.lock().unwrap().hash();
    Ok(Outcome { score, baseline, losses, weights, stats: training.stats() })
}

/// A detection set in two parts.
struct Set {
    training: Subset<Detection>,
    held_out: Subset<Detection>,
    names: Vec<String>,
    /// What was found, in words.
    found: String,
}

/// Opens the parts `train` and `val` of a set; where it has but one, a fifth of it is held out.
fn open(path: &Path, seed: u64) -> Result<Set> {
    let training = Detection::open(path)?;
    let classes = training.classes().context("the set does not say how many classes it has")?;
    let name = |k: u32| training.names().get(k as usize).cloned().unwrap_or_else(|| k.to_string());
    let names = (0..classes).map(name).collect();
    let found = format!("{}\n{}", training.found(), training.counts());
    let all = |set: Detection| {
        let len = set.len().unwrap_or(0);
        set.subset(0..len)
    };
    let (training, held_out) = match Detection::options().split("val").open(path) {
        Ok(val) if val.fingerprint() != training.fingerprint() => (all(training)?, all(val)?),
        Err(error) if error.kind() != ErrorKind::InvalidArgument => return Err(error.into()),
        _ => training.split(0.8, seed)?, // there is no such part
    };
    Ok(Set { training, held_out, names, found })
}

/// Tries the network on every image of `loader`.
fn evaluate(
    loader: &Loader,
    network: &Arc<Mutex<Network>>,
    compute: &Stream,
    head: Head,
) -> Result<(Score, Vec<Shown>)> {
    const SHOWN: usize = 24;
    let result = Arc::new(Mutex::new((Score::default(), Vec::new())));
    for batch in loader.epoch(compute)? {
        let (network, result) = (network.clone(), result.clone());
        batch?.enqueue(compute, move |batch| {
            let network = network.lock().unwrap();
            let (score, shown) = &mut *result.lock().unwrap();
            let images = batch.get::<u8>("image").unwrap();
            let Shape { width, height, .. } = network.input();
            for (k, output) in network.infer(images).iter().enumerate() {
                let boxes = batch.ragged::<f32>("boxes", k).unwrap();
                let truth: Vec<_> = boxes.chunks_exact(VALUES).map(Found::labelled).collect();
                let found = head.found(output);
                if shown.len() < SHOWN {
                    let len = network.input().len();
                    let pixels = images[k * len..][..len].to_vec();
                    let row = &batch.get::<f32>("geometry").unwrap()[k * Geometry::LEN..][..Geometry::LEN];
                    shown.push(Shown {
                        picture: Canvas { width, height, pixels },
                        geometry: Geometry::from_row(row).unwrap(),
                        found: found.clone(),
                        truth: truth.clone(),
                    });
                }
                score.mark(found, truth);
            }
        })?;
    }
    compute.synchronize()?;
    let result = result.lock().unwrap().clone();
    Ok(result)
}

/// Prints the surest detection of the images shown, in pixels of the image as it is in its file.
fn trace_back(shown: &[Shown], names: &[String]) {
    let all = shown.iter().flat_map(|shown| shown.found.iter().map(move |found| (shown, found)));
    let Some((shown, found)) = all.max_by(|a, b| a.1.score.total_cmp(&b.1.score)) else { return };
    let [width, height] = [shown.picture.width, shown.picture.height].map(|n| n as f32);
    let scale = [width, height, width, height];
    let seen: [f32; 4] = std::array::from_fn(|k| found.corners[k] * scale[k]);
    let [image_width, image_height] = shown.geometry.image();
    println!(
        "{:.0} % sure of {} at {seen:.1?} of {width} × {height} pixels: at {:.1?} of the file's {image_width} × {image_height}",
        100.0 * found.score,
        names[found.class],
        shown.geometry.invert_box(seen)
    );
}

/// Held-out images with the boxes that are there in white, and those found in green, or red where nothing of that class is
/// there.
fn show(shown: &[Shown], names: &[String]) -> Result<Canvas> {
    const SIDE: usize = 192;
    let pictures = shown.iter().map(|Shown { picture, found, truth, .. }| {
        let mut canvas = picture.resized(SIDE, SIDE)?;
        let pixels = |corners: [f32; 4]| corners.map(|c| c * SIDE as f32);
        truth.iter().for_each(|t| canvas.outline(pixels(t.corners), WHITE));
        for one in found.iter().filter(|f| f.score >= Score::SHOWN) {
            let right = truth.iter().any(|t| t.matches(one));
            let color = if right { GREEN } else { RED };
            let corners = pixels(one.corners);
            canvas.outline(corners, color);
            let [x, y] = [corners[0], corners[1] - LINE as f32].map(|c| c.max(0.0) as usize);
            canvas.write(&format!("{} {:.0}%", names[one.class], 100.0 * one.score), x, y, color);
        }
        Ok(canvas)
    });
    Ok(sheet(&pictures.collect::<Result<Vec<_>>>()?, 6))
}

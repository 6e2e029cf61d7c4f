//! The example of a classifier, run as its users run it, on drawn shapes in JPEG and PNG files: it learns to tell shapes that it never
//! saw, and to the same weights on any number of workers.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

#[path = "../examples/imagenet.rs"]
#[allow(dead_code, reason = "a test has a main of its own")]
mod imagenet;

use imagenet::{Options, Outcome};

/// Trains on a thread of its own, so that a hang is a failed test.
fn train(options: Options) -> Outcome {
    let (done, outcome) = channel();
    thread::spawn(move || drop(done.send(imagenet::train(&options).unwrap())));
    outcome.recv_timeout(Duration::from_secs(240)).unwrap()
}

fn options(workers: usize, epochs: u64) -> Options {
    Options {
        data: None,
        stamps: "there is no such folder".into(),
        workers,
        epochs,
        batch_size: 8,
        rate: 0.005,
        seed: 42,
        side: 24,
        filters: 8,
        sheet: None,
        json: true,
    }
}

#[test]
fn held_out_shapes_are_told_apart() {
    let outcome = train(options(2, 4));
    assert_eq!((outcome.score.seen(), outcome.stats.samples), (75, 4 * 225));
    let (accuracy, baseline) = (outcome.score.accuracy(), outcome.baseline);
    assert!(accuracy >= baseline + 0.4, "{accuracy} {baseline} {:?}", outcome.losses);
}

#[test]
fn losses_and_weights_are_the_same_on_any_number_of_workers() {
    let runs = [0, 1, 8].map(|workers| train(options(workers, 2)));
    for run in &runs {
        assert_eq!((&run.losses, run.weights), (&runs[0].losses, runs[0].weights));
        assert_eq!(run.score.classes, runs[0].score.classes);
    }
    let other = train(Options { seed: 43, ..options(1, 2) }).weights;
    assert_ne!(runs[0].weights, other, "a seed of its own leads elsewhere");
}

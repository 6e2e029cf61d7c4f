//! The example of a detector, run as its users run it, on scenes of drawn shapes in JPEG files with YOLO labels: it finds shapes that it
//! never saw better than any fixed box does, and learns the same weights on any number of workers.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

#[path = "../examples/yolo.rs"]
#[allow(dead_code, reason = "a test has a main of its own")]
mod yolo;

use yolo::{Options, Outcome};

/// Trains on a thread of its own, so that a hang is a failed test.
fn train(options: Options) -> Outcome {
    let (done, outcome) = channel();
    thread::spawn(move || drop(done.send(yolo::train(&options).unwrap())));
    outcome.recv_timeout(Duration::from_secs(240)).unwrap()
}

fn options(workers: usize, scenes: u64, epochs: u64) -> Options {
    Options {
        data: None,
        stamps: "there is no such folder".into(),
        scenes,
        workers,
        epochs,
        batch_size: 2,
        rate: 0.004,
        seed: 42,
        grid: 3,
        filters: 6,
        sheet: None,
        json: true,
    }
}

#[test]
fn held_out_shapes_are_found() {
    let outcome = train(options(2, 200, 8));
    assert_eq!(outcome.stats.samples, 8 * 200);
    let [found, fixed] = [&outcome.score, &outcome.baseline].map(|s| (s.mean_overlap(), s.ap50()));
    assert!(found.0 > fixed.0 + 0.03 && found.1 > 5.0 * fixed.1, "{found:?} {fixed:?} {:?}", outcome.losses);
}

#[test]
fn losses_and_weights_are_the_same_on_any_number_of_workers() {
    let runs = [0, 1, 8].map(|workers| train(options(workers, 24, 2)));
    for run in &runs {
        assert_eq!((&run.losses, run.weights), (&runs[0].losses, runs[0].weights));
        assert_eq!(run.score.mean_overlap(), runs[0].score.mean_overlap());
    }
    let other = train(Options { seed: 43, ..options(1, 24, 2) }).weights;
    assert_ne!(runs[0].weights, other, "a seed of its own leads elsewhere");
}

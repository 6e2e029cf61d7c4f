//! The digits example, run as its users run it: it learns, only where there is something to learn, and to the
//! same weights on any number of workers.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

#[path = "../examples/digits/main.rs"]
#[allow(dead_code, reason = "a test has a main of its own")]
mod digits;

use digits::{Options, Outcome};

/// Trains on a thread of its own, so that a hang is a failed test.
fn train(options: Options) -> Outcome {
    let (done, outcome) = channel();
    thread::spawn(move || drop(done.send(digits::train(&options).unwrap())));
    outcome.recv_timeout(Duration::from_secs(120)).unwrap()
}

fn options(workers: usize, epochs: u64) -> Options {
    Options { workers, epochs, seed: 42, shuffle_labels: false, json: true }
}

#[test]
fn held_out_digits_are_read() {
    let outcome = train(options(2, 12));
    assert_eq!((outcome.score.seen(), outcome.stats.samples), (359, 12 * 1438));
    let accuracy = outcome.score.accuracy();
    assert!(accuracy >= 0.95, "{accuracy}");
}

#[test]
fn from_shuffled_labels_nothing_is_learned() {
    let accuracy = train(Options { shuffle_labels: true, ..options(2, 4) }).score.accuracy();
    assert!(accuracy < 0.3, "{accuracy}");
}

#[test]
fn the_weights_are_the_same_on_any_number_of_workers() {
    let weights = [0, 1, 8].map(|workers| train(options(workers, 2)).weights);
    assert_eq!(weights, [weights[0]; 3], "{weights:016x?}");
    let other = train(Options { seed: 43, ..options(1, 2) }).weights;
    assert_ne!(weights[0], other, "a seed of its own leads elsewhere");
}

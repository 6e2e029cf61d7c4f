//! The tests of the root, on CUDA devices of the simulated driver.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test stops at the first surprise"
)]
#![allow(clippy::duplicate_mod, reason = "each file of the root's tests brings its own `support`")]

extern crate warpfeed_cuda as warpfeed;

#[path = "support/simulated.rs"]
mod simulated;

#[path = "../../fault_rows.rs"]
mod fault_rows;
#[path = "../../held_batches.rs"]
mod held_batches;
#[path = "../../holes.rs"]
mod holes;
#[path = "../../host_memory.rs"]
mod host_memory;
#[path = "../../lifecycle_rows.rs"]
mod lifecycle_rows;
#[path = "../../loader.rs"]
mod loader;
#[path = "../../memory_rows.rs"]
mod memory_rows;
#[path = "../../misuse.rs"]
mod misuse;
#[path = "../../order_rows.rs"]
mod order_rows;
#[path = "../../ragged.rs"]
mod ragged;
#[path = "../../resume_rows.rs"]
mod resume_rows;
#[path = "../../sequence_rows.rs"]
mod sequence_rows;
#[path = "../../specs.rs"]
mod specs;
#[path = "../../stream_rows.rs"]
mod stream_rows;
#[path = "../../stress.rs"]
mod stress;
#[path = "../../stuck_samples.rs"]
mod stuck_samples;

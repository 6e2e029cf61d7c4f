//! Runs the models in the library's `sync.rs`; empty without `--cfg loom`.

#[cfg(loom)]
#[allow(dead_code)]
#[path = "../../../src/sync.rs"]
mod sync;

//! A CUDA driver without a GPU. Under the name `libcuda.so` it is what cudarc opens, so that unmodified code runs
//! where there is no GPU; it also finds races and misuse that a real driver lets pass. README.md says what is
//! modelled.
//!
//! This crate is two things. The **cdylib** is the driver: `api` (the exported functions) over `context`,
//! `stream`, `event`, `copy`, `module` and `memory`, which keep their objects in `state`; `lane` runs the
//! work of a stream, `detector` and `guard` find races. The **rlib** is what tests link, and of that only
//! [`Sim`] is for use: it finds the driver that the process has loaded, and talks to that one.

// Not the rlib's: there they are compiled and never run.
mod api;
mod capture;
mod clock;
mod config;
mod context;
mod control;
mod copy;
mod detector;
mod entry;
mod error;
mod event;
mod fault;
mod fence;
mod graph;
mod guard;
mod kernel;
mod lane;
mod memory;
mod module;
mod preload;
mod ptx;
mod sim;
mod state;
mod stream;
mod unknown;
mod work;

pub use config::Config;
pub use fault::Fault;
pub use sim::{Report, Sim};

//! What this driver can't do, it says: by name, on stderr, and in the report.

use crate::entry::{self, Level};
use crate::error::Code;
use crate::state;
use std::ffi::c_int;

/// The one thing that is ever printed.
pub fn complain(what: &str) {
    eprintln!("cusim: {what} is not simulated");
}

/// A call of an entry point that is exported and does nothing.
pub fn call(symbol: &'static str) -> c_int {
    entry::call(symbol, Level::Any, || {
        let first = state::lock().unknown.insert(symbol);
        if first {
            complain(symbol);
        }
        Err(Code::NOT_SUPPORTED)
    })
}

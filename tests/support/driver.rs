//! Drivers that are small C libraries under the driver's name, and the tool run on them.

#![allow(dead_code, reason = "each test binary uses a part of it")]
#![allow(clippy::panic, clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// The longest that a run may take: each takes well under a second.
const LIMIT: Duration = Duration::from_secs(120);

/// The functions that the library must have: those that its source names.
pub(crate) fn needed() -> Vec<String> {
    let source = include_str!("../../src/device/cuda/driver.rs");
    let list = source.split_once("const NEEDED: &[&str] = &[").unwrap().1.split_once("];").unwrap().0;
    let names: Vec<_> = list.split('"').skip(1).step_by(2).map(String::from).collect();
    assert!(names.len() > 20 && names.iter().all(|name| name.starts_with("cu")), "{names:?}");
    names
}

/// A folder with the library that `source`, in C, makes under the path `name`.
pub(crate) fn build(source: &str, name: &str) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let (file, library) = (folder.path().join("driver.c"), folder.path().join(name));
    std::fs::create_dir_all(library.parent().unwrap()).unwrap();
    std::fs::write(&file, source).unwrap();
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-fPIC", "-w", "-o"]).arg(&library).arg(&file);
    let out = cc.output().unwrap_or_else(|e| panic!("cc, which Rust links with: {e}"));
    assert!(out.status.success(), "{out:?}");
    folder
}

/// The tool with `folder` first on the library path.
pub(crate) fn tool(line: &str, folder: &Path, visible: Option<&str>) -> Command {
    let mut tool = Command::new(env!("CARGO_BIN_EXE_warpfeed"));
    tool.args(line.split_whitespace()).env("LD_LIBRARY_PATH", folder);
    tool.env_remove("CUDA_VISIBLE_DEVICES").env_remove("LD_PRELOAD");
    if let Some(visible) = visible {
        tool.env("CUDA_VISIBLE_DEVICES", visible);
    }
    tool.stdin(Stdio::null());
    tool
}

/// Runs it, for as long as [`LIMIT`].
pub(crate) fn run(line: &str, folder: &Path, visible: Option<&str>) -> Output {
    let mut tool = tool(line, folder, visible);
    let mut child = tool.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let begun = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if begun.elapsed() > LIMIT {
            child.kill().unwrap();
            panic!("it hangs: {:?}", child.wait_with_output());
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    child.wait_with_output().unwrap()
}

//! The tool is one binary for all machines: it is linked with nothing of CUDA's, and looks for the driver when it runs.

#![cfg(all(target_os = "linux", target_env = "gnu"))]
#![allow(clippy::panic, clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::path::Path;

use driver::{build, run, tool};

#[path = "support/driver.rs"]
mod driver;

/// The libraries in what the loader prints where LD_TRACE_LOADED_OBJECTS is set, a line each.
fn libraries(trace: &str) -> Vec<&str> {
    trace
        .lines()
        .filter_map(|line| line.split_whitespace().next())
        .map(|l| l.rsplit('/').next().unwrap())
        .collect()
}

/// Those of the driver and of the toolkit.
fn of_cuda<'a>(libraries: &[&'a str]) -> Vec<&'a str> {
    libraries
        .iter()
        .copied()
        .filter(|name| ["libcu", "libnv"].iter().any(|start| name.starts_with(start)))
        .collect()
}

/// A short run on the best device there is: what it printed.
fn bench(folder: &Path) -> String {
    let line =
        "bench --device auto --steps 2 --batch-size 4 --record-bytes 1000 --decode-us 10 --compute-ms 0.1";
    let out = run(line, folder, None);
    let [stdout, stderr] = [out.stdout, out.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
    assert_eq!(out.status.code(), Some(0), "{stderr}");
    let lines = stderr.lines().filter(|line| !line.starts_with("an unoptimised build"));
    assert!(!stderr.contains("panicked") && lines.count() <= 1, "{stderr}");
    stdout
}

#[test]
fn no_library_of_cudas_is_linked() {
    let trace = "\tlibcuda.so.1 => /usr/lib/libcuda.so.1 (0x7f)\n\tlibnvrtc.so.12 => not found\n\tlibc.so.6 => /lib/libc.so.6 (0x7f)\n";
    assert_eq!(of_cuda(&libraries(trace)), ["libcuda.so.1", "libnvrtc.so.12"]);

    let folder = tempfile::tempdir().unwrap();
    let out = tool("", folder.path(), None).env("LD_TRACE_LOADED_OBJECTS", "1").output().unwrap();
    let trace = String::from_utf8(out.stdout).unwrap();
    let linked = libraries(&trace);
    assert!(linked.iter().any(|name| name.starts_with("libc.so")), "the loader's list: {trace}");
    assert!(of_cuda(&linked).is_empty(), "{trace}");
    // It has the CUDA flavour all the same.
    let binary = std::fs::read(env!("CARGO_BIN_EXE_warpfeed")).unwrap();
    assert!(binary.windows(14).any(|bytes| bytes == b"cuMemHostAlloc"), "no CUDA flavour in this build");
}

#[test]
fn the_best_device_is_found_on_any_machine() {
    // As the machine is, mostly without a driver.
    let empty = tempfile::tempdir().unwrap();
    let title = bench(empty.path());
    assert!(title.contains("CPU device") || title.contains("CUDA"), "{title}");
    // With a driver that can't be used, under the name that is tried first.
    let broken = build("int cuSomething(void) { return 0; }", "libcuda.so");
    let title = bench(broken.path());
    assert!(title.contains("CPU device"), "{title}");
}

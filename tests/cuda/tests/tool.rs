//! The command-line tool over the simulated driver, as a process of its own.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test stops at the first surprise"
)]

use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::OnceLock;

use cusim::Report;
use serde_json::Value;

/// The tool, built like this test, and the simulated driver.
fn tool() -> &'static (PathBuf, PathBuf) {
    static TOOL: OnceLock<(PathBuf, PathBuf)> = OnceLock::new();
    TOOL.get_or_init(|| {
        let deps = std::env::current_exe().unwrap().parent().unwrap().to_path_buf();
        let driver = deps.join("libcusim.so");
        assert!(driver.exists(), "the simulated driver is built beside this test");
        let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
        let mut build = Command::new(env!("CARGO"));
        build.args(["build", "--quiet", "--package", "warpfeed", "--bin", "warpfeed"]).current_dir(root);
        assert!(build.status().unwrap().success());
        let tool = deps.parent().unwrap().join("warpfeed");
        assert!(tool.exists(), "{}", tool.display());
        (tool, driver)
    })
}

/// Runs it on a machine that `settings` describe; nothing that the driver finds is wrong.
#[track_caller]
fn run(line: &str, settings: &[(&str, &str)]) -> (Output, Report) {
    let (tool, driver) = tool();
    let folder = tempfile::tempdir().unwrap();
    let report = folder.path().join("report");
    std::os::unix::fs::symlink(driver, folder.path().join("libcuda.so")).unwrap();
    let mut command = Command::new(tool);
    command.args(line.split(' ')).env("LD_LIBRARY_PATH", folder.path()).env("CUSIM_REPORT", &report);
    let out = command.envs(settings.iter().copied()).output().unwrap();
    let report = Report::read(&std::fs::read_to_string(&report).unwrap_or_default());
    assert!(report.findings().is_empty(), "{:?}", report.findings());
    (out, report)
}

#[track_caller]
fn json(out: &Output) -> Vec<Value> {
    let (stdout, stderr) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert!(out.status.success(), "{stdout}{stderr}");
    assert!(!stderr.contains("panicked"), "{stderr}");
    stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// A link on which a batch of 32 crops takes 10 ms.
const LINK: (&str, &str) = ("CUSIM_GBPS", "0.4816896");

#[test]
fn what_can_be_hidden_is_hidden() {
    // 1:1:1, 2:1:1, 1:2:1 and 1:1:2, with 2 and 3 device slots. A busy machine gets five tries.
    for ratio in ["1:1:1", "2:1:1", "1:2:1", "1:1:2"] {
        for slots in [2, 3] {
            let line = format!(
                "bench --device cuda:0 --ratio {ratio} --steps 50 --device-slots {slots} --workers 2 --json"
            );
            let mut tries = Vec::new();
            let hidden = (0..5).any(|_| {
                let (out, report) = run(&line, &[LINK]);
                assert!(report.accesses_checked > 300, "{}", report.accesses_checked);
                let found = json(&out).remove(0);
                assert_eq!(found["device"], "CUDA 0: cusim 0", "{found}");
                let efficiency = found["overlap_efficiency"].as_f64().unwrap_or(0.0);
                tries.push(efficiency);
                efficiency >= 0.95
            });
            println!("{ratio}, {slots} device slots: {tries:?}");
            assert!(hidden, "{ratio}, {slots} device slots: {tries:?}");
        }
    }
}

#[test]
fn the_doctor_sees_what_there_is() {
    let (out, _) = run("doctor --json", &[("CUSIM_DEVICES", "3"), ("CUSIM_MEMORY", "1073741824")]);
    let found = json(&out).remove(0);
    assert_eq!(found["device_auto"], "CUDA 0: cusim 0", "{found}");
    let gpus = found["gpus"].as_array().unwrap();
    assert_eq!(gpus.len(), 3, "{found}");
    assert_eq!(gpus[2]["memory"].as_u64(), Some(1 << 30), "{found}");
    let (out, _) = run("doctor --json", &[("CUSIM_DEVICES", "2"), ("CUDA_VISIBLE_DEVICES", "")]);
    assert_eq!(json(&out).remove(0)["device_auto"], "CPU");
}

#[test]
fn check_finds_a_device_in_order() {
    let (out, report) = run("check --device cuda:0 --smoke --json", &[("CUSIM_GUARD", "1")]);
    let lines = json(&out);
    assert!(report.accesses_checked > 1000, "{}", report.accesses_checked);
    let stress: Vec<&Value> = lines.iter().filter(|line| line["mismatches"].is_u64()).collect();
    assert!(!stress.is_empty(), "{lines:?}");
    assert!(stress.iter().all(|line| line["mismatches"] == 0), "{stress:?}");
}

#[test]
fn a_device_that_there_is_not_is_one_line() {
    let (out, _) = run("bench --device cuda:7 --steps 4", &[("CUSIM_DEVICES", "2")]);
    let stderr = String::from_utf8_lossy(&out.stderr).into_owned();
    assert_eq!(out.status.code(), Some(1));
    assert!(stderr.lines().count() == 1 && stderr.contains("no CUDA device 7: 2 found"), "{stderr}");
}

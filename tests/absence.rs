//! A driver that is absent or can't be used is data: `warpfeed doctor` says in one line what was found and what to do,
//! and the CPU device is taken. Each driver here is a small C library under the driver's name, first on the library path.

#![cfg(target_os = "linux")]
#![allow(clippy::panic, clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use driver::{build, needed, run};
use serde_json::Value;
use tempfile::TempDir;

#[path = "support/driver.rs"]
mod driver;

/// What a driver's functions do.
struct Fake {
    version: i32,
    init: i32,
    devices: i32,
    /// Functions that it has not.
    lacks: Vec<String>,
    /// Where it lies below the folder.
    name: &'static str,
}

impl Default for Fake {
    fn default() -> Self {
        Self { version: 12_040, init: 0, devices: 1, lacks: Vec::new(), name: "libcuda.so.1" }
    }
}

impl Fake {
    fn source(&self) -> String {
        let Self { version, init, devices, .. } = self;
        let mut out = String::new();
        for name in needed().iter().filter(|name| !self.lacks.contains(name)) {
            let body = match name.as_str() {
                "cuInit" => format!("(unsigned flags) {{ return flags ? 1 : {init}; }}"),
                "cuDriverGetVersion" => {
                    format!("(int *v) {{ if ({init} == 34) return 34; *v = {version}; return 0; }}")
                }
                "cuDeviceGetCount" => format!("(int *n) {{ *n = {devices}; return {init}; }}"),
                "cuGetErrorName" => {
                    "(int code, const char **s) { *s = code == 1234 ? 0 : \"CUDA_ERROR_FAKE\"; \
                                     return *s ? 0 : 1; }"
                        .to_string()
                }
                "cuGetErrorString" => "(int code, const char **s) { *s = code == 1234 ? 0 : \"a text of the \
                                       driver's\"; return *s ? 0 : 1; }"
                    .to_string(),
                // Nothing else may be called before all of this is in order.
                _ => "(void) { __builtin_trap(); }".to_string(),
            };
            writeln!(out, "int {name}{body}").unwrap();
        }
        out
    }

    fn build(&self) -> TempDir {
        build(&self.source(), self.name)
    }
}

fn doctor(folder: &Path, visible: Option<&str>) -> Value {
    let out = run("doctor --json", folder, visible);
    let stderr = String::from_utf8(out.stderr).unwrap();
    assert_eq!(out.status.code(), Some(0), "{stderr}");
    for word in ["panicked", "cudarc", "Missing symbol", "backtrace"] {
        assert!(!stderr.contains(word), "{stderr}");
    }
    assert!(stderr.lines().count() <= 1, "{stderr}");
    let stdout = String::from_utf8(out.stdout).unwrap();
    assert_eq!(stdout.lines().count(), 1, "{stdout}");
    serde_json::from_str(&stdout).unwrap()
}

/// The driver in `folder` can't be used, for a reason in which all of `parts` occur.
#[track_caller]
fn refused(folder: &Path, visible: Option<&str>, parts: &[&str]) -> Value {
    let found = doctor(folder, visible);
    let reason = found["driver"]["unusable"].as_str().unwrap_or_else(|| panic!("it is used: {found}"));
    for part in parts {
        assert!(reason.contains(part), "no {part:?} in {reason:?}");
    }
    assert_eq!(reason.lines().count(), 1, "{reason}");
    assert_eq!(found["device_auto"], "CPU", "{found}");
    assert_eq!(found["gpus"], Value::Array(Vec::new()), "{found}");
    let findings = found["findings"].as_array().unwrap();
    let named = findings.iter().filter(|f| f["text"].as_str().unwrap().contains(reason)).count();
    assert_eq!(named, 1, "one clear reason: {found}");

    // The same device, asked for by its number, is an error in one line.
    let out = run("bench --device cuda:0 --steps 4 --batch-size 4 --record-bytes 1000", folder, visible);
    let stderr = String::from_utf8(out.stderr).unwrap();
    assert_eq!((out.status.code(), out.stdout.as_slice()), (Some(1), &b""[..]), "{stderr}");
    assert!(stderr.starts_with("error: ") && stderr.lines().count() == 1, "{stderr}");
    assert!(!stderr.contains("panicked"), "{stderr}");
    found
}

fn library(folder: &TempDir, fake: &Fake) -> PathBuf {
    folder.path().join(fake.name)
}

#[test]
fn no_library() {
    let folder = tempfile::tempdir().unwrap();
    let found = doctor(folder.path(), None);
    if let Some(path) = found["driver"]["library"].as_str() {
        println!("skipped: this machine has a driver, {path}");
        return;
    }
    let found = refused(folder.path(), None, &["no library", "libcuda.so", "libnvcuda.so.1", "R525"]);
    assert_eq!(found["driver"]["api_version"], Value::Null);
}

#[test]
fn a_file_that_is_no_library() {
    for text in ["", "not an ELF file, whatever its name says"] {
        // The name that cudarc tries first.
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("libcuda.so");
        std::fs::write(&path, text).unwrap();
        let found = doctor(folder.path(), None);
        if found["driver"]["library"].is_string() {
            println!("skipped: this machine has a driver, which is loaded instead");
            return;
        }
        refused(folder.path(), None, &["does not load", path.to_str().unwrap()]);
    }
}

#[test]
fn a_toolkits_stub() {
    // It is found under the name that a toolkit gives it, before the driver's own.
    let fake = Fake { init: 34, name: "libcuda.so", ..Fake::default() };
    let folder = fake.build();
    let path = library(&folder, &fake);
    let found = refused(
        folder.path(),
        None,
        &[path.to_str().unwrap(), "34 CUDA_ERROR_FAKE", "stub", "LD_LIBRARY_PATH"],
    );
    assert_eq!(found["driver"]["library"], path.to_str().unwrap());
    assert_eq!(found["driver"]["api_version"], Value::Null);

    // Another code, from the folder that toolkits keep them in; and one that lacks what a newer one has.
    let lacks = vec!["cuStreamQuery".to_string()];
    for fake in [Fake { init: 100, ..Fake::default() }, Fake { lacks, ..Fake::default() }] {
        let fake = Fake { name: "stubs/libcuda.so", ..fake };
        let folder = fake.build();
        let path = library(&folder, &fake);
        refused(path.parent().unwrap(), None, &[path.to_str().unwrap(), "stub"]);
    }
}

#[test]
fn a_driver_that_is_too_old() {
    // It lacks functions too; that it is old is the reason for that.
    for lacks in [Vec::new(), vec!["cuMemHostAlloc".to_string()]] {
        let fake = Fake { version: 11_040, lacks, ..Fake::default() };
        let folder = fake.build();
        let path = library(&folder, &fake);
        let parts = ["too old", "CUDA 11.4", "12.0", "R525", path.to_str().unwrap()];
        let found = refused(folder.path(), None, &parts);
        assert_eq!(found["driver"]["api_version"], "11.4");
    }
}

#[test]
fn a_driver_without_a_device() {
    let init = Fake { init: 100, ..Fake::default() }.build();
    let count = Fake { devices: 0, ..Fake::default() }.build();
    for folder in [init.path(), count.path()] {
        refused(folder, Some(""), &["CUDA_VISIBLE_DEVICES is \"\"", "unset"]);
        refused(folder, Some("-1"), &["CUDA_VISIBLE_DEVICES is \"-1\"", "unset"]);
        refused(folder, Some("7,8"), &["CUDA_VISIBLE_DEVICES is \"7,8\""]);
        let found = refused(folder, None, &["NVIDIA GPU", "--gpus all"]);
        assert!(!found["driver"]["unusable"].as_str().unwrap().contains("CUDA_VISIBLE_DEVICES"), "{found}");
    }
    // Hidden on purpose is no problem; a number that there is not is one.
    let level = |visible| doctor(count.path(), visible)["findings"][0]["level"].as_str().unwrap().to_string();
    assert_eq!([Some(""), Some("-1"), Some("7"), None].map(level), ["note", "note", "problem", "problem"]);
    refused(init.path(), None, &["cuInit: 100 CUDA_ERROR_FAKE, a text of the driver's"]);
    refused(count.path(), None, &["shows no device"]);
}

#[test]
fn a_driver_that_does_not_start() {
    let codes = [
        (999, "999 CUDA_ERROR_FAKE, a text of the driver's", "nvidia_uvm"),
        (803, "803 CUDA_ERROR_FAKE", "kernel module"),
        (804, "804 CUDA_ERROR_FAKE", "compat"),
        (802, "802 CUDA_ERROR_FAKE", "nvidia-fabricmanager"),
        (46, "46 CUDA_ERROR_FAKE", "another process"),
        (304, "304 CUDA_ERROR_FAKE", "/dev/nvidia"),
        (3, "3 CUDA_ERROR_FAKE", "forked"),
        (2, "2 CUDA_ERROR_FAKE", "memory"),
        // One that it has no name for.
        (1234, "error 1234", "nvidia-smi"),
    ];
    for (init, code, advice) in codes {
        let fake = Fake { init, ..Fake::default() };
        let folder = fake.build();
        refused(folder.path(), None, &["(cuInit: ", code, advice, library(&folder, &fake).to_str().unwrap()]);
    }
}

/// A stub in a container's image: the CPU device does the work, and one warning says what is missing.
#[test]
fn row_27_a_stub_is_one_warning_that_names_what_is_missing() {
    let stub = |init: i32| format!("int cuInit(unsigned flags) {{ return {init}; }}");
    for (init, part) in [(100, "cuDriverGetVersion"), (0, "cuDriverGetVersion")] {
        let folder = build(&stub(init), "libcuda.so.1");
        let out =
            run("bench --device auto --steps 2 --batch-size 4 --record-bytes 1000", folder.path(), None);
        let (stdout, stderr) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
        assert_eq!(out.status.code(), Some(0), "{stderr}");
        assert!(stdout.contains("CPU device"), "{stdout}");
        let warnings: Vec<_> = stderr.lines().chain(stdout.lines()).filter(|l| l.contains("WARN")).collect();
        assert!(warnings.len() == 1 && warnings[0].contains(part), "{warnings:?} of {stderr}");
        assert!(!stderr.contains("panicked"), "{stderr}");
    }
}

#[test]
fn a_library_that_lacks_functions() {
    let all = needed();
    // Each alone: one that was forgotten would be a panic of cudarc's.
    for name in &all {
        let fake = Fake { lacks: vec![name.clone()], ..Fake::default() };
        let folder = fake.build();
        refused(folder.path(), None, &["lacks", name, library(&folder, &fake).to_str().unwrap()]);
    }
    for init in [0, 100] {
        let lacks: Vec<_> = all.iter().filter(|name| *name != "cuInit").cloned().collect();
        let more = format!("and {} more", lacks.len() - 3);
        let fake = Fake { init, lacks, ..Fake::default() };
        let folder = fake.build();
        refused(
            folder.path(),
            None,
            &["cuDriverGetVersion", &more, library(&folder, &fake).to_str().unwrap()],
        );
    }
    let folder = Fake { lacks: all, ..Fake::default() }.build();
    refused(folder.path(), None, &["libcuda.so.1", "lacks cuInit"]);
}

//! `warpfeed doctor` as its users run it: on this machine, and on one whose GPUs are a small C library.

#![allow(clippy::panic, clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::process::{Command, Stdio};

use serde_json::{Value, json};

#[cfg(all(target_os = "linux", feature = "cuda"))]
#[path = "support/driver.rs"]
mod driver;

/// Exit status, stdout, stderr.
fn warpfeed(arguments: &[&str]) -> (Option<i32>, String, String) {
    let out =
        Command::new(env!("CARGO_BIN_EXE_warpfeed")).args(arguments).stdin(Stdio::null()).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (out.status.code(), text(out.stdout), text(out.stderr))
}

fn parse(stdout: &str) -> Value {
    assert_eq!((stdout.lines().count(), stdout.ends_with('\n')), (1, true), "{stdout}");
    serde_json::from_str(stdout).unwrap()
}

fn findings(found: &Value) -> Vec<[&str; 4]> {
    let all = found["findings"].as_array().unwrap();
    all.iter().map(|f| ["level", "subject", "text", "advice"].map(|key| f[key].as_str().unwrap())).collect()
}

fn keys(value: &Value) -> Vec<&str> {
    value.as_object().unwrap_or_else(|| panic!("no object: {value}")).keys().map(String::as_str).collect()
}

#[test]
fn people_are_told_what_each_fact_means_and_which_device_is_taken() {
    let (status, report, stderr) = warpfeed(&["doctor"]);
    assert_eq!(status, Some(0), "{stderr}");
    let found = parse(&warpfeed(&["doctor", "--json"]).1);
    let all = findings(&found);
    let subjects: Vec<_> = all.iter().map(|f| f[1]).collect();
    for subject in ["driver", "CPUs", "memory", "locking", "huge pages"] {
        assert!(subjects.contains(&subject), "{subjects:?}");
    }
    let lines: Vec<_> = report.lines().collect();
    for (pair, [level, subject, text, advice]) in lines.chunks(2).zip(all) {
        // What is free now may differ from one run to the next.
        let same = |line: &str, words: &str| subject.contains("memory") || line.ends_with(words);
        assert!(pair[0].starts_with(level) && pair[0].contains(subject), "{level} {subject}: {report}");
        assert!(same(pair[0], text) && same(pair[1], advice), "{text}, {advice}: {report}");
    }
    let device = found["device_auto"].as_str().unwrap();
    assert_eq!(report.lines().last().unwrap(), format!("Device::auto() takes: {device}"));
    assert_eq!(found["driver"]["usable"], json!(found["driver"]["unusable"].is_null()));
    let count = |level| findings(&found).iter().filter(|f| f[0] == level).count();
    let summary = lines[lines.len() - 2];
    assert!(summary.starts_with(&format!("{} problem", count("problem"))), "{summary}");
    assert!(summary.contains(&format!(" {} warning", count("warning"))), "{summary}");
    assert!(!report.contains('\x1b'), "{report}");
}

#[test]
fn the_line_of_json_has_every_field() {
    let found = parse(&warpfeed(&["doctor", "--json"]).1);
    assert_eq!(keys(&found), ["device_auto", "device_auto_error", "driver", "findings", "gpus", "host"]);
    let driver = ["api_version", "gpus_on_bus", "hidden", "kernel_module", "library", "unusable", "usable"];
    assert_eq!(keys(&found["driver"]), driver);
    let host = [
        "cpu_quota",
        "cpus",
        "huge_pages",
        "lockable",
        "memlock",
        "memory",
        "memory_available",
        "memory_limit",
        "numa_nodes",
    ];
    assert_eq!(keys(&found["host"]), host);
    let cpus = std::thread::available_parallelism().unwrap().get();
    assert_eq!(found["host"]["cpus"], json!(cpus));
}

#[test]
#[cfg(target_os = "linux")]
fn a_limit_on_locked_memory_is_seen() {
    let shell = format!("ulimit -l 64; exec '{}' doctor --json", env!("CARGO_BIN_EXE_warpfeed"));
    let out = Command::new("sh").args(["-c", &shell]).stdin(Stdio::null()).output().unwrap();
    let found = parse(&String::from_utf8(out.stdout).unwrap());
    assert_eq!(found["host"]["memlock"], json!({ "soft": 65536, "hard": 65536 }));
    let all = findings(&found);
    let [level, _, text, advice] = all.iter().find(|f| f[1] == "locking").unwrap();
    assert!(text.contains("RLIMIT_MEMLOCK 64 KiB"), "{text}");
    if found["host"]["lockable"] == json!(64 << 20) {
        println!("in part: this process may lock what it likes, whatever the limit");
        assert_eq!(*level, "ok");
    } else {
        assert_eq!(found["host"]["lockable"], json!(0), "64 KiB are allowed, 1 MiB is tried");
        let expected =
            if found["gpus"] == json!([]) { ("warning", "ulimit -l") } else { ("note", "CPU device alone") };
        assert!(*level == expected.0 && advice.contains(expected.1), "{level}: {advice}");
    }
}

#[test]
fn wrong_options_and_a_reader_that_left() {
    let (status, stdout, stderr) = warpfeed(&["doctor", "--jason"]);
    assert_eq!((status, stdout.as_str()), (Some(2), ""));
    assert!(stderr.contains("--json"), "{stderr}");
    let (status, help, _) = warpfeed(&["doctor", "--help"]);
    assert_eq!(status, Some(0));
    assert!(help.contains("--json") && help.contains("exit status is 0"), "{help}");
    let mut tool = Command::new(env!("CARGO_BIN_EXE_warpfeed"));
    let mut child = tool.arg("doctor").stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    assert!(child.wait().unwrap().success());
}

/// Four GPUs: one in order, one that another process has for itself, one that is full and too old, one that is in order
/// again. What is done to contexts and memory goes to the file that `FAKE_LOG` names, a line a call.
#[cfg(all(target_os = "linux", feature = "cuda"))]
const GPUS: &str = r#"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
static void note(const char *what, long n) {
    FILE *log = fopen(getenv("FAKE_LOG"), "a");
    fprintf(log, "%s %ld\n", what, n);
    fclose(log);
}
/* Somebody's context, on the thread that calls. */
static __thread long current = 77;
int cuInit(unsigned flags) { return 0; }
int cuDriverGetVersion(int *v) { *v = 12080; return 0; }
int cuGetErrorName(int code, const char **s) { *s = "CUDA_ERROR_FAKE"; return 0; }
int cuGetErrorString(int code, const char **s) { *s = "a text of the driver's"; return 0; }
int cuDeviceGetCount(int *n) { *n = 4; return 0; }
int cuDeviceGet(int *device, int n) { *device = 100 + n; return 0; }
int cuDeviceGetName(char *name, int len, int device) { snprintf(name, len, "Fake %d", device - 100); return 0; }
int cuDeviceTotalMem_v2(size_t *bytes, int device) { *bytes = 16ul << 30; return 0; }
int cuDeviceGetAttribute(int *value, int attribute, int device) {
    switch (attribute) {
    case 75: *value = device == 102 ? 7 : 9; return 0;    /* compute capability, major */
    case 76: *value = 0; return 0;                        /* and minor */
    case 40: *value = 3; return 0;                        /* copy engines */
    case 50: *value = 0xabcd; return 0;                   /* PCI domain: this machine has none like it */
    case 33: *value = 0x3b; return 0;                     /* bus */
    case 34: *value = device - 100; return 0;             /* device */
    }
    return 1;
}
int cuDevicePrimaryCtxRetain(void **context, int device) {
    if (device == 101) return 46;
    note("retain", device);
    *context = (void *)(long)device;
    return 0;
}
int cuDevicePrimaryCtxRelease_v2(int device) { note("release", device); return 0; }
int cuCtxGetCurrent(void **context) { *context = (void *)current; return 0; }
int cuCtxSetCurrent(void *context) { current = (long)context; note("current", current); return 0; }
int cuMemGetInfo_v2(size_t *free, size_t *total) { *total = 16ul << 30; *free = (current - 99ul) << 28; return 0; }
int cuMemHostAlloc(void **memory, size_t bytes, unsigned flags) {
    if (current == 102) return 2;
    note("lock", bytes >> 20);
    *memory = (void *)0x1000;
    return 0;
}
int cuMemFreeHost(void *memory) { note("unlock", 0); return 0; }
"#;

#[test]
#[cfg(all(target_os = "linux", feature = "cuda"))]
fn each_gpu_is_described_and_left_as_it_was() {
    use std::fmt::Write as _;

    let mut source = GPUS.to_string();
    for name in driver::needed().iter().filter(|name| !GPUS.contains(&format!("int {name}("))) {
        writeln!(source, "int {name}(void) {{ return 999; }}").unwrap();
    }
    let folder = driver::build(&source, "libcuda.so");
    let log = folder.path().join("log");
    let out = driver::tool("doctor --json", folder.path(), None).env("FAKE_LOG", &log).output().unwrap();
    let stderr = String::from_utf8(out.stderr).unwrap();
    assert_eq!(out.status.code(), Some(0), "{stderr}");
    let found = parse(&String::from_utf8(out.stdout).unwrap());
    assert_eq!(found["driver"]["usable"], true, "{found}");
    assert_eq!(found["driver"]["api_version"], "12.8");
    assert_eq!(found["driver"]["library"], folder.path().join("libcuda.so").to_str().unwrap());

    let gpu = |n: u32, free: Value, refused: Value| {
        json!({
            "ordinal": n,
            "name": format!("Fake {n}"),
            "compute_capability": if n == 2 { "7.0" } else { "9.0" },
            "too_old": n == 2,
            "memory": 16u64 << 30,
            "memory_free": free,
            "copy_engines": 3,
            "pci_address": format!("abcd:3b:0{n}.0"),
            "link": null,
            "link_max": null,
            "numa_node": null,
            "numa_cpus": null,
            "lock_refused": refused,
        })
    };
    let gpus = found["gpus"].as_array().unwrap();
    assert_eq!(gpus.len(), 4);
    assert_eq!(gpus[0], gpu(0, json!(1 << 28), Value::Null));
    assert_eq!(gpus[3], gpu(3, json!(1 << 30), Value::Null));
    let refused = |name| json!(format!("{name}, a text of the driver's"));
    assert_eq!(gpus[1], gpu(1, Value::Null, refused("CUDA_ERROR_DEVICE_UNAVAILABLE")));
    assert_eq!(gpus[2], gpu(2, json!(3 << 28), refused("CUDA_ERROR_OUT_OF_MEMORY")));
    let all = findings(&found);
    let level =
        |subject: &str| all.iter().find(|f| f[1] == subject).unwrap_or_else(|| panic!("{subject}"))[0];
    let levels =
        ["cuda:0", "cuda:0 memory", "cuda:1 memory", "cuda:2", "cuda:2 locking", "cuda:3 memory"].map(level);
    assert_eq!(levels, ["ok", "warning", "problem", "problem", "warning", "ok"]);

    // The survey's calls come first: on every device that opens, all that is taken is given back, and the context that
    // was current is so again.
    let log = std::fs::read_to_string(log).unwrap();
    let opened = |n: u32, locked| format!("retain {n}\ncurrent {n}\n{locked}current 77\nrelease {n}\n");
    let locked = "lock 64\nunlock 0\n";
    let calls = [opened(100, locked), opened(102, ""), opened(103, locked)].concat();
    assert!(log.starts_with(&calls), "{log}");
}

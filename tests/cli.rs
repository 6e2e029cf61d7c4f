//! The command-line tool as its users run it. No time is asserted, but that a run ends.

#![allow(clippy::panic, clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// The longest that a run may take: each takes well under a second.
const LIMIT: Duration = Duration::from_secs(120);

/// A short run with three stages of 1 ms.
const SHORT: &str = "bench --device cpu --steps 4 --batch-size 4 --record-bytes 1000 --workers 2 --decode-us 500 \
                     --link-gbps 0.004 --compute-ms 1";

fn finish(mut child: Child) -> Output {
    let begun = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if begun.elapsed() > LIMIT {
            child.kill().unwrap();
            panic!("it hangs: {:?}", child.wait_with_output());
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    let out = child.wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&out.stderr);
    assert!(!stderr.contains("panicked"), "{stderr}");
    out
}

fn tool() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_warpfeed"));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Runs the tool: its exit status, stdout and stderr.
fn warpfeed(line: &str) -> (Option<i32>, String, String) {
    let out = finish(tool().args(line.split_whitespace()).spawn().unwrap());
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (out.status.code(), text(out.stdout), text(out.stderr))
}

fn json(line: &str) -> (Value, String) {
    let (status, stdout, stderr) = warpfeed(line);
    assert_eq!(status, Some(0), "{line}: {stderr}");
    assert_eq!((stdout.lines().count(), stdout.ends_with('\n')), (1, true), "{stdout}");
    (serde_json::from_str(&stdout).unwrap(), stderr)
}

fn number(found: &Value, key: &str) -> f64 {
    let value = found.get(key).and_then(Value::as_f64);
    value.filter(|v| v.is_finite() && *v >= 0.0).unwrap_or_else(|| panic!("{key} in {found}"))
}

/// The figure of a row of the table.
fn row(table: &str, name: &str) -> f64 {
    let mut words = table.lines().map(|l| l.split_whitespace().collect::<Vec<_>>());
    let figure = words.find(|w| w.len() > 1 && w[0] == name).map(|w| w[1].parse().unwrap());
    figure.unwrap_or_else(|| panic!("no row {name} in\n{table}"))
}

fn agree(found: f64, expected: f64, what: &str) {
    assert!((found - expected).abs() <= 1e-3 * expected.abs() + 1e-4, "{what}: {found} and {expected}");
}

/// What holds in every report.
fn check(found: &Value) {
    let get = |key| number(found, key);
    let (serial, overlapped, ideal) =
        (get("serial_ms_per_step"), get("overlapped_ms_per_step"), get("ideal_ms_per_step"));
    assert_eq!(ideal, get("load_ms").max(get("copy_ms")).max(get("compute_ms")));
    assert!(get("load_ms") > 0.0 && get("copy_ms") > 0.0 && serial > 0.0 && overlapped > 0.0, "{found}");
    match &found["overlap_efficiency"] {
        Value::Null => assert!(serial - ideal < 0.0101 * serial, "{found}"),
        efficiency => {
            assert!(serial - ideal >= 0.0099 * serial, "{found}");
            agree(efficiency.as_f64().unwrap(), (serial - overlapped) / (serial - ideal), "efficiency");
        }
    }
    let steps_per_s = 1e3 / overlapped;
    agree(get("samples_per_s"), get("batch_size") * steps_per_s, "rate");
    // A batch is its records, a mask and padding.
    let bytes = get("gb_per_s") * 1e9 / steps_per_s;
    let records = get("batch_size") * get("record_bytes");
    assert!((records..records + 1024.0).contains(&bytes), "{bytes} bytes a batch of {records}");
    for key in ["first_batch_ms", "stall_ms_per_step", "fill_ms", "drain_ms"] {
        get(key);
    }
    assert!(get("first_batch_ms") >= get("fill_ms"), "{found}");
    assert!(get("stall_ms_per_step") <= overlapped, "{found}");
}

#[test]
fn json_and_table_say_the_same() {
    let (found, table) = json(&format!("{SHORT} --json"));
    check(&found);
    // Waits end late, never early; all that is less is a debt of 2 ms that one wait leaves to those after it.
    assert!(number(&found, "compute_ms") > 0.4, "{found}");
    let rows = [
        ("load", "load_ms"),
        ("copy", "copy_ms"),
        ("compute", "compute_ms"),
        ("serial", "serial_ms_per_step"),
        ("overlapped", "overlapped_ms_per_step"),
        ("ideal", "ideal_ms_per_step"),
        ("rate", "samples_per_s"),
    ];
    for (name, key) in rows {
        agree(row(&table, name), number(&found, key), name);
    }
    if let Some(efficiency) = found["overlap_efficiency"].as_f64() {
        agree(row(&table, "efficiency"), efficiency, "efficiency");
    }
    assert!(table.contains("limit: "), "{table}");
}

#[test]
fn serial_steps_do_not_overlap() {
    // 4 ms for each stage. Noise only adds; were a batch loaded while the last one is copied or computed on, a step
    // would take 8 ms.
    let options =
        "--batch-size 2 --record-bytes 20000 --workers 2 --decode-us 4000 --link-gbps 0.01 --compute-ms 4";
    let (found, _) = json(&format!("bench --json --device cpu --steps 12 {options}"));
    check(&found);
    assert!(number(&found, "serial_ms_per_step") > 11.0, "{found}");
}

#[test]
fn without_json_the_table_is_on_stdout_and_progress_nowhere() {
    let (status, stdout, stderr) = warpfeed(SHORT);
    assert_eq!(status, Some(0), "{stderr}");
    assert!(row(&stdout, "overlapped") > 0.0);
    assert!(!stderr.contains("overlapped") && !stderr.contains(['\r', '\u{1b}']), "{stderr}");
    assert!(!stdout.contains(['\r', '\u{1b}']), "{stdout}");
}

#[test]
fn every_shape_of_a_pipeline_ends() {
    let shapes = [
        "--workers 0",
        "--workers 0 --host-slots 1 --device-slots 1",
        "--workers 1 --host-slots 1 --device-slots 1",
        "--workers 3 --host-slots 4 --device-slots 3 --batch-size 1",
        "--steps 1 --spin --decode-us 10 --compute-ms 0.1",
        "--link-gbps 1",
        "--decode-us 0 --device auto",
    ];
    for shape in shapes {
        // A later option takes the place of an earlier one.
        let line = format!("bench --json --device cpu --steps 3 --batch-size 5 --record-bytes 100 {shape}");
        check(&json(&line).0);
    }
}

#[test]
fn a_ratio_is_in_units_of_10_ms_on_the_cpu_device() {
    let (found, _) = json("bench --json --device cpu --steps 4 --workers 2 --ratio 2:1:0.5");
    check(&found);
    assert_eq!(found["device"], "cpu");
    // Noise only adds; a debt of 2 ms may be taken off.
    for (key, least) in [("load_ms", 17.0), ("copy_ms", 9.0), ("compute_ms", 2.9)] {
        assert!(number(&found, key) > least, "{key} in {found}");
    }
}

#[test]
fn check_runs_all_its_parts_on_the_cpu_device() {
    let line = "check --device cpu --smoke";
    let (status, lines, tables) = warpfeed(&format!("{line} --json"));
    assert_eq!(status, Some(0), "{tables}");
    let lines: Vec<Value> = lines.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    assert!(lines.iter().all(|l| l["device"] == "cpu" && l["error"].is_null()), "{lines:?}");
    let of = |measure: &str| -> Vec<&Value> { lines.iter().filter(|l| l["measure"] == measure).collect() };
    let positive =
        |lines: &[&Value], key| assert!(lines.iter().all(|l| number(l, key) > 0.0), "{key} in {lines:?}");
    let (link, pipeline, stress, steady) = (of("link"), of("pipeline"), of("stress"), of("steady"));
    assert_eq!(link.len() + pipeline.len() + stress.len() + steady.len(), lines.len(), "{lines:?}");
    let sizes: Vec<u64> = link.iter().map(|l| l["bytes"].as_u64().unwrap()).collect();
    assert_eq!(sizes, [1 << 16, 1 << 18, 1 << 20, 1 << 22]);
    positive(&link, "gb_per_s");
    assert_eq!(pipeline.len(), 5);
    positive(&pipeline, "gb_per_s");
    positive(&pipeline, "of_link");
    assert_eq!(stress.len(), 8);
    for shape in stress {
        assert_eq!(shape["mismatches"], 0, "{shape}");
        // Twice all bytes; the last batch of each of the four epochs has fewer rows.
        let full = 2.0 * number(shape, "batches") * number(shape, "batch_size") * number(shape, "row_bytes");
        let compared = number(shape, "bytes_compared");
        assert!(compared < full && compared > 0.7 * full, "{shape}");
    }
    assert_eq!(steady.len(), 2);
    for key in ["batches_per_s", "latency_ms_p50", "copier_us_per_batch"] {
        positive(&steady, key);
    }
    assert!(steady.iter().all(|s| number(s, "latency_ms_p50") <= number(s, "latency_ms_max")), "{steady:?}");

    let (status, on_stdout, stderr) = warpfeed(line);
    assert_eq!((status, stderr.as_str()), (Some(0), ""));
    let heads =
        |text: &str| text.lines().filter(|l| l.contains("batch")).map(String::from).collect::<Vec<_>>();
    assert!(heads(&on_stdout).len() >= 5, "{on_stdout}");
    assert_eq!(heads(&on_stdout), heads(&tables));
}

#[test]
fn records_are_read_from_a_file_again_and_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("records.bin");
    std::fs::write(&path, vec![7; 10 * 300]).unwrap();
    let options = "--record-bytes 300 --batch-size 4 --steps 7 --spin";
    let run = |path: &Path| format!("bench --json --device cpu --records {} {options}", path.display());
    let (found, table) = json(&run(&path));
    check(&found);
    assert!(table.contains("records.bin"), "{table}");

    let refused = |path: &Path, what: &str| {
        let (status, stdout, stderr) = warpfeed(&run(path));
        assert_eq!((status, stdout.as_str()), (Some(1), ""), "{stderr}");
        assert!(stderr.contains(&path.display().to_string()) && stderr.contains(what), "{stderr}");
        assert_eq!(stderr.lines().count(), 1, "{stderr}");
    };
    let odd = folder.path().join("odd.bin");
    std::fs::write(&odd, vec![7; 10 * 300 + 1]).unwrap();
    refused(&odd, "10 records of 300 bytes and 1 bytes more");
    let few = folder.path().join("few.bin");
    std::fs::write(&few, vec![7; 3 * 300]).unwrap();
    refused(&few, "3 records");
    refused(&folder.path().join("none.bin"), "none.bin");
}

#[test]
fn wrong_options_are_refused_with_what_would_be_right() {
    let wrong = [
        ("bench --steps 0", "--steps"),
        ("bench --batch-size none", "--batch-size"),
        ("bench --host-slots 0", "--host-slots"),
        ("bench --device-slots 0", "--device-slots"),
        ("bench --record-bytes 0", "--record-bytes"),
        ("bench --decode-us -1", "--decode-us"),
        ("bench --decode-us 1e300", "0 to"),
        ("bench --compute-ms nan", "0 to"),
        ("bench --link-gbps 0", "above 0"),
        ("bench --device gpu", "auto, cpu, or cuda:N"),
        ("bench --ratio 1:1", "2:1:1"),
        ("bench --ratio 0:0:0", "above 0"),
        ("bench --ratio 1:1:1 --compute-ms 3", "--compute-ms"),
        ("bench --link-gbps 3 --ratio 1:1:1", "--ratio"),
        ("check --device gpu", "auto, cpu, or cuda:N"),
        ("check --steps 3", "--steps"),
        ("bench --source tape", "synthetic"),
        ("bench --records a.bin", "--record-bytes"),
        ("bench --records a.bin --record-bytes 3 --source synthetic", "--source"),
        ("bench --stepz 4", "--steps"),
        ("bunch", "bench"),
        ("", "Usage"),
    ];
    for (line, useful) in wrong {
        let (status, stdout, stderr) = warpfeed(line);
        assert_eq!((status, stdout.as_str()), (Some(2), ""), "{line}: {stderr}");
        assert!(stderr.contains(useful), "{line}: no {useful} in {stderr}");
    }
    let (status, help, _) = warpfeed("bench --help");
    assert_eq!(status, Some(0));
    assert!(help.contains("--decode-us") && help.contains("efficiency ="), "{help}");
}

#[test]
fn a_device_that_there_is_not_is_an_error() {
    // Without a driver, with one that has fewer devices, and where CUDA is not built in.
    for line in [
        "bench --steps 4 --device cuda:99",
        "check --smoke --device cuda:99",
        "check --json --device cuda:99",
    ] {
        let (status, stdout, stderr) = warpfeed(line);
        assert_eq!((status, stdout.as_str()), (Some(1), ""), "{line}: {stderr}");
        assert!(stderr.contains("cuda:99") && stderr.contains("no CUDA"), "{line}: {stderr}");
        assert_eq!(stderr.lines().count(), 1, "{line}: {stderr}");
    }
    let big = "bench --json --device cpu --steps 1 --record-bytes 1073741824 --batch-size 1073741824 --spin";
    let (status, stdout, stderr) = warpfeed(big);
    assert_eq!((status, stdout.as_str()), (Some(1), ""), "a batch that no memory holds: {stderr}");
}

#[test]
fn a_gpus_link_has_its_own_speed() {
    for (line, useful) in [
        ("bench --device cuda:0 --link-gbps 3", "--link-gbps is for --device cpu"),
        ("bench --device cuda:0 --ratio 1:0:1", "--ratio needs a copy above 0"),
    ] {
        let (status, stdout, stderr) = warpfeed(line);
        assert_eq!((status, stdout.as_str()), (Some(1), ""), "{line}: {stderr}");
        assert!(stderr.contains(useful) && stderr.lines().count() == 1, "{line}: {stderr}");
    }
}

#[test]
fn a_reader_that_went_away_is_no_error() {
    let check = "check --device cpu --smoke";
    for line in [SHORT.to_string(), format!("{SHORT} --json"), check.to_string(), format!("{check} --json")] {
        let mut child = tool().args(line.split_whitespace()).spawn().unwrap();
        drop(child.stdout.take());
        assert!(finish(child).status.success(), "{line}");
    }
}

//! `inspect`, `verify` and `bench --images` of the command-line tool, as their users run them.

#![allow(clippy::panic, clippy::unwrap_used, reason = "a test stops at the first surprise")]

#[path = "support/tool.rs"]
mod tool;

use std::fs::File;
use std::path::Path;

use serde_json::Value;
#[cfg(feature = "tar")]
use tool::case;
use tool::{Data, json, warpfeed};

/// The colour of class 0 on a contact sheet.
const RED: [u8; 3] = [255, 64, 64];

/// Class folders with good and bad files.
fn folder(bad: bool) -> Data {
    let data = Data::new();
    data.copy("jpeg/gray.jpg", "a/1.jpg");
    data.copy("jpeg/exif6.jpg", "a/2.jpg");
    data.copy("jpeg/bmp_inside.jpg", "a/3.jpg");
    data.copy("png/adam7.png", "b/4.png");
    std::fs::write(data.at("b/notes.txt"), "no image").unwrap();
    if bad {
        data.copy("jpeg/trunc_half.jpg", "a/half.jpg");
        data.copy("jpeg/zero.jpg", "a/zero.jpg");
        data.copy("jpeg/no_sof.jpg", "b/no_sof.jpg");
        data.copy("jpeg/access_denied.jpg", "b/denied.jpg");
        data.copy("png/trunc_idat.png", "b/cut.png");
        data.copy("png/dims_100000.png", "b/bomb.png");
        std::fs::create_dir(data.at("empty")).unwrap();
    }
    data.seal()
}

/// What `folder(true)` has that is bad.
const BAD: [(&str, &str); 6] = [
    ("a/half.jpg", "Truncated"),
    ("a/zero.jpg", "Empty"),
    ("b/bomb.png", "LimitExceeded"),
    ("b/cut.png", "Truncated"),
    ("b/denied.jpg", "Unsupported"),
    ("b/no_sof.jpg", "Corrupt"),
];

/// One image with two boxes, and one without.
fn boxes() -> Data {
    let data = Data::new();
    data.gray("images/one.png", [200, 100]);
    std::fs::create_dir(data.at("labels")).unwrap();
    std::fs::write(data.at("labels/one.txt"), "0 0.5 0.5 0.5 0.5\n2 0.05 0.1 0.1 0.2\n").unwrap();
    data
}

#[test]
fn verify_names_each_bad_file() {
    let data = folder(true);
    for workers in ["1", "3"] {
        let (status, out, err) = warpfeed(&["verify", data.path(), "--json", "--workers", workers]);
        assert_eq!((status, err.as_str()), (Some(1), ""));
        let lines: Vec<Value> = out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let (summary, bad) = lines.split_last().unwrap();
        let mut named: Vec<(String, &str)> = bad
            .iter()
            .map(|line| {
                let path = Path::new(line["path"].as_str().unwrap());
                assert!(line["index"].is_u64() && !line["message"].as_str().unwrap().is_empty(), "{line}");
                let name = path.strip_prefix(data.path()).unwrap().to_str().unwrap();
                (name.to_string(), line["error"].as_str().unwrap())
            })
            .collect();
        named.sort();
        assert!(named.iter().map(|(name, kind)| (name.as_str(), *kind)).eq(BAD), "{named:?}");
        let get = |key: &str| summary[key].as_u64().unwrap();
        assert_eq!([get("samples"), get("verified"), get("bad"), get("flaws")], [10, 10, 6, 0], "{summary}");
        assert_eq!((get("misnamed"), summary["kinds"]["Truncated"].as_u64()), (1, Some(2)));
        assert_eq!(summary["set"]["empty_classes"][0], "empty");
        assert_eq!(summary["set"]["skipped"][0]["count"], 1, "{summary}");
    }
    let (status, out, _) = warpfeed(&["verify", data.path()]);
    assert_eq!(status, Some(1));
    for (name, kind) in BAD {
        let line =
            out.lines().find(|line| line.contains(name)).unwrap_or_else(|| panic!("no {name} in {out}"));
        assert!(line.starts_with(kind), "{line}");
    }
    assert!(out.contains("4 good, 6 bad") && out.contains("a BMP called .jpg"), "{out}");
}

#[test]
fn the_status_tells_good_from_bad_from_nothing() {
    let data = folder(false);
    assert_eq!(json(&["verify", data.path(), "--json"])["bad"], 0);
    let (status, out, _) = warpfeed(&["verify", data.path()]);
    assert_eq!(status, Some(0));
    assert!(out.contains("all are good"), "{out}");
    let none = format!("{}/none", data.path());
    for words in [["verify", &none], ["verify", "src"], ["verify", "Cargo.toml"]] {
        let (status, out, err) = warpfeed(&words);
        assert_eq!((status, out.as_str(), err.lines().count()), (Some(2), "", 1), "{words:?}: {err}");
        assert!(err.contains("there is") || err.contains("looked for"), "{err}");
    }
    let (status, ..) = warpfeed(&["inspect", &none]);
    assert_eq!(status, Some(2));
}

#[test]
fn verify_names_malformed_labels_by_line_and_reads_their_images_all_the_same() {
    let data = boxes();
    data.copy("jpeg/trunc_half.jpg", "images/two.jpg");
    data.copy("yolo/nan.txt", "labels/two.txt");
    data.gray("images/three.png", [20, 20]);
    data.copy("yolo/class_neg.txt", "labels/three.txt");
    let data = data.seal();
    let (status, out, err) = warpfeed(&["verify", data.path(), "--json"]);
    assert_eq!(status, Some(1), "{err}");
    let lines: Vec<Value> = out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let at = |line: &&Value| {
        let path = Path::new(line["path"].as_str().unwrap()).file_name().unwrap().to_str().unwrap();
        (path.to_string(), line["line"].as_u64())
    };
    let (labels, images): (Vec<_>, Vec<_>) =
        lines[..lines.len() - 1].iter().partition(|line| line["error"] == "InvalidLabel");
    let mut named: Vec<_> = labels.iter().map(at).collect();
    named.sort();
    let expected = [("three.txt", 2), ("two.txt", 1), ("two.txt", 2), ("two.txt", 3)];
    assert_eq!(named, expected.map(|(name, line)| (name.to_string(), Some(line))));
    assert_eq!(images.iter().map(at).collect::<Vec<_>>(), [("two.jpg".to_string(), None)]);
    let summary = lines.last().unwrap();
    assert_eq!((&summary["flaws"], &summary["bad"], &summary["verified"]), (&4.into(), &1.into(), &3.into()));
    assert_eq!(summary["set"]["labels"]["boxes"], 4, "{summary}");
}

/// A shard of three samples, the last two of which are bad.
#[cfg(feature = "tar")]
fn shard<W: std::io::Write>(to: W, number: u32) -> W {
    let read = |name| std::fs::read(case(name)).unwrap();
    let mut archive = tar::Builder::new(to);
    let mut member = |name: &str, bytes: &[u8]| {
        let mut header = tar::Header::new_ustar();
        header.set_size(bytes.len() as u64);
        archive.append_data(&mut header, name, bytes).unwrap();
    };
    member("x.jpg", &read("jpeg/gray.jpg"));
    member("x.cls", b"7");
    member(&format!("y{number}.jpg"), &read("jpeg/trunc_half.jpg"));
    member(&format!("y{number}.cls"), b"7");
    member(&format!("z{number}.jpg"), &read("jpeg/gray.jpg"));
    member(&format!("z{number}.cls"), b"seven");
    archive.into_inner().unwrap()
}

#[cfg(feature = "tar")]
#[test]
fn verify_reads_compressed_shards_in_sequence() {
    let data = Data::new();
    for number in 0..3 {
        let file = File::create(data.at(&format!("{number}.tar.gz"))).unwrap();
        shard(flate2::write::GzEncoder::new(file, flate2::Compression::fast()), number).finish().unwrap();
    }
    let cut = std::fs::read(data.at("1.tar.gz")).unwrap();
    std::fs::write(data.at("1.tar.gz"), &cut[..cut.len() - 200]).unwrap();
    let data = data.seal();
    let pattern = format!("{}/{{0..2}}.tar.gz", data.path());
    for workers in ["1", "3"] {
        let (status, out, err) = warpfeed(&["verify", &pattern, "--json", "--workers", workers]);
        assert_eq!(status, Some(1), "{err}");
        let lines: Vec<Value> = out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let (summary, bad) = lines.split_last().unwrap();
        for (member, error) in
            [("y0", "Truncated"), ("z0", "InvalidLabel"), ("y2", "Truncated"), ("z2", "InvalidLabel")]
        {
            let line =
                bad.iter().find(|line| line["member"] == member).unwrap_or_else(|| panic!("{member}: {out}"));
            assert_eq!(line["error"], error);
            assert_eq!(line["shard"], format!("{}.tar.gz", &member[1..]), "{line}");
        }
        let damage = bad.iter().find(|line| line["shard"] == "1.tar.gz").unwrap();
        assert_eq!(damage["error"], "Truncated", "{damage}");
        assert_eq!(summary["verified"].as_u64().unwrap(), summary["samples"].as_u64().unwrap());
        assert!((7..=9).contains(&summary["verified"].as_u64().unwrap()), "{summary}");
    }
    let one = format!("{}/0.tar.gz", data.path());
    let (status, out, _) = warpfeed(&["verify", &one]);
    assert!(status == Some(1) && out.contains("1 good, 2 bad") && out.contains(&one), "{out}");
}

#[cfg(feature = "tar")]
#[test]
fn verify_names_members_and_damaged_shards() {
    let data = Data::new();
    for number in 0..2 {
        drop(shard(File::create(data.at(&format!("{number}.tar"))).unwrap(), number));
    }
    // The second one is cut in its last member but one.
    let cut = data.at("1.tar");
    let len = cut.metadata().unwrap().len();
    File::options().write(true).open(&cut).unwrap().set_len(len - 1024 - 1024 - 512).unwrap();
    let data = data.seal();
    let (status, out, err) = warpfeed(&["verify", data.path(), "--json"]);
    assert_eq!(status, Some(1), "{err}");
    let lines: Vec<Value> = out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let (summary, bad) = lines.split_last().unwrap();
    let text = |value: &Value| value.as_str().unwrap_or("").to_string();
    let mut named: Vec<_> =
        bad.iter().map(|line| (text(&line["shard"]), text(&line["member"]), text(&line["error"]))).collect();
    named.sort();
    let of = |shard: &str, member: &str| {
        named.iter().find(|n| n.0 == shard && n.1.starts_with(member)).map(|n| n.2.as_str())
    };
    assert_eq!(of("0.tar", "y0"), Some("Truncated"), "{named:?}");
    assert_eq!(of("0.tar", "z0"), Some("InvalidLabel"), "{named:?}");
    assert_eq!(of("1.tar", "y1"), Some("Truncated"), "{named:?}");
    let damage = bad.iter().find(|line| line["shard"] == "1.tar" && line["index"].is_null()).unwrap();
    assert!(damage["error"] == "Truncated" && damage["offset"].is_u64(), "{damage}");
    assert_eq!((named.len(), &summary["flaws"]), (4, &1.into()), "{named:?}");
    assert_eq!((&summary["repeated_keys"], &summary["set"]["damaged"]), (&1.into(), &1.into()), "{summary}");
}

/// Width, height, and the pixels of a PNG.
fn sheet(path: &Path) -> (usize, usize, Vec<[u8; 3]>) {
    let mut reader =
        png::Decoder::new(std::io::BufReader::new(File::open(path).unwrap())).read_info().unwrap();
    let mut bytes = vec![0; reader.output_buffer_size().unwrap()];
    let info = reader.next_frame(&mut bytes).unwrap();
    assert_eq!((info.color_type, info.bit_depth), (png::ColorType::Rgb, png::BitDepth::Eight));
    (info.width as usize, info.height as usize, bytes.as_chunks::<3>().0.to_vec())
}

#[test]
fn a_sheet_shows_boxes_where_the_network_will_see_them() {
    let data = boxes().seal();
    let out = tempfile::tempdir().unwrap();
    let path = out.path().join("sheet.png");
    let found = json(&["inspect", data.path(), "--json", "--sheet", path.to_str().unwrap()]);
    assert_eq!(found["sheet"], path.to_str().unwrap());
    let (width, height, pixels) = sheet(&path);
    // One tile of 640 × 640, a line of text of 12 pixels, and 4 pixels around.
    assert_eq!((width, height), (648, 660));
    let at = |x: usize, y: usize| pixels[(y + 4) * width + x + 4];
    // 200 × 100 pixels become 640 × 320, from line 160 on. The box in the middle is half as wide and high.
    for (x, y) in [(160, 330), (480, 330), (320, 240), (320, 400), (161, 241)] {
        assert_eq!(at(x, y), RED, "at {x}, {y}");
    }
    assert_eq!((at(320, 330), at(330, 170)), ([100; 3], [100; 3]), "in the box and outside of it");
    let around: Vec<_> = (0..640 * 160).map(|i| at(i % 640, i / 640)).collect();
    let of = |colour: [u8; 3]| around.iter().filter(|pixel| **pixel == colour).count();
    assert!(of([114; 3]) > 80_000 && of([60; 3]) > 5000, "the padding is hatched");

    assert_eq!(found["fields"][0]["shape"], serde_json::json!([640, 640, 3]), "{found}");
    assert_eq!(found["fields"][1]["name"], "boxes");
    assert_eq!((&found["formats"]["PNG"], &found["recipe"]), (&1.into(), &"yolo".into()));
    let classes: Vec<_> = found["classes"].as_array().unwrap().iter().map(|c| c["count"].as_u64()).collect();
    assert_eq!(classes, [Some(1), Some(0), Some(1)]);
    // √(100 × 50) and √(20 × 20) pixels.
    assert_eq!((&found["box_size"]["min"], &found["box_size"]["max"]), (&20.into(), &71.into()), "{found}");
    assert_eq!((&found["longer_side"]["max"], &found["samples"]), (&200.into(), &1.into()));
}

#[test]
fn a_sheet_is_a_function_of_its_seed_and_shows_what_is_bad() {
    let data = folder(true);
    let out = tempfile::tempdir().unwrap();
    let draw = |name: &str, seed: &str| {
        let path = out.path().join(name);
        let (status, text, err) = warpfeed(&[
            "inspect",
            data.path(),
            "--sheet",
            path.to_str().unwrap(),
            "--size",
            "9",
            "--seed",
            seed,
        ]);
        assert_eq!(status, Some(0), "{err}");
        assert!(text.contains(path.to_str().unwrap()), "{text}");
        (sheet(&path), text)
    };
    let ((width, height, pixels), text) = draw("a.png", "1");
    // Three by three tiles.
    assert_eq!((width, height), (3 * 228 + 4, 3 * 240 + 4));
    assert!(
        pixels.contains(&[255, 0, 0]),
        "of 9 out of 10 samples, 6 of which are bad, some are crossed out"
    );
    for part in ["image: u8[224, 224, 3]", "label: i64[]", "no images: empty", "median", "a BMP"] {
        assert!(text.contains(part), "no {part} in {text}");
    }
    assert!(pixels == draw("b.png", "1").0.2);
    assert!(pixels != draw("c.png", "2").0.2);
    let (status, _, err) = warpfeed(&["inspect", data.path(), "--sheet", "/nowhere/sheet.png"]);
    assert_eq!(status, Some(2));
    assert!(err.contains("/nowhere/sheet.png"), "{err}");
}

#[test]
fn bench_reads_real_files() {
    let data = folder(false);
    let line = ["bench", "--images", data.path(), "--device", "cpu", "--json", "--workers", "2"];
    let get = |found: &Value, key: &str| {
        found[key].as_f64().filter(|v| v.is_finite()).unwrap_or_else(|| panic!("{key} in {found}"))
    };
    let check = |found: &Value| {
        for key in ["samples_per_s", "cpu_s_per_1000", "rss_open_mb", "rss_peak_mb", "budget_mb"] {
            assert!(get(found, key) > 0.0, "{key} in {found}");
        }
        assert!(get(found, "rss_peak_mb") >= get(found, "rss_open_mb"), "{found}");
        assert_eq!(found["rss_in_ceiling"], true, "{found}");
        // What the processors did for a sample in the time that it took.
        let busy = get(found, "cpu_s_per_1000") / 1e3 * get(found, "load_samples_per_s");
        let cores = std::thread::available_parallelism().unwrap().get() as f64;
        assert!(busy <= cores * 1.1, "{busy} of {cores} processors: {found}");
        // Three slots on the host and two on the CPU device, of 4 samples each unless it says otherwise.
        let row = if found["recipe"] == "yolo" { 640.0 * 640.0 } else { 224.0 * 224.0 } * 3.0 / 1e6;
        let slots = 5.0 * get(found, "batch_size") * row;
        assert!((slots..slots + 0.1).contains(&get(found, "budget_mb")), "{found}");
    };
    let found = json(&[&line[..], &["--samples", "200", "--batch-size", "2"]].concat());
    check(&found);
    assert!(get(&found, "samples") >= 199.0, "{found}");
    assert!(found["overlap_efficiency"].is_null() && found["serial_ms_per_step"].is_null(), "{found}");

    let found = json(&[&line[..], &["--steps", "3", "--recipe", "yolo", "--scaled-decoding"]].concat());
    check(&found);
    assert_eq!((&found["batch_size"], &found["recipe"]), (&4.into(), &"yolo".into()), "{found}");
    for key in ["load_ms", "compute_ms", "serial_ms_per_step", "overlapped_ms_per_step", "ideal_ms_per_step"]
    {
        assert!(get(&found, key) > 0.0, "{key} in {found}");
    }

    let (status, _, err) =
        warpfeed(&[&line[..], &["--samples", "3", "--batch-size", "2", "--workers", "1"]].concat());
    assert_eq!((status, err.contains("unoptimised build")), (Some(0), cfg!(debug_assertions)), "{err}");
    let (_, help, _) = warpfeed(&["bench", "--help"]);
    assert!(help.contains("whole batches are timed"), "{help}");

    let (status, _, err) = warpfeed(&[&line[..], &["--batch-size", "5"]].concat());
    assert!(status == Some(1) && err.contains("4 images") && err.contains("--batch-size"), "{err}");
    let bad = folder(true);
    std::fs::remove_dir(bad.folder.path().join("empty")).unwrap();
    let (status, out, err) =
        warpfeed(&["bench", "--images", bad.path(), "--device", "cpu", "--samples", "50"]);
    assert_eq!((status, out.as_str()), (Some(1), ""));
    assert!(BAD.iter().any(|(name, _)| err.contains(name)) && err.contains("warpfeed verify"), "{err}");
}

#[test]
fn options_that_make_no_sense_are_refused() {
    let wrong: [(&[&str], &str); 6] = [
        (&["bench", "--samples", "3"], "--images"),
        (&["bench", "--images", "x", "--records", "y", "--record-bytes", "3"], "--records"),
        (&["bench", "--images", "x", "--samples", "3", "--steps", "3"], "--steps"),
        (&["bench", "--images", "x", "--recipe", "bread"], "imagenet"),
        (&["inspect", "x", "--size", "3"], "--sheet"),
        (&["verify"], "<PATH>"),
    ];
    for (words, useful) in wrong {
        let (status, out, err) = warpfeed(words);
        assert_eq!((status, out.as_str()), (Some(2), ""), "{words:?}: {err}");
        assert!(err.contains(useful), "{words:?}: no {useful} in {err}");
    }
}

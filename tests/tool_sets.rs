//! What `inspect` and `verify` make of splits, of flaws, of strange names, and of what they are asked to write.

#![allow(clippy::panic, clippy::unwrap_used, reason = "a test stops at the first surprise")]

#[path = "support/tool.rs"]
mod tool;

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::process::{Command, Stdio};

use serde_json::Value;
use tool::{Data, end_of, json, warpfeed};

/// A YOLO set whose split `val` has a cut image, with these lines in its data.yaml.
fn yolo(yaml: &str) -> Data {
    let data = Data::new();
    for split in ["train", "val"] {
        data.gray(&format!("images/{split}/one.png"), [20, 20]);
        std::fs::write(data.at(&format!("labels/{split}/one.txt")), "0 0.5 0.5 0.5 0.5\n").unwrap();
    }
    data.copy("jpeg/trunc_half.jpg", "images/val/half.jpg");
    std::fs::write(data.at("data.yaml"), format!("{yaml}names: [a]\n")).unwrap();
    data
}

/// A COCO set with an image a split.
fn coco() -> Data {
    let data = Data::new();
    for split in ["train2017", "val2017"] {
        data.gray(&format!("{split}/{split}.png"), [20, 20]);
        let annotations = serde_json::json!({
            "images": [{ "id": 1, "file_name": format!("{split}.png"), "width": 20, "height": 20 }],
            "annotations": [{ "id": 1, "image_id": 1, "category_id": 3, "bbox": [2, 2, 9, 9], "iscrowd": 0, "area": 81 }],
            "categories": [{ "id": 3, "name": "c" }],
        });
        std::fs::write(data.at(&format!("annotations/instances_{split}.json")), annotations.to_string())
            .unwrap();
    }
    std::fs::write(data.at("annotations/captions_val2017.json"), "{}").unwrap();
    data
}

const BOTH: &str = "train: images/train\nval: images/val\n";

fn summary(words: &[&str], status: i32) -> Value {
    let (got, out, err) = warpfeed(words);
    assert_eq!(got, Some(status), "{words:?}: {out}{err}");
    serde_json::from_str(out.lines().last().unwrap()).unwrap()
}

#[test]
fn verify_looks_at_all_splits_or_at_the_one_that_is_named() {
    let data = yolo(BOTH).seal();
    let yaml = format!("{}/data.yaml", data.path());
    for path in [data.path(), &yaml] {
        let all = summary(&["verify", path, "--json"], 1);
        assert_eq!(
            (&all["samples"], &all["bad"], &all["verified"]),
            (&3.into(), &1.into(), &3.into()),
            "{all}"
        );
        let splits = all["set"]["splits"].as_array().unwrap();
        let named: Vec<_> = splits.iter().map(|s| (s["split"].as_str(), s["samples"].as_u64())).collect();
        assert_eq!(named, [(Some("train"), Some(1)), (Some("val"), Some(2))]);
        assert_eq!(summary(&["verify", path, "--json", "--split", "train"], 0)["samples"], 1);
        assert_eq!(summary(&["verify", path, "--json", "--split", "val"], 1)["samples"], 2);
    }
    let (_, out, _) = warpfeed(&["verify", data.path(), "--json"]);
    let bad: Value = serde_json::from_str(out.lines().next().unwrap()).unwrap();
    assert_eq!((&bad["split"], &bad["index"]), (&"val".into(), &0.into()), "{bad}");
    let (_, out, _) = warpfeed(&["verify", data.path()]);
    assert!(
        out.contains("split train: ") && out.contains("split val: ") && out.contains("2 good, 1 bad"),
        "{out}"
    );
    for verb in ["verify", "inspect"] {
        let (status, out, err) = warpfeed(&[verb, data.path(), "--split", "tset"]);
        assert_eq!((status, out.as_str()), (Some(2), ""), "{err}");
        assert!(err.contains("no split `tset`") && err.contains("train, val"), "{err}");
    }
}

#[test]
fn verify_looks_at_all_splits_without_a_data_yaml() {
    let data = yolo("");
    std::fs::remove_file(data.at("data.yaml")).unwrap();
    assert_eq!(summary(&["verify", data.path(), "--json"], 1)["samples"], 3);
    let data = coco().seal();
    let all = summary(&["verify", data.path(), "--json"], 0);
    assert_eq!((&all["samples"], &all["set"]["splits"][1]["split"]), (&2.into(), &"val2017".into()), "{all}");
    for name in ["val", "val2017"] {
        let one = summary(&["verify", data.path(), "--json", "--split", name], 0);
        assert!(one["samples"] == 1 && one["found"].as_str().unwrap().contains("instances_val2017"), "{one}");
    }
}

#[test]
fn a_split_that_is_missing_is_a_flaw() {
    let data = yolo("train: images/train\nval: images/gone\n").seal();
    let (status, out, err) = warpfeed(&["verify", data.path(), "--json"]);
    assert_eq!(status, Some(1), "{err}");
    let flaw: Value = serde_json::from_str(out.lines().next().unwrap()).unwrap();
    assert_eq!((&flaw["split"], &flaw["error"]), (&"val".into(), &"Io".into()), "{flaw}");
}

#[test]
fn inspect_names_the_splits_that_it_leaves() {
    for (data, other, samples) in [(yolo(BOTH).seal(), "val", 2), (coco().seal(), "val2017", 1)] {
        let (status, out, err) = warpfeed(&["inspect", data.path()]);
        assert_eq!(status, Some(0), "{err}");
        assert!(out.contains(&format!("not looked at: {other} ")) && out.contains("--split"), "{out}");
        let found = json(&["inspect", data.path(), "--json"]);
        assert_eq!((&found["samples"], &found["other_splits"][0]), (&1.into(), &other.into()), "{found}");
        let found = json(&["inspect", data.path(), "--json", "--split", "val"]);
        assert_eq!(found["samples"], samples, "{found}");
        assert!(found["other_splits"][0].as_str().unwrap().starts_with("train"), "{found}");
    }
}

#[test]
fn a_detection_set_without_training_is_no_folder_of_classes() {
    let data = yolo("val: images/val\n");
    let (status, out, err) = warpfeed(&["inspect", data.path()]);
    assert_eq!((status, out.as_str()), (Some(2), ""), "{err}");
    assert!(err.contains("no split `train`") && err.contains("`--split` takes val"), "{err}");
    let all = summary(&["verify", data.path(), "--json"], 1);
    assert_eq!((&all["samples"], &all["set"]["kind"]), (&2.into(), &"detection".into()), "{all}");
    assert!(all["advice"][0].as_str().unwrap().contains("split(\"val\")"), "{all}");
    std::fs::write(data.folder.path().join("labels/val/one.txt"), "0 9 9\n").unwrap();
    let (_, out, _) = warpfeed(&["verify", data.path()]);
    assert!(out.contains("split(\"val\").on_bad_label(") && out.contains("and load with"), "{out}");
    // One that makes no sense is refused, whatever else lies there.
    for yaml in ["train: images/gone\n", "train: {\n"] {
        let data = yolo(yaml).seal();
        for verb in ["verify", "inspect"] {
            let (status, out, err) = warpfeed(&[verb, data.path()]);
            assert_eq!((status, out.as_str()), (Some(2), ""), "{yaml}: {err}");
        }
    }
    // Folders of parts are refused by the library, and no split of a detection set.
    let parts = Data::new();
    for name in ["train/images/1.png", "val/images/1.png"] {
        parts.gray(name, [8, 8]);
    }
    let (status, out, err) = warpfeed(&["verify", parts.path()]);
    assert_eq!((status, out.as_str()), (Some(2), ""), "{err}");
    let (status, _, err) = warpfeed(&["verify", parts.path(), "--split", "other"]);
    assert_eq!(status, Some(2), "{err}");
}

/// The status of a run whose output nobody reads.
fn unread(words: &[&str]) -> Option<i32> {
    let mut child = Command::new(env!("CARGO_BIN_EXE_warpfeed"));
    child.args(words).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = child.spawn().unwrap();
    drop(child.stdout.take());
    end_of(&mut child).code()
}

#[test]
fn the_verdict_stands_though_nobody_reads_it() {
    let (bad, good) = (yolo(BOTH).seal(), coco().seal());
    let labels = yolo(BOTH);
    std::fs::write(labels.at("labels/train/one.txt"), "0 9 9\n").unwrap();
    for more in [&["--workers", "1"][..], &["--json"]] {
        for (data, status) in [(&bad, 1), (&labels, 1), (&good, 0)] {
            assert_eq!(unread(&[&["verify", data.path()], more].concat()), Some(status));
        }
    }
}

#[test]
fn the_advice_is_what_helps() {
    let labels = yolo("train: images/train\n");
    std::fs::write(labels.at("labels/train/one.txt"), "0 9 9\n").unwrap();
    let none = yolo("train: images/train\n");
    std::fs::remove_file(none.at("labels/train/one.txt")).unwrap();
    let empty = Data::new();
    empty.gray("a/1.png", [8, 8]);
    std::fs::create_dir(empty.at("b")).unwrap();
    let cases = [(&labels, 1, "DropRow"), (&none, 1, "unlabelled(true)"), (&empty, 0, "allow_empty(true)")];
    for (data, status, useful) in cases {
        let (got, out, err) = warpfeed(&["verify", data.path()]);
        assert_eq!(got, Some(status), "{out}{err}");
        assert!(out.contains(useful) && !out.contains("OnError"), "no {useful} in {out}");
        let (got, out, _) = warpfeed(&["inspect", data.path()]);
        assert!(got == Some(0) && out.contains(useful), "no {useful} in {out}");
    }
    let (_, out, _) = warpfeed(&["verify", yolo(BOTH).path()]);
    assert!(out.contains("OnError::Skip") && !out.contains("DropRow"), "{out}");
}

#[test]
fn names_give_the_terminal_no_orders() {
    let data = Data::new();
    for name in ["a\u{1b}[31m\nb/1.jpg", "a\u{1b}[31m\nb/2\u{7}.txt", "c\r/3.png", "d\u{1b}\u{9b}/4.txt"] {
        std::fs::write(data.at(name), "no image").unwrap();
    }
    data.gray("c\r/5.png", [8, 8]);
    let sheet = data.at("c\r/5.png");
    for words in [
        &["verify", data.path()][..],
        &["inspect", data.path()],
        &["inspect", data.path(), "--sheet", sheet.to_str().unwrap()],
        &["bench", "--images", data.path(), "--device", "cpu"],
        &["verify", &format!("{}/\u{1b}[2J", data.path())],
    ] {
        let (_, out, err) = warpfeed(words);
        let text = out + &err;
        assert!(!text.chars().any(|c| c.is_control() && c != '\n'), "{words:?}: {text:?}");
        assert!(!text.contains("\nb/"), "{words:?}: {text:?}");
        assert!(text.contains("\\u{1b}") || text.contains("c\\r"), "{words:?}: {text:?}");
    }
}

#[test]
fn json_has_the_bytes_of_names_that_are_no_text() {
    let data = Data::new();
    data.gray("a/1.png", [8, 8]);
    let name = data.folder.path().join("a").join(OsStr::from_bytes(b"x\xff.png"));
    std::fs::write(&name, "no image").unwrap();
    let (_, out, _) = warpfeed(&["verify", data.path(), "--json"]);
    let bad: Value = serde_json::from_str(out.lines().next().unwrap()).unwrap();
    let bytes: String = name.as_os_str().as_bytes().iter().map(|b| format!("{b:02x}")).collect();
    assert_eq!(bad["path_bytes"], bytes, "{bad}");
    std::fs::write(data.at("a/1.png"), "no image").unwrap();
    let (_, out, _) = warpfeed(&["verify", data.path(), "--json"]);
    let lines = out.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    assert_eq!(lines.filter(|line| line["path_bytes"].is_string()).count(), 1, "{out}");
}

#[test]
fn a_sheet_overwrites_nothing_but_a_sheet() {
    let data = yolo(BOTH);
    let elsewhere = Data::new();
    elsewhere.gray("images/of_list.png", [20, 20]);
    std::fs::write(elsewhere.at("labels/of_list.txt"), "0 0.5 0.5 0.5 0.5\n").unwrap();
    let of_list = elsewhere.at("images/of_list.png");
    std::fs::write(data.at("list/all.txt"), format!("{}\n", of_list.display())).unwrap();
    let list = data.at("list/all.txt");
    let (data, elsewhere) = (data.seal(), elsewhere.seal());

    let out = Data::new();
    std::fs::write(out.at("notes.png"), "no image").unwrap();
    std::fs::write(out.at("empty.png"), "").unwrap();
    std::os::unix::fs::symlink(data.folder.path().join("images/train/one.png"), out.at("link.png")).unwrap();
    let refused = |set: &str, sheet: &std::path::Path, why: &str| {
        let (status, text, err) = warpfeed(&["inspect", set, "--sheet", sheet.to_str().unwrap()]);
        assert_eq!((status, text.as_str()), (Some(2), ""), "{}", sheet.display());
        assert!(err.contains(why), "no {why} in {err}");
    };
    let inside = data.folder.path().join("images/train/one.png");
    for (sheet, why) in [
        (inside, "a file of the data"),
        (out.at("link.png"), "a file of the data"),
        (out.at("notes.png"), "no PNG"),
        (out.at("empty.png"), "no PNG"),
        (out.at("sheet.jpg"), ".png"),
        (out.at("sheet"), ".png"),
    ] {
        refused(data.path(), &sheet, why);
    }
    refused(list.to_str().unwrap(), &of_list, "a file of the data");
    assert_eq!(std::fs::read(out.at("notes.png")).unwrap(), b"no image");
    assert!(!out.at("sheet.jpg").exists());
    let sheet = out.at("sheet.PNG");
    for _ in 0..2 {
        json(&["inspect", data.path(), "--json", "--sheet", sheet.to_str().unwrap()]);
    }
    drop((data, elsewhere));
}

#[test]
fn inspect_tells_how_boxes_lie_in_their_row() {
    let data = yolo(BOTH).seal();
    let (_, out, _) = warpfeed(&["inspect", data.path()]);
    assert!(out.contains("boxes: f32[..=5]: 5 numbers a box") && out.contains("1 at most"), "{out}");
    let (_, out, _) = warpfeed(&["verify", data.path(), "--split", "train"]);
    assert!(out.contains("1 sample read"), "{out}");
}

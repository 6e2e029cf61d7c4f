//! Labels of detection sets, driven by `tests/cases/expectations.json`. The number in a test's name is the row of the list in
//! `docs/FAILURES.md`.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test stops at the first surprise")]

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use warpfeed::source::{Bundle, Detection, DetectionOptions, OnBadLabel, Source, Unit};
use warpfeed::{Error, ErrorKind, Field, Loader, OnError};

#[path = "support/watch.rs"]
mod watch;
use watch::{LONG, device_and_stream, within};

fn cases() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases")
}

/// The files of a row, each with what is expected of it.
fn row(number: u64, files: &[&str], check: impl Fn(&str, &Value)) {
    let text = fs::read_to_string(cases().join("expectations.json")).unwrap();
    let all: Value = serde_json::from_str(&text).unwrap();
    let of_row = |(name, case): &(&String, &Value)| {
        case["case"] == number && (name.starts_with("yolo/") || name.starts_with("coco/"))
    };
    let found: Vec<_> = all["files"].as_object().unwrap().iter().filter(of_row).collect();
    let names: Vec<&str> = found.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, files, "the files of row {number}");
    found.into_iter().for_each(|(name, case)| check(name, case));
}

/// What became of a set under a policy.
#[derive(Debug)]
enum Outcome {
    /// The numbers of each image's boxes, and how many rows were dropped.
    Opened {
        boxes: Vec<Vec<Vec<f64>>>,
        dropped: u64,
    },
    Refused(Error),
}

impl Outcome {
    fn of(opened: warpfeed::Result<Detection>, numbers: fn(u32, [f64; 4]) -> Vec<f64>) -> Self {
        let set = match opened {
            Ok(set) => set,
            Err(error) => return Self::Refused(error),
        };
        let images = set.len().unwrap();
        let counts = set.counts();
        let rows = |i| set.boxes(i).0.iter().map(|b| numbers(b.class, b.corners.map(f64::from))).collect();
        let boxes: Vec<Vec<Vec<f64>>> = (0..images).map(rows).collect();
        let total: usize = boxes.iter().map(Vec::len).sum();
        let background = boxes.iter().filter(|boxes| boxes.is_empty()).count();
        assert_eq!(
            (counts.images, counts.boxes, counts.background()),
            (images, total as u64, background as u64)
        );
        Self::Opened { boxes, dropped: counts.dropped() }
    }

    /// Whether it is what an entry of the expectations says; `wanted` gives the boxes that it says.
    fn is(&self, entry: &Value, wanted: impl Fn(&Value) -> Vec<Vec<Vec<f64>>>) -> bool {
        match (self, entry["status"].as_str().unwrap()) {
            (Self::Refused(error), "error") => {
                let kinds = entry["kinds"].as_array().unwrap();
                let text = error.to_string();
                kinds.iter().any(|kind| *kind == *format!("{:?}", error.kind()))
                    && entry["line"].as_u64() == error.place().line
                    && error.place().path.is_some()
                    && entry["text_has"]
                        .as_array()
                        .is_none_or(|has| has.iter().all(|h| text.contains(h.as_str().unwrap())))
            }
            (Self::Opened { boxes, dropped }, "ok") => {
                let close = |a: &Vec<f64>, b: &Vec<f64>| {
                    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| (a - b).abs() <= 1e-6)
                };
                let same = |a: &Vec<Vec<f64>>, b: &Vec<Vec<f64>>| {
                    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| close(a, b))
                };
                let wanted = wanted(entry);
                wanted.len() == boxes.len()
                    && wanted.iter().zip(boxes).all(|(a, b)| same(a, b))
                    && entry["dropped"].as_u64().unwrap_or(0) == *dropped
            }
            _ => false,
        }
    }
}

fn fits(entry: &Value, policy: &str) -> bool {
    entry["when"].as_str().is_none_or(|when| when.starts_with(&format!("policy={policy}")))
}

fn numbers_of(list: &Value) -> Vec<Vec<f64>> {
    let numbers = |b: &Value| b.as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect();
    list.as_array().unwrap().iter().map(numbers).collect()
}

fn eighty() -> DetectionOptions {
    Detection::options().classes(80)
}

/// A folder with these pairs of image and label file; an image is its name.
fn yolo_set(pairs: &[(&str, Option<&[u8]>)]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("images")).unwrap();
    fs::create_dir(dir.path().join("labels")).unwrap();
    for (name, label) in pairs {
        fs::write(dir.path().join(format!("images/{name}.jpg")), name).unwrap();
        if let Some(label) = label {
            fs::write(dir.path().join(format!("labels/{name}.txt")), label).unwrap();
        }
    }
    dir
}

/// A label file, under each policy.
fn check_yolo(name: &str, case: &Value) {
    let label = fs::read(cases().join(name)).unwrap();
    let dir = yolo_set(&[("a", Some(&label))]);
    let images = dir.path().join("images");
    let centered =
        |class, [l, t, r, b]: [f64; 4]| vec![f64::from(class), (l + r) / 2.0, (t + b) / 2.0, r - l, b - t];
    for (policy, on_bad_label) in [("strict", OnBadLabel::Fail), ("lenient", OnBadLabel::DropRow)] {
        let outcome = Outcome::of(eighty().on_bad_label(on_bad_label).yolo(&images), centered);
        let mut entries = case["expect"].as_array().unwrap().iter().filter(|entry| fits(entry, policy));
        let right = entries.any(|entry| outcome.is(entry, |e| vec![numbers_of(&e["boxes"])]));
        assert!(right, "{name}, {policy}: {outcome:?} is none of {:#}", case["expect"]);
    }
    // The third policy opens the set, and the sample is the error that the first one is.
    let set = eighty().on_bad_label(OnBadLabel::FailSample).yolo(&images).unwrap();
    let read = set.read(0, &mut Bundle::default()).map(|bundle| bundle.boxes().0.to_vec());
    match eighty().yolo(&images) {
        Ok(strict) => {
            assert_eq!(read.unwrap(), strict.boxes(0).0);
            assert_eq!(set.counts(), strict.counts());
        }
        Err(strict) => {
            let error = read.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidLabel);
            assert_eq!((error.place().index, error.place().line), (Some(0), strict.place().line));
            assert!(strict.message().contains(error.message()), "{strict} names {error}");
            assert_eq!((set.counts().bad_images, set.counts().boxes), (1, 0));
        }
    }
}

/// A file of annotations; images are `a.jpg` and `b.jpg` with the ids 1 and 2.
fn check_coco(name: &str, case: &Value) {
    let dir = tempfile::tempdir().unwrap();
    ["a.jpg", "b.jpg"].iter().for_each(|image| fs::write(dir.path().join(image), image).unwrap());
    let set = Detection::coco(cases().join(name), dir.path());
    if let Ok(set) = &set {
        assert_eq!((set.category_ids(), set.names()), (&[1][..], &["c1".to_string()][..]));
        let mut bundle = Bundle::default();
        for index in 0..set.len().unwrap() {
            set.read(index, &mut bundle).unwrap();
            assert_eq!((bundle.boxes(), bundle.boxes().1), (set.boxes(index), Unit::Pixels));
        }
    }
    let outcome = Outcome::of(set, |class, corners| {
        assert_eq!(class, 0);
        corners.to_vec()
    });
    let wanted = |entry: &Value| entry["per_image"].as_object().unwrap().values().map(numbers_of).collect();
    let right = case["expect"].as_array().unwrap().iter().any(|entry| outcome.is(entry, wanted));
    assert!(right, "{name}: {outcome:?} is none of {:#}", case["expect"]);
}

#[test]
fn row_168_images_without_labels_are_background_and_stay() {
    row(168, &["yolo/empty.txt", "yolo/whitespace.txt"], check_yolo);
    let dir = yolo_set(&[("empty", Some(b"")), ("blank", Some(b"  \n\n \t\n")), ("missing", None)]);
    let set = Detection::yolo(dir.path().join("images")).unwrap();
    let counts = set.counts();
    assert_eq!((counts.images, counts.missing_labels, counts.empty_labels, counts.boxes), (3, 1, 2, 0));
    let mut bundle = Bundle::default();
    for (index, name) in ["blank", "empty", "missing"].into_iter().enumerate() {
        let bundle = set.read(index as u64, &mut bundle).unwrap();
        assert_eq!(
            (bundle.member("jpg"), bundle.boxes()),
            (Some(name.as_bytes()), (&[][..], Unit::Fractions))
        );
    }
}

#[test]
fn row_169_one_bad_value_costs_one_row_and_not_the_image() {
    row(169, &["yolo/negative.txt"], check_yolo);
}

#[test]
fn row_170_pixels_values_over_one_and_no_numbers_are_named() {
    row(170, &["yolo/nan.txt", "yolo/over_one.txt", "yolo/pixels.txt"], check_yolo);
}

#[test]
fn row_172_a_polygon_becomes_its_bounding_box() {
    row(172, &["yolo/polygon.txt"], check_yolo);
}

#[test]
fn row_174_a_class_is_a_whole_number_below_the_number_of_classes() {
    let files = ["yolo/class_float.txt", "yolo/class_frac.txt", "yolo/class_neg.txt", "yolo/class_out.txt"];
    row(174, &files, check_yolo);
}

#[test]
fn row_176_a_row_that_is_there_twice_is_kept_once_and_counted() {
    row(176, &["yolo/dup_rows.txt"], check_yolo);
}

#[test]
fn row_177_commas_are_read_and_names_for_classes_refused() {
    row(177, &["yolo/commas.txt", "yolo/names.txt"], check_yolo);
    // What made those runs train with nothing: no label is found at all.
    let dir = yolo_set(&[("a", None), ("b", None)]);
    let error = Detection::yolo(dir.path().join("images")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidLabel);
    assert!(error.message().contains("none of the 2 images has a label file"), "{error}");
}

#[test]
fn row_178_line_ends_blank_tails_and_a_byte_order_mark_change_nothing() {
    row(178, &["yolo/bom.txt", "yolo/crlf.txt", "yolo/trailing_blank.txt"], check_yolo);
}

#[test]
fn row_182_boxes_without_area_are_dropped_and_counted() {
    row(182, &["coco/zero_area.json"], check_coco);
}

#[test]
fn row_184_boxes_are_cut_at_the_image_and_dropped_outside_it() {
    row(184, &["coco/negative.json"], check_coco);
}

/// (image, classes of its boxes) of the samples that a loader delivers, image and label decoded from what the source gave.
fn pairs_of(set: Detection) -> Vec<(u64, Vec<u32>)> {
    let most = 4;
    let (device, stream) = device_and_stream();
    let loader = Loader::builder(set)
        .decode_with([Field::scalar::<u64>("image"), Field::ragged::<u32>("classes", most)], |sample, row| {
            let bundle = sample.read()?;
            let image = std::str::from_utf8(bundle.member("jpg").unwrap_or_default())?.parse()?;
            let classes: Vec<u32> = bundle.boxes().0.iter().map(|b| b.class).collect();
            row.set::<u64>("image", image)?;
            Ok(row.copy_ragged("classes", &classes)?)
        })
        .batch_size(6)
        .shuffle(3)
        .workers(4)
        .on_error(OnError::Skip { limit: 1 })
        .build(&device)
        .unwrap();
    let mut pairs = Vec::new();
    for batch in loader.epoch(&stream).unwrap() {
        let batch = batch.unwrap();
        batch.synchronize().unwrap();
        let images = batch.host::<u64>("image").unwrap();
        for (row, &index) in batch.indices().iter().enumerate().filter(|(row, _)| batch.valid()[*row]) {
            assert_eq!(images[row], index, "the images are sorted by name");
            pairs.push((images[row], batch.host_ragged::<u32>("classes", row).unwrap().to_vec()));
        }
    }
    pairs.sort();
    pairs
}

#[test]
fn row_181_a_bad_label_moves_no_other_label_against_its_image() {
    within(LONG, || {
        let labels: Vec<(String, String)> = (0..20)
            .map(|i| {
                (
                    format!("{i:02}"),
                    format!("{} 0.5 0.5 0.2 0.4\n", if i == 7 { "seven".into() } else { i.to_string() }),
                )
            })
            .collect();
        let pairs: Vec<_> =
            labels.iter().map(|(name, text)| (name.as_str(), Some(text.as_bytes()))).collect();
        let dir = yolo_set(&pairs);
        let images = dir.path().join("images");
        let label = dir.path().join("labels/07.txt");

        let error = eighty().yolo(&images).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidLabel);
        assert_eq!((error.place().path.as_deref(), error.place().line), (Some(&*label), Some(1)));

        let lenient = eighty().on_bad_label(OnBadLabel::DropRow).yolo(&images).unwrap();
        assert_eq!((lenient.counts().bad_rows, lenient.counts().emptied, lenient.counts().boxes), (1, 1, 19));
        let bad = lenient.bad_labels();
        assert_eq!((bad.len(), bad[0].path.as_path(), bad[0].line), (1, &*label, Some(1)));
        let all = |i: u32| (u64::from(i), if i == 7 { vec![] } else { vec![i] });
        assert_eq!(pairs_of(lenient), (0..20).map(all).collect::<Vec<_>>());

        let failing = eighty().on_bad_label(OnBadLabel::FailSample).yolo(&images).unwrap();
        assert_eq!((failing.counts().bad_images, failing.counts().boxes), (1, 19));
        assert_eq!(pairs_of(failing), (0..20).filter(|i| *i != 7).map(all).collect::<Vec<_>>());
    });
}

//! Detection sets as they lie on disks: which one it is, which label is an image's, what is counted.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test stops at the first surprise")]

use std::fs;
use std::path::Path;
use std::process::Command;

use warpfeed::decode::{BoxFormat, Image};
use warpfeed::source::{Bundle, Detection, OnBadLabel, Source, Unit};
use warpfeed::{ErrorKind, Loader};

#[path = "support/watch.rs"]
mod watch;
use watch::{LONG, device_and_stream, within};

/// A folder with these files.
fn set(files: &[(&str, &str)]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    files.iter().for_each(|(name, text)| write(dir.path(), name, text));
    dir
}

fn write(root: &Path, name: &str, text: &str) {
    let path = root.join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

/// The key of each sample, and the classes of its boxes.
fn samples(set: &Detection) -> Vec<(String, Vec<u32>)> {
    let mut bundle = Bundle::default();
    let mut sample = |index| {
        let bundle = set.read(index, &mut bundle).unwrap();
        let (_, bytes) = bundle.members().next().unwrap();
        assert_eq!(std::str::from_utf8(bytes).unwrap(), "image");
        (bundle.key().to_string(), bundle.boxes().0.iter().map(|b| b.class).collect())
    };
    (0..set.len().unwrap()).map(&mut sample).collect()
}

fn pairs(all: &[(&str, &[u32])]) -> Vec<(String, Vec<u32>)> {
    all.iter().map(|(name, classes)| (name.to_string(), classes.to_vec())).collect()
}

const BOX: &str = "0.5 0.5 0.2 0.4\n";

fn class(n: u32) -> String {
    format!("{n} {BOX}")
}

#[test]
fn a_data_yaml_gives_its_splits_and_names() {
    let yaml =
        "path: .\ntrain: images/train\nval: [images/val, more/images]\nnames:\n  0: cat\n  1: dog\nnc: 2\n";
    let dir = set(&[
        ("data.yaml", yaml),
        ("images/train/a.jpg", "image"),
        ("images/train/deep/b.PNG", "image"),
        ("labels/train/a.txt", &class(1)),
        ("labels/train/deep/b.txt", &class(0)),
        ("images/val/c.jpg", "image"),
        ("labels/val/c.txt", &class(0)),
        ("more/images/d.jpg", "image"),
        ("more/labels/d.txt", &class(1)),
    ]);
    for path in [dir.path().to_path_buf(), dir.path().join("data.yaml")] {
        let train = Detection::open(&path).unwrap();
        assert_eq!(
            samples(&train),
            pairs(&[("images/train/a.jpg", &[1]), ("images/train/deep/b.PNG", &[0])])
        );
        assert_eq!((train.names().join(" "), train.classes()), ("cat dog".to_string(), Some(2)));
        assert!(train.found().contains("split train of") && train.found().contains("data.yaml"));
        let place = train.describe(1);
        assert_eq!((place.index, place.path), (Some(1), Some(dir.path().join("./images/train/deep/b.PNG"))));

        let val = Detection::options().split("val").open(&path).unwrap();
        assert_eq!(samples(&val), pairs(&[("images/val/c.jpg", &[0]), ("more/images/d.jpg", &[1])]));
        let error = Detection::options().split("test").open(&path).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(error.message().contains("there are: train, val"), "{error}");
    }

    // The names say how many classes there are.
    write(dir.path(), "labels/train/a.txt", &class(2));
    let error = Detection::open(dir.path()).unwrap_err();
    assert_eq!((error.kind(), error.place().line), (ErrorKind::InvalidLabel, Some(1)));
    assert!(error.message().contains("class 2, but there are 2 classes, 0 to 1"), "{error}");
}

#[test]
fn a_set_that_was_moved_lies_around_its_data_yaml() {
    for yaml in [
        "path: /nowhere/datasets/mine\ntrain: train/images\nnc: 1",
        "train: ../train/images\nnc: 1\nnames: ['x']",
    ] {
        let dir = set(&[
            ("mine/data.yaml", yaml),
            ("mine/train/images/a.jpg", "image"),
            ("mine/train/labels/a.txt", &class(0)),
        ]);
        let set = Detection::open(dir.path().join("mine")).unwrap();
        assert_eq!(samples(&set), pairs(&[("train/images/a.jpg", &[0])]));
        assert_eq!(set.found().contains("/nowhere/datasets/mine, is not there"), yaml.contains("nowhere"));
    }
    let dir = set(&[("data.yaml", "train: gone\n")]);
    let error = Detection::open(dir.path()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Io);
    assert!(error.message().contains(&dir.path().join("gone").display().to_string()), "{error}");
    let dir = set(&[("data.yaml", "train: a\nnames: [x, y]\nnc: 3\n")]);
    let error = Detection::open(dir.path()).unwrap_err();
    assert_eq!((error.kind(), error.message()), (ErrorKind::Corrupt, "`nc` is 3, but there are 2 `names`"));
    let dir = set(&[("data.yaml", "train: a\nnames: [x, y\n")]);
    let error = Detection::open(dir.path()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.place().line.is_some() && error.place().path.is_some(), "{error}");
}

#[test]
fn a_text_file_lists_images() {
    let dir = set(&[
        ("images/a.jpg", "image"),
        ("images/b.jpg", "image"),
        ("images/unlisted.jpg", "image"),
        ("labels/a.txt", &class(4)),
        ("labels/b.txt", &class(5)),
        ("data.yaml", "train: train.txt\nval: val.txt\n"),
    ]);
    let absolute = dir.path().join("images/a.jpg");
    let list = format!("\u{feff}./images/b.jpg\r\n\r\nimages/notes.md\r\n{}\r\n", absolute.display());
    write(dir.path(), "train.txt", &list);
    write(dir.path(), "val.txt", "images/gone.jpg\nimages/a.jpg\n");
    for path in ["data.yaml", "train.txt"] {
        let set = Detection::open(dir.path().join(path)).unwrap();
        assert_eq!(
            samples(&set),
            pairs(&[("images/b.jpg", &[5]), ("images/a.jpg", &[4])]),
            "in the list's order"
        );
        assert_eq!(set.counts().other_files, 1);
    }
    // An image that is not there is an error when it is read, or when the set is opened.
    let open = Detection::options().split("val");
    let set = open.open(dir.path().join("data.yaml")).unwrap();
    let error = set.read(0, &mut Bundle::default()).unwrap_err();
    assert_eq!((error.kind(), error.place().index), (ErrorKind::Io, Some(0)));
    let error = open.check_files(true).open(dir.path().join("data.yaml")).unwrap_err();
    assert!(error.message().contains("1 of 2 images are not there"), "{error}");
    assert_eq!(error.place().path.as_deref(), Some(&*dir.path().join("images/gone.jpg")));
}

#[test]
fn folders_are_recognised_by_what_is_in_them() {
    let label = class(0);
    let a = ("a.jpg", [0].as_slice());
    for (files, expected) in [
        (vec!["images/a.jpg", "labels/a.txt"], "a.jpg"),
        (vec!["images/train/a.jpg", "labels/train/a.txt", "images/val/b.jpg"], "a.jpg"),
        (vec!["train/images/a.jpg", "train/labels/a.txt", "valid/images/b.jpg"], "a.jpg"),
        (vec!["a.jpg", "a.txt"], "a.jpg"),
        (vec!["images/a.jpg", "images/a.txt"], "a.jpg"),
    ] {
        let text =
            |name: &&'static str| (*name, if name.ends_with(".txt") { label.as_str() } else { "image" });
        let dir = set(&files.iter().map(text).collect::<Vec<_>>());
        let set = Detection::open(dir.path()).unwrap_or_else(|e| panic!("{files:?}: {e}"));
        assert_eq!(samples(&set), pairs(&[(expected, a.1)]), "{files:?}");
    }
    let dir = set(&[("images/a.jpg", "image"), ("labels/a.txt", &class(1)), ("classes.txt", "cat\ndog\n")]);
    assert_eq!(Detection::open(dir.path()).unwrap().names(), ["cat", "dog"]);
    let error = Detection::options().split("val").open(dir.path()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    for (files, kind) in [
        (vec![("readme.md", "")], ErrorKind::Unsupported),
        (vec![("images/readme.md", "")], ErrorKind::Empty),
    ] {
        let error = Detection::open(set(&files).path()).unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
    }
    let error = Detection::open(dir.path().join("images/a.jpg")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert_eq!(Detection::open(dir.path().join("gone")).unwrap_err().kind(), ErrorKind::Io);
}

#[test]
fn every_row_is_counted_and_every_file_that_is_no_part_of_the_set() {
    let rows = format!(
        "3 {BOX}3 {BOX}0 0.95 0.5 0.2 0.4\n0 0.9000001 0.5 0.2 0.3\n1 0.5 0.5 0 0.1\n2 .1 .1 .3 .1 .2 .4\n1 1.0005 0.5 0.0001 0.1\n"
    );
    let dir = set(&[
        ("images/a.jpg", "image"),
        ("images/b.jpg", "image"),
        ("images/c.jpg", "image"),
        ("images/d.jpg", "image"),
        ("images/scan.tiff", ""),
        ("images/._a.jpg", ""),
        ("labels/a.txt", &rows),
        ("labels/b.txt", "1 0.5 0.5 0.1 0\n"),
        ("labels/c.txt", "\n"),
        ("labels/gone.txt", &class(1)),
        ("labels/deep/a.txt", &class(1)),
        ("labels/d.TXT", &class(1)),
        ("images/caption.txt", "no label is looked for here"),
        ("labels/classes.txt", "x"),
    ]);
    let set = Detection::yolo(dir.path().join("images")).unwrap();
    let counts = set.counts();
    assert_eq!((counts.images, counts.boxes, counts.dropped(), counts.background()), (4, 4, 4, 3));
    assert_eq!((counts.missing_labels, counts.empty_labels, counts.emptied), (1, 1, 1));
    assert_eq!((counts.duplicates, counts.no_area, counts.outside), (1, 2, 1));
    assert_eq!((counts.clipped, counts.rounded, counts.polygons), (1, 1, 1));
    assert_eq!((counts.orphans, counts.other_files), (3, 3));
    assert_eq!(counts.per_class.iter().map(|(c, n)| (*c, *n)).collect::<Vec<_>>(), [(0, 2), (2, 1), (3, 1)]);
    let lines = [
        "4 images, 4 boxes of 3 classes (from 1 of class 2 to 2 of class 0)",
        "background: 1 images without labels, 1 with an empty label file, 1 whose rows were all dropped",
        "dropped rows: 2 without area, 1 outside the image, 1 duplicates",
        "changed boxes: 1 cut at the image's edge, 1 cut there by rounding, 1 made from polygons",
        "beside them: 3 label files without an image, 3 files that are no image",
    ];
    assert_eq!(counts.to_string(), lines.join("\n"));
    let (boxes, unit) = set.boxes(0);
    assert_eq!((unit, boxes[1].corners[2], boxes[2].corners[2]), (Unit::Fractions, 1.0, 1.0));
    assert_eq!((set.boxes(4).0, set.boxes(u64::MAX).0), (&[][..], &[][..]));
}

#[test]
fn a_refusal_lists_ten_rows_by_file_and_line_and_their_number() {
    let bad = format!("0 {BOX}x {BOX}").repeat(3);
    let files: Vec<(String, &str)> = (0..5)
        .flat_map(|i| [(format!("images/{i}.jpg"), "image"), (format!("labels/{i}.txt"), bad.as_str())])
        .collect();
    let dir = set(&files.iter().map(|(name, text)| (name.as_str(), *text)).collect::<Vec<_>>());
    let error = Detection::open(dir.path()).unwrap_err();
    assert!(error.message().starts_with("15 rows of labels are malformed; the first 10:\n"), "{error}");
    let lines: Vec<&str> = error.message().lines().collect();
    assert_eq!(lines.len(), 12, "{error}");
    for (k, line) in lines[1..11].iter().enumerate() {
        let place =
            format!("{}:{}: ", dir.path().join(format!("labels/{}.txt", k / 3)).display(), 2 * (k % 3) + 2);
        assert!(
            line.trim_start().starts_with(&place) && line.ends_with("the class is \"x\", not a number"),
            "{line}"
        );
    }
    assert_eq!((error.kind(), error.place().line), (ErrorKind::InvalidLabel, Some(2)));
    let set = Detection::options().on_bad_label(OnBadLabel::DropRow).open(dir.path()).unwrap();
    assert_eq!((set.bad_labels().len(), set.counts().bad_rows, set.counts().duplicates), (10, 15, 10));
}

#[test]
fn a_label_file_that_cannot_be_read_is_no_background() {
    let dir = set(&[("images/a.jpg", "image"), ("images/b.jpg", "image"), ("labels/a.txt", &class(0))]);
    fs::create_dir(dir.path().join("labels/b.txt")).unwrap();
    for policy in [OnBadLabel::Fail, OnBadLabel::DropRow, OnBadLabel::FailSample] {
        let error = Detection::options().on_bad_label(policy).open(dir.path()).unwrap_err();
        assert_eq!(
            (error.kind(), error.place().path.as_deref()),
            (ErrorKind::Io, Some(&*dir.path().join("labels/b.txt")))
        );
    }
}

#[test]
fn a_pipe_in_the_place_of_a_file_is_refused_and_not_waited_for() {
    within(LONG, || {
        for name in ["labels/a.txt", "a.json", "a.yaml", "list.txt", "data.yaml"] {
            let dir = set(&[("images/a.jpg", "image")]);
            fs::create_dir(dir.path().join("labels")).unwrap();
            let pipe = dir.path().join(name);
            assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
            let path = if name.starts_with(['l', 'd']) && name != "list.txt" { dir.path() } else { &pipe };
            let error = Detection::open(path).unwrap_err();
            assert_eq!(
                (error.kind(), error.place().path.as_deref()),
                (ErrorKind::Io, Some(&*pipe)),
                "{error}"
            );
        }
    });
}

#[test]
fn links_are_followed_and_one_that_leads_back_is_an_error() {
    let dir = set(&[("store/x/a.jpg", "image"), ("store/y/a.txt", &class(6)), ("set/images/b.jpg", "image")]);
    let root = dir.path().join("set");
    fs::create_dir(root.join("labels")).unwrap();
    std::os::unix::fs::symlink(dir.path().join("store/x"), root.join("images/linked")).unwrap();
    std::os::unix::fs::symlink(dir.path().join("store/y"), root.join("labels/linked")).unwrap();
    let set = Detection::open(&root).unwrap();
    assert_eq!(samples(&set), pairs(&[("b.jpg", &[]), ("linked/a.jpg", &[6])]));
    std::os::unix::fs::symlink(&root, root.join("images/again")).unwrap();
    let error = Detection::open(&root).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Io);
    assert!(error.message().contains("leads back"), "{error}");
}

#[test]
fn the_fingerprint_knows_names_and_boxes_and_not_the_place() {
    let files =
        [("images/a.jpg", "image"), ("labels/a.txt", "0 0.5 0.5 0.2 0.4\n"), ("images/b.jpg", "image")];
    let fingerprint = |dir: &tempfile::TempDir| Detection::open(dir.path()).unwrap().fingerprint();
    let (one, two) = (set(&files), set(&files));
    assert_eq!(fingerprint(&one), fingerprint(&two));
    let before = fingerprint(&two);
    write(two.path(), "labels/a.txt", "0 0.5  0.5 0.20 0.4 \r\n");
    assert_eq!(fingerprint(&two), before, "the same boxes");
    write(two.path(), "labels/a.txt", "0 0.5 0.5 0.2 0.41\n");
    assert_ne!(fingerprint(&two), before);
    fs::remove_file(two.path().join("labels/a.txt")).unwrap();
    write(two.path(), "labels/b.txt", "0 0.5 0.5 0.2 0.4\n");
    assert_ne!(fingerprint(&two), before, "the box is another image's");
    fs::rename(one.path().join("images/b.jpg"), one.path().join("images/c.jpg")).unwrap();
    assert_ne!(fingerprint(&one), before);
}

/// Annotations of images 1 to 3 with the ids 30, 10 and 20 and categories with the ids 90, 1 and 44.
fn coco(annotations: &str) -> String {
    format!(
        r#"{{"info": {{"year": 2017}}, "licenses": [],
        "annotations": [{annotations}],
        "images": [{{"id": 30, "file_name": "x/a.jpg", "width": 100, "height": 50, "license": 3}},
            {{"id": 10, "file_name": "x/b.jpg"}}, {{"id": 20, "file_name": "x/c.jpg", "width": null, "height": 0}}],
        "categories": [{{"id": 90, "name": "brush", "supercategory": "s"}}, {{"id": 1, "name": "person"}}, {{"id": 44}}]}}"#
    )
}

fn annotation(id: u32, image: u32, category: u32, rest: &str) -> String {
    format!(r#"{{"id": {id}, "image_id": {image}, "category_id": {category}, {rest}}}"#)
}

const IMAGES: [(&str, &str); 3] =
    [("train/x/a.jpg", "image"), ("train/x/b.jpg", "image"), ("train/x/c.jpg", "image")];

#[test]
fn coco_categories_become_classes_without_gaps() {
    let json = coco(
        &[
            annotation(
                1,
                20,
                90,
                r#""bbox": [1.5, 2, 3, 4], "segmentation": [[1, 2, 3, 4, 5, 6]], "area": 9, "iscrowd": 0"#,
            ),
            annotation(2, 30, 44, r#""bbox": [10, 20, 5, 5]"#),
            annotation(
                3,
                20,
                1,
                r#""bbox": [0, 0, 5, 5], "iscrowd": 1, "segmentation": {"counts": [1, 2], "size": [9, 9]}"#,
            ),
            annotation(4, 20, 1, r#""bbox": [-2, 0, 5000, 5], "iscrowd": null"#),
            annotation(5, 30, 1, r#""bbox": [90, 40, 10.01, 10], "iscrowd": false"#),
            annotation(6, 30, 1, r#""bbox": [90, 40, 10.01, 10]"#),
            annotation(7, 30, 1, r#""bbox": [100, 10, 10, 10]"#),
        ]
        .join(","),
    );
    let dir = set(&[&IMAGES[..], &[("annotations/instances_train2017.json", &json)]].concat());
    let file = dir.path().join("annotations/instances_train2017.json");
    let set = Detection::open(dir.path()).unwrap();
    assert_eq!(
        (set.category_ids(), set.names().join(" ")),
        (&[1, 44, 90][..], "person 44 brush".to_string())
    );
    assert_eq!(samples(&set), pairs(&[("x/a.jpg", &[1, 0]), ("x/b.jpg", &[]), ("x/c.jpg", &[2, 0])]));
    let corners = |index| set.boxes(index).0.iter().map(|b| b.corners).collect::<Vec<_>>();
    assert_eq!(corners(0), [[10.0, 20.0, 15.0, 25.0], [90.0, 40.0, 100.0, 50.0]]);
    assert_eq!(corners(2), [[1.5, 2.0, 4.5, 6.0], [0.0, 0.0, 4998.0, 5.0]], "the size is not known");
    let counts = set.counts();
    assert_eq!((counts.boxes, counts.crowd, counts.duplicates, counts.outside), (4, 1, 1, 1));
    assert_eq!((counts.missing_labels, counts.clipped, counts.rounded), (1, 1, 2));
    assert!(set.found().contains("instances_train2017.json"), "{}", set.found());

    let all = Detection::options().crowd(true).coco(&file, dir.path().join("train")).unwrap();
    assert_eq!((all.counts().boxes, all.counts().crowd), (5, 0));
    assert_ne!(all.fingerprint(), set.fingerprint());

    fs::remove_file(dir.path().join("train/x/b.jpg")).unwrap();
    let error = Detection::options().check_files(true).open(dir.path()).unwrap_err();
    assert_eq!(
        (error.kind(), error.place().path.as_deref()),
        (ErrorKind::Io, Some(&*dir.path().join("train/x/b.jpg")))
    );
    fs::remove_dir_all(dir.path().join("train")).unwrap();
    let error = Detection::open(&file).unwrap_err();
    assert!(
        error.kind() == ErrorKind::Io && error.message().contains("the images were not found"),
        "{error}"
    );
}

#[test]
fn a_bad_annotation_is_named_by_its_id() {
    let good = annotation(1, 30, 1, r#""bbox": [1, 2, 3, 4]"#);
    let of = |rest: &str| annotation(77, 30, 1, rest);
    for (bad, says) in [
        (annotation(77, 31, 1, r#""bbox": [1, 2, 3, 4]"#), "there is no image 31"),
        (annotation(77, 30, 2, r#""bbox": [1, 2, 3, 4]"#), "there is no category 2"),
        (of(r#""bbox": [1, 2, 3]"#), "a bbox has 4 numbers, this one 3"),
        (of(r#""bbox": [1, 2, 3, 4, 5]"#), "a bbox has 4 numbers, this one 5"),
        (of(r#""bbox": []"#), "this one 0"),
        (of(r#""bbox": null"#), "no bbox"),
        (of(r#""area": 3"#), "no bbox"),
        (of(r#""bbox": [1, 2, -3, 4]"#), "width of its bbox is -3: negative"),
        (of(r#""bbox": [1, 2, 3, -0.5]"#), "height of its bbox is -0.5: negative"),
        (of(r#""bbox": [1, "x", 3, 4]"#), "the y of its bbox is no number of pixels"),
        (of(r#""bbox": [1, null, 3, 4]"#), "the y of its bbox is no number of pixels"),
        (of(r#""bbox": [1, [2], 3, 4]"#), "the y of its bbox is no number of pixels"),
        (of(r#""bbox": [1e300, 2, 3, 4]"#), "the x of its bbox is no number of pixels"),
        (r#"{"id": 77, "category_id": 1, "bbox": [1, 2, 3, 4]}"#.to_string(), "no image_id"),
        (r#"{"id": 77, "image_id": 30, "bbox": [1, 2, 3, 4]}"#.to_string(), "no category_id"),
    ] {
        let json = coco(&format!("{good},{bad}"));
        let dir = set(&[&IMAGES[..], &[("a.json", &json)]].concat());
        let (file, images) = (dir.path().join("a.json"), dir.path().join("train"));
        let error = Detection::coco(&file, &images).unwrap_err();
        assert_eq!(
            (error.kind(), error.place().path.as_deref()),
            (ErrorKind::InvalidLabel, Some(&*file)),
            "{error}"
        );
        assert!(
            error.message().contains("annotation 77 (annotations[1])") && error.message().contains(says),
            "{error}"
        );

        let open = |policy| Detection::options().on_bad_label(policy).coco(&file, &images).unwrap();
        let dropped = open(OnBadLabel::DropRow);
        assert_eq!((dropped.counts().bad_rows, samples(&dropped)[0].1.as_slice()), (1, &[0][..]));
        let failing = open(OnBadLabel::FailSample);
        let read = failing.read(0, &mut Bundle::default()).map(|_| ());
        if says == "there is no image 31" || says == "no image_id" {
            read.unwrap(); // the row is no image's
            assert_eq!((failing.counts().bad_images, failing.counts().boxes), (0, 1));
        } else {
            let error = read.unwrap_err();
            assert_eq!((error.kind(), error.place().index), (ErrorKind::InvalidLabel, Some(0)));
            assert_eq!((failing.counts().bad_images, failing.counts().boxes), (1, 0));
            assert!(failing.read(1, &mut Bundle::default()).is_ok());
        }
    }
}

#[test]
fn an_image_of_another_size_than_its_annotations_say_is_refused() {
    within(LONG, || {
        // 64 x 32 pixels, to be turned by its EXIF orientation.
        let dir = set(&[]);
        let case = |name: &str| Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases/jpeg").join(name);
        fs::copy(case("exif6.jpg"), dir.path().join("a.jpg")).unwrap();
        let (device, stream) = device_and_stream();
        for (size, any_size, good) in [
            (r#""width": 64, "height": 32"#, false, true),
            (r#""width": 32.0, "height": "64""#, false, true),
            (r#""width": 64"#, false, true),
            (r#""width": 128, "height": 64"#, false, false),
            (r#""width": 128, "height": 64"#, true, true),
        ] {
            let json =
                format!(r#"{{"images": [{{"id": 1, "file_name": "a.jpg", {size}}}], "annotations": []}}"#);
            write(dir.path(), "a.json", &json);
            let set = Detection::coco(dir.path().join("a.json"), dir.path()).unwrap();
            let image = Image::rgb8(8, 8).any_size(any_size);
            let loader = Loader::builder(set).decode(image).workers(1).build(&device).unwrap();
            let got = loader.epoch(&stream).unwrap().next().unwrap().map(drop);
            assert_eq!(got.is_ok(), good, "{size}: {got:?}");
            if let Err(error) = got {
                assert_eq!((error.kind(), error.place().index), (ErrorKind::InvalidLabel, Some(0)));
                assert!(error.message().contains("128x64") && error.message().contains("64x32"), "{error}");
            }
        }
    });
}

#[test]
fn an_absolute_name_does_not_change_where_relative_ones_are_looked_for() {
    let dir = set(&[("elsewhere/a.jpg", "image"), ("train/b.jpg", "image")]);
    let absolute = dir.path().join("elsewhere/a.jpg");
    let json = format!(
        r#"{{"images": [{{"id": 1, "file_name": "{}"}}, {{"id": 2, "file_name": "b.jpg"}}]}}"#,
        absolute.display()
    );
    write(dir.path(), "annotations/instances_train.json", &json);
    let open = || Detection::open(dir.path().join("annotations/instances_train.json"));
    let keys = |set: &Detection| samples(set).into_iter().map(|(key, _)| key).collect::<Vec<_>>();
    assert_eq!(keys(&open().unwrap()), [absolute.display().to_string(), "b.jpg".to_string()]);
    fs::remove_file(dir.path().join("train/b.jpg")).unwrap();
    assert_eq!(open().unwrap_err().kind(), ErrorKind::Io);
    write(
        dir.path(),
        "annotations/instances_train.json",
        &json.replace("b.jpg", &absolute.display().to_string().replace("a.jpg", "./a.jpg")),
    );
    assert_eq!(open().unwrap().len(), Some(2), "all names are absolute");
}

#[test]
fn what_is_no_coco_is_said_with_its_place() {
    let image = |id: &str, name: &str| format!(r#"{{"id": {id}, "file_name": "{name}"}}"#);
    let images = |list: &[String]| format!("{{\"images\": [{}]}}", list.join(","));
    for (json, kind, line, says) in [
        ("", ErrorKind::Empty, None, "empty"),
        ("{\"images\": [\n", ErrorKind::Truncated, Some(2), "line 2 column 0"),
        ("{\"images\": [\n{]}", ErrorKind::Corrupt, Some(2), "line 2 column 2"),
        (
            "{\"images\": [], \"annotations\": [{\"bbox\": [NaN, 1, 2, 3]}]}",
            ErrorKind::Corrupt,
            Some(1),
            "column",
        ),
        (
            "{\"images\": [], \"annotations\": [{\"bbox\": [1e400, 1, 2, 3]}]}",
            ErrorKind::Corrupt,
            Some(1),
            "out of range",
        ),
        ("[]", ErrorKind::InvalidLabel, Some(1), "no COCO detection file"),
        ("{\"annotations\": []}", ErrorKind::InvalidLabel, None, "no \"images\""),
        ("{\"images\": []}", ErrorKind::Empty, None, "no images"),
        ("{\"images\": [{\"file_name\": \"a.jpg\"}]}", ErrorKind::InvalidLabel, None, "images[0] has no id"),
        ("{\"images\": [{\"id\": 4}]}", ErrorKind::InvalidLabel, None, "image 4 has no file_name"),
        (
            "{\"images\": [{\"id\": 1.5, \"file_name\": \"a\"}]}",
            ErrorKind::InvalidLabel,
            Some(1),
            "no whole number",
        ),
        (
            &images(&[image("1", "a.jpg"), image("\"1\"", "b.jpg")]),
            ErrorKind::DuplicateKey,
            None,
            "same id, 1",
        ),
        (
            &images(&[image("1", "a.jpg"), image("2", "a.jpg")]),
            ErrorKind::DuplicateKey,
            None,
            "same file_name, \"a.jpg\"",
        ),
        (
            "{\"images\": [], \"categories\": [{\"id\": 7}, {\"id\": 7.0}]}",
            ErrorKind::DuplicateKey,
            None,
            "have the id 7",
        ),
    ] {
        let dir = set(&[("a.json", json)]);
        let file = dir.path().join("a.json");
        let error = Detection::coco(&file, dir.path()).unwrap_err();
        assert_eq!((error.kind(), error.place().line), (kind, line), "{json}: {error}");
        assert!(
            error.message().contains(says) && error.place().path.as_deref() == Some(&*file),
            "{json}: {error}"
        );
    }
    let marked = format!("\u{feff}{}", images(&[image("7.0", "a.jpg")]));
    let dir = set(&[("a.json", &marked), ("a.jpg", "image")]);
    assert_eq!(samples(&Detection::open(dir.path().join("a.json")).unwrap()), pairs(&[("a.jpg", &[])]));
}

/// A white image of 200 × 100 with a black rectangle, as PNG.
fn rectangle([left, top, right, bottom]: [usize; 4]) -> Vec<u8> {
    let black = |i: usize| (left..right).contains(&(i % 200)) && (top..bottom).contains(&(i / 200));
    let pixels: Vec<u8> = (0..200 * 100).map(|i| if black(i) { 0 } else { 255 }).collect();
    let mut bytes = Vec::new();
    let mut encoder = png::Encoder::new(&mut bytes, 200, 100);
    encoder.set_color(png::ColorType::Grayscale);
    encoder.write_header().unwrap().write_image_data(&pixels).unwrap();
    bytes
}

#[test]
fn boxes_arrive_around_what_they_are_around_in_the_image() {
    within(LONG, || {
        let objects = [[50, 20, 100, 60], [0, 0, 30, 40], [120, 70, 200, 100], [10, 10, 190, 90]];
        let dir = tempfile::tempdir().unwrap();
        let (mut images, mut annotations) = (Vec::new(), Vec::new());
        for (i, corners) in objects.into_iter().enumerate() {
            let [l, t, r, b] = corners.map(|x| x as f64);
            fs::write(dir.path().join(format!("{i}.png")), rectangle(corners)).unwrap();
            let row = [i as f64, (l + r) / 400.0, (t + b) / 200.0, (r - l) / 200.0, (b - t) / 100.0];
            write(dir.path(), &format!("{i}.txt"), &row.map(|x| x.to_string()).join(" "));
            images.push(format!(r#"{{"id": {i}, "file_name": "{i}.png", "width": 200, "height": 100}}"#));
            let bbox = [l, t, r - l, b - t];
            annotations
                .push(format!(r#"{{"id": {i}, "image_id": {i}, "category_id": {i}, "bbox": {bbox:?}}}"#));
        }
        let categories =
            (0..objects.len()).map(|i| format!(r#"{{"id": {i}}}"#)).collect::<Vec<_>>().join(",");
        let (images, annotations) = (images.join(","), annotations.join(","));
        let json = format!(
            r#"{{"images": [{images}], "annotations": [{annotations}], "categories": [{categories}]}}"#
        );
        write(dir.path(), "a.json", &json);
        let (device, stream) = device_and_stream();
        for set in [Detection::open(dir.path()).unwrap(), Detection::open(dir.path().join("a.json")).unwrap()]
        {
            let loader = Loader::builder(set)
                .decode(Image::gray8(64, 64).letterbox().boxes_as(BoxFormat::Corners))
                .batch_size(4)
                .build(&device)
                .unwrap();
            let batch = loader.epoch(&stream).unwrap().next().unwrap().unwrap();
            batch.synchronize().unwrap();
            let pixels = batch.host::<u8>("image").unwrap();
            for (row, pixels) in pixels.chunks(64 * 64).enumerate() {
                // The letterbox leaves 16 rows above and below.
                let dark = (0..64 * 64).filter(|i| (16..48).contains(&(i / 64)) && pixels[*i] < 128);
                let extent = dark.fold([64, 64, 0, 0], |[l, t, r, b], i| {
                    let (x, y) = (i % 64, i / 64);
                    [l.min(x), t.min(y), r.max(x + 1), b.max(y + 1)]
                });
                let boxes = batch.host_ragged::<f32>("boxes", row).unwrap();
                let [class, corners @ ..] = &*boxes else { panic!("no box") };
                assert_eq!((*class, corners.len()), (row as f32, 4));
                let near = corners.iter().zip(extent).all(|(a, b)| (a - b as f32).abs() <= 1.0);
                assert!(near, "row {row}: {corners:?} around {extent:?}");
            }
        }
    });
}

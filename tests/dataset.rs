//! What lies at a path, found out and opened.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test stops at the first surprise")]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use tempfile::TempDir;
use warpfeed::source::{self, Bundle, Dataset, Labels, Pictures, Source};
use warpfeed::{Error, ErrorKind};

/// Folders and files; a name that ends with `/` is an empty folder, a label file has one row, any other file holds its name.
fn tree(files: &[&str]) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    for file in files {
        let path = dir.path().join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        match file {
            folder if folder.ends_with('/') => fs::create_dir_all(path).unwrap(),
            label if label.ends_with(".txt") => fs::write(path, "0 .5 .5 .2 .2").unwrap(),
            other => fs::write(path, other).unwrap(),
        }
    }
    dir
}

fn case(path: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases").join(path)
}

/// Every record can be read, and is what the source says that it is.
fn reads(set: &Dataset, len: u64, labels: Labels) {
    assert_eq!((set.len(), set.labels()), (Some(len), labels), "{set}");
    let (mut scratch, indices) = (Bundle::default(), (0..len).collect::<Vec<_>>());
    set.hint(&indices);
    for index in indices {
        let record = set.read(index, &mut scratch).unwrap();
        assert_eq!(set.picture(record).unwrap().bytes, record.members().next().unwrap().1);
        assert_eq!(set.describe(index).index, Some(index));
    }
    assert_eq!(set.read(len, &mut scratch).unwrap_err().kind(), ErrorKind::InvalidArgument);
    assert_eq!(set.fingerprint(), set.fingerprint());
}

fn error(path: impl AsRef<Path>) -> Error {
    source::open(path).map(|set| set.to_string()).unwrap_err()
}

fn says(error: &Error, kind: ErrorKind, parts: &[&str]) {
    assert_eq!(error.kind(), kind, "{error}");
    assert!(error.place().path.is_some(), "{error}");
    parts.iter().for_each(|part| assert!(error.message().contains(part), "{part:?} is not in: {error}"));
}

/// Opening a pipe waits for its writer, which there is none of.
#[test]
fn a_pipe_is_no_data_set() {
    let dir = tree(&["set/"]);
    for name in ["data.yaml", "x.json", "x.txt", "x.tar", "nothing", "set/data.yaml"] {
        let pipe = dir.path().join(name);
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let (sender, receiver) = std::sync::mpsc::channel();
        let path = if name.starts_with("set") { dir.path().join("set") } else { pipe };
        std::thread::spawn(move || sender.send(error(path)));
        let error = receiver.recv_timeout(std::time::Duration::from_secs(60));
        let error = error.unwrap_or_else(|_| panic!("{name}: it waits"));
        assert!(matches!(error.kind(), ErrorKind::Io | ErrorKind::Unsupported), "{name}: {error}");
    }
}

#[test]
fn folders_of_images() {
    let dir = tree(&["cat/1.jpg", "dog/1.jpg", "dog/2.jpg", "about.md", "list.csv"]);
    let set = source::open(dir.path()).unwrap();
    assert!(matches!(set, Dataset::Folder(_)));
    reads(&set, 3, Labels::Class);
    assert!(set.to_string().contains("3 images in 2 classes"), "{set}");

    let set = source::open(dir.path().join("dog")).unwrap();
    assert!(matches!(set, Dataset::Folder(_)));
    reads(&set, 2, Labels::None);
    // A text beside images is no label file, unless it is called as one of them.
    let dir = tree(&["1.jpg", "2.jpg", "readme.txt"]);
    assert!(matches!(source::open(dir.path()).unwrap(), Dataset::Folder(_)));
}

#[cfg(feature = "image")]
#[test]
fn detection_sets() {
    for (files, inside, len) in [
        (&["images/a.jpg", "labels/a.txt"][..], "", 1),
        (&["train/images/a.jpg", "train/labels/a.txt", "val/images/b.jpg", "val/labels/b.txt"], "", 1),
        (&["a.jpg", "a.txt", "b.jpg"], "", 2),
        (&["images/a.jpg", "labels/a.txt", "images/b.png"], "images", 2),
    ] {
        let dir = tree(files);
        let set = source::open(dir.path().join(inside));
        if inside.is_empty() {
            let set = set.unwrap();
            assert!(matches!(set, Dataset::Detection(_)), "{files:?}: {set}");
            reads(&set, len, Labels::Boxes { most: 1 });
            assert!(set.to_string().contains(&format!("{len} images, 1 boxes")), "{set}");
        } else {
            // The images alone: nothing there says that they have labels.
            reads(&set.unwrap(), len, Labels::None);
        }
    }
    let yaml = tree(&["images/a.jpg", "labels/a.txt"]);
    fs::write(yaml.path().join("data.yaml"), "train: images\nnames: [thing]\n").unwrap();
    for path in [yaml.path().to_path_buf(), yaml.path().join("data.yaml")] {
        reads(&source::open(path).unwrap(), 1, Labels::Boxes { most: 1 });
    }
    let coco = tree(&["annotations/", "train2017/a.jpg", "val2017/b.jpg"]);
    let json = r#"{"images": [{"id": 1, "file_name": "a.jpg", "width": 9, "height": 9}], "categories": [{"id": 3, "name": "x"}],
        "annotations": [{"id": 1, "image_id": 1, "category_id": 3, "bbox": [1, 1, 2, 2], "area": 4, "iscrowd": 0}]}"#;
    fs::write(coco.path().join("annotations/instances_train2017.json"), json).unwrap();
    for path in [coco.path().to_path_buf(), coco.path().join("annotations/instances_train2017.json")] {
        let set = source::open(path).unwrap();
        assert!(matches!(set, Dataset::Detection(_)));
        reads(&set, 1, Labels::Boxes { most: 1 });
    }
}

#[cfg(feature = "tar")]
#[test]
fn tar_shards() {
    let whole = case("tar/pax_long.tar");
    let dir = tree(&["notes.md\" is a file"]);
    for name in ["s-00.tar", "s-01.tar", "no-ending"] {
        fs::copy(&whole, dir.path().join(name)).unwrap();
    }
    let open = |path: &str| source::open(dir.path().join(path)).unwrap();
    let one = open("s-00.tar").len().unwrap();
    assert!(one > 0);
    for (path, shards) in [("", 2), ("s-01.tar", 1), ("s-{00..01}.tar", 2), ("no-ending", 1)] {
        let set = open(path);
        assert!(matches!(set, Dataset::Shards(_)), "{path}: {set}");
        assert_eq!(set.len(), Some(shards * one), "{path}");
        set.read(0, &mut Bundle::default()).unwrap();
        assert!(set.to_string().starts_with("tar shards: "), "{set}");
    }
    says(&error(dir.path().join("s-{00..02}.tar")), ErrorKind::Io, &["1 of 3 shards"]);
    says(&error(case("tar/ok.tar.gz")), ErrorKind::Unsupported, &["ShardStream"]);
}

#[test]
fn what_is_not_there_is_told_with_what_is() {
    let dir = tree(&["data/train/a/1.jpg", "data/val/a/1.jpg", "data/notes.md"]);
    let root = dir.path();
    let e = error(root.join("data/tarin"));
    says(&e, ErrorKind::Io, &["no \"tarin\"", "data\"", "train, val, notes.md"]);
    says(&error(root.join("data/vla")), ErrorKind::Io, &["there is val, train, notes.md"]);
    says(&error(root.join("dta/train/a")), ErrorKind::Io, &["no \"dta\"", "there is data"]);
    says(&error(root.join("data/notes.md/x")), ErrorKind::Io, &["notes.md\" is a file"]);
    symlink("nothing", root.join("link")).unwrap();
    says(&error(root.join("link")), ErrorKind::Io, &["link to nothing"]);
}

#[test]
fn parts_of_a_set_and_folders_around_one_are_told_to_be_opened() {
    let dir = tree(&["train/a/1.jpg", "train/b/1.jpg", "val/a/1.jpg", "val/b/1.jpg", "readme.md"]);
    let train = format!("{:?}", dir.path().join("train"));
    says(&error(dir.path()), ErrorKind::InvalidArgument, &["parts of a set", &train]);

    for files in
        [&["set/a/1.jpg", "set/b/1.jpg"][..], &["set/images/1.jpg", "set/labels/1.txt"], &["set/1.tar"]]
    {
        let dir = tree(files);
        let set = format!("open {:?}", dir.path().join("set"));
        says(&error(dir.path()), ErrorKind::InvalidArgument, &["nothing but one folder", &set]);
    }
    // One folder of images is a set of one class.
    assert_eq!(source::open(tree(&["only/1.jpg"]).path()).unwrap().len(), Some(1));
}

#[test]
fn what_is_no_data_set_is_told_with_what_was_looked_for() {
    let sought = ["looked for", "class folders", "tar shards", "data.yaml"];
    let with = |parts: &[&'static str]| [&sought[..], parts].concat();
    says(&error(tree(&[]).path()), ErrorKind::Unsupported, &with(&["nothing"]));
    let dir = tree(&["a/b/c/", "a/b/notes.csv", "d/e/", "table.csv", "other.CSV", "plain"]);
    let e = error(dir.path());
    says(
        &e,
        ErrorKind::Unsupported,
        &with(&["folders (2): a, d", "files (3): 2 .csv, 1 without an extension"]),
    );
    assert!(format!("{:?}", std::error::Error::source(&e)).contains("notes.csv"), "{e:?}");
    says(&error(dir.path().join("table.csv")), ErrorKind::Unsupported, &sought);
    let dir = tree(&["a.jpg"]);
    says(&error(dir.path().join("a.jpg")), ErrorKind::Unsupported, &["one image", "open the folder"]);
}

//! Folders of images as sources: what is found, in which order, what is left out, and an epoch over them.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test stops at the first surprise")]

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use tempfile::TempDir;
use warpfeed::source::{Bundle, ImageFolder, SkipReason, Source, SourceExt};
use warpfeed::{ErrorKind, Field, Loader, OnError};

#[path = "support/watch.rs"]
mod watch;
use watch::{LONG, device_and_stream, within};

fn write(root: &Path, name: impl AsRef<OsStr>) {
    let path = root.join(Path::new(name.as_ref()));
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(&path, path.file_name().unwrap().as_bytes()).unwrap(); // a file holds its name
}

fn tree(files: &[&str]) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    files.iter().for_each(|file| write(dir.path(), file));
    dir
}

fn open(root: &Path) -> ImageFolder {
    let root = root.to_path_buf();
    within(LONG, move || ImageFolder::open(root).unwrap())
}

/// What `torchvision.datasets.ImageFolder` (0.29.2, Python 3.11) lists as `samples` for the tree of the test below.
const TORCHVISION: [(&[u8], i64); 27] = [
    (b"9/_.png", 0),
    (b"Zebra/1.JPG", 1),
    (b"ant/10.jpg", 2),
    (b"ant/2.jpg", 2),
    (b"ant/B.jpeg", 2),
    (b"ant/a.jpg", 2),
    (b"ant/double.tar.jpg", 2),
    (b"ant/link.jpg", 2),
    (b"ant/name with space .png", 2),
    (b"ant/a/x.png", 2),
    (b"ant/a-b/x.png", 2),
    (b"ant/a.b/x.bmp", 2),
    (b"ant/a/deep/y.webp", 2),
    (b"ant/linked/z.jpg", 2),
    (b"ant/linked/\xc3\xa9.bmp", 2),
    (b"ant/linked/\xff.png", 2),
    (b"ant/linked/\xef\xbf\xbd.png", 2),
    (b"ant/linked/\xf0\x9d\x94\xb8.png", 2),
    (b"caf\xe9/1.png", 3),
    (b"zz/1.JPG", 4),
    (b"\xc3\xbcnder/z.jpg", 5),
    (b"\xc3\xbcnder/\xc3\xa9.bmp", 5),
    (b"\xc3\xbcnder/\xff.png", 5),
    (b"\xc3\xbcnder/\xef\xbf\xbd.png", 5),
    (b"\xc3\xbcnder/\xf0\x9d\x94\xb8.png", 5),
    (b"\xef\xbf\xbd/1.png", 6),
    (b"\xf0\x9d\x94\xb8/1.png", 7),
];

#[test]
fn samples_classes_and_order_are_those_of_torchvision() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path();
    // Written backwards, without what lies behind the links, beside files that are no images.
    let is_linked = |name: &[u8]| name.starts_with(b"ant/link") || name.starts_with(b"zz/");
    for (name, _) in TORCHVISION.iter().rev().filter(|(name, _)| !is_linked(name)) {
        write(root, OsStr::from_bytes(name));
    }
    ["Zebra/notes.txt", "ant/nojpg"].iter().for_each(|name| write(root, name));
    symlink("../Zebra/1.JPG", root.join("ant/link.jpg")).unwrap();
    symlink("../ünder", root.join("ant/linked")).unwrap();
    symlink("Zebra", root.join("zz")).unwrap();

    let folder = open(root);
    let samples: Vec<_> =
        folder.samples().map(|(path, class)| (path.as_os_str().as_bytes(), class.unwrap())).collect();
    assert_eq!(samples, TORCHVISION);
    assert_eq!(
        folder.classes(),
        ["9", "Zebra", "ant", "caf\u{fffd}", "zz", "ünder", "\u{fffd}", "\u{1d538}"]
    );
    assert_eq!(folder.class_counts(), [1, 1, 16, 1, 1, 5, 1, 1]);
    let mut scratch = Bundle::default();
    for (i, (name, class)) in TORCHVISION.iter().enumerate() {
        let record = folder.read(i as u64, &mut scratch).unwrap();
        assert_eq!((record.key(), record.class()), (String::from_utf8_lossy(name).as_ref(), Some(*class)));
        let path = fs::canonicalize(root.join(OsStr::from_bytes(name))).unwrap();
        assert_eq!(record.members().next().unwrap().1, path.file_name().unwrap().as_bytes());
    }
}

#[test]
fn what_is_left_out_is_counted_and_named() {
    let dir = tree(&[
        "a/1.jpg",
        "a/._1.jpg",
        "a/.DS_Store",
        "a/2.tif",
        "a/3.TIFF",
        "a/notes.txt",
        "b/1.png",
        "loose.jpg",
        ".cache/1.jpg",
        "__MACOSX/b/1.jpg",
        "b/.ipynb_checkpoints/1-checkpoint.png",
        "b/4.ppm",
        "readme.md",
    ]);
    let root = dir.path();
    symlink("nothing.jpg", root.join("a/broken.jpg")).unwrap();
    symlink("..", root.join("b/up")).unwrap();
    symlink("../b", root.join("b/again")).unwrap();
    let _socket = UnixListener::bind(root.join("a/socket.jpg")).unwrap();
    let folder = open(root);
    assert_eq!((folder.len(), folder.class_counts()), (Some(2), [1, 1].as_slice()));
    let skipped = |reason| {
        let skipped = folder.report().skipped.iter().find(|s| s.reason == reason).unwrap();
        (skipped.count, skipped.first.to_str().unwrap())
    };
    assert_eq!(skipped(SkipReason::Hidden), (5, ".cache"));
    assert_eq!(skipped(SkipReason::Format), (3, "a/2.tif"));
    assert_eq!(skipped(SkipReason::NotAnImage), (2, "a/notes.txt"));
    assert_eq!(skipped(SkipReason::Loose), (1, "loose.jpg"));
    assert_eq!(skipped(SkipReason::BrokenLink), (1, "a/broken.jpg"));
    assert_eq!(skipped(SkipReason::LinkLoop), (2, "b/again"));
    assert_eq!(skipped(SkipReason::Special), (1, "a/socket.jpg"));
    assert_eq!(folder.report().skipped.len(), 7);
    let text = folder.to_string();
    for part in ["2 images in 2 classes, 1 to 1 a class", "5 hidden, the first .cache", "1 a broken link"] {
        assert!(text.contains(part), "{part:?} in {text}");
    }
}

#[test]
fn a_class_without_images_is_an_error_that_names_it_unless_allowed() {
    let dir = tree(&["a/1.jpg", "b/notes.txt", "c/1.jpg"]);
    fs::create_dir(dir.path().join("d")).unwrap();
    let error = ImageFolder::open(dir.path()).unwrap_err();
    assert_eq!((error.kind(), error.place().path.as_deref()), (ErrorKind::InvalidArgument, Some(dir.path())));
    assert!(error.message().contains("2 of 4 classes") && error.message().contains("b, d"), "{error}");
    let folder = ImageFolder::options().allow_empty(true).open(dir.path()).unwrap();
    assert_eq!((folder.class_counts(), folder.classes().len()), ([1, 0, 1, 0].as_slice(), 4));
    assert_eq!(folder.read(1, &mut Bundle::default()).unwrap().class(), Some(2));
    assert!(folder.to_string().contains("2 classes have no images: b, d"), "{folder}");
}

#[test]
fn a_folder_without_images_is_an_error_that_says_what_is_there() {
    let dir = tree(&["a/1.tif", "a/2.tif"]);
    for options in
        [ImageFolder::options(), ImageFolder::options().allow_empty(true), ImageFolder::options().flat(true)]
    {
        let error = options.open(dir.path()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Empty);
        assert!(error.message().contains("no images") && error.message().contains("a/1.tif"), "{error}");
    }
    let empty = tempfile::tempdir().unwrap();
    assert_eq!(ImageFolder::open(empty.path()).unwrap_err().kind(), ErrorKind::Empty);
    for gone in [empty.path().join("gone"), dir.path().join("a/1.tif")] {
        let error = ImageFolder::open(&gone).unwrap_err();
        assert_eq!((error.kind(), error.place().path.as_ref()), (ErrorKind::Io, Some(&gone)));
    }
}

#[test]
fn an_epoch_reads_every_image_with_its_class() {
    within(LONG, || {
        let names: Vec<String> = (0..60).map(|i| format!("class{}/{i:03}.jpg", i % 3)).collect();
        let dir = tree(&names.iter().map(String::as_str).collect::<Vec<_>>());
        let (device, stream) = device_and_stream();
        for workers in [0, 2] {
            let fields = [Field::new::<u8>("name", &[7]), Field::scalar::<i64>("class")];
            let loader = Loader::builder(ImageFolder::open(dir.path()).unwrap())
                .decode_with(fields, |sample, row| {
                    let record = sample.read()?;
                    row.copy("name", record.member("jpg").unwrap_or_default())?;
                    Ok(row.set("class", record.class().unwrap_or(-1))?)
                })
                .shuffle(1)
                .batch_size(16)
                .workers(workers);
            let loader = loader.build(&device).unwrap();
            for _ in 0..2 {
                let mut seen = Vec::new();
                for batch in loader.epoch(&stream).unwrap() {
                    let batch = batch.unwrap();
                    let (names, classes) =
                        (batch.host::<u8>("name").unwrap(), batch.host::<i64>("class").unwrap());
                    for (name, class) in names.chunks(7).zip(classes.iter()).take(batch.indices().len()) {
                        seen.push(format!("class{class}/{}", String::from_utf8_lossy(name)));
                    }
                }
                let mut names = names.clone();
                names.sort();
                seen.sort();
                assert_eq!(seen, names);
            }
        }
    });
}

#[test]
fn files_that_vanish_or_change_are_errors_of_their_samples_alone() {
    within(LONG, || {
        let names: Vec<String> = (0..20).map(|i| format!("a/{i:02}.jpg")).collect();
        let dir = tree(&names.iter().map(String::as_str).collect::<Vec<_>>());
        let folder = ImageFolder::options().max_file_bytes(6).open(dir.path()).unwrap();
        fs::remove_file(dir.path().join(&names[3])).unwrap();
        fs::write(dir.path().join(&names[7]), "too long").unwrap();
        fs::write(dir.path().join(&names[9]), "other!").unwrap(); // as long as the limit lets it be
        fs::remove_file(dir.path().join(&names[11])).unwrap();
        fs::create_dir(dir.path().join(&names[11])).unwrap();
        folder.hint(&(0..20).collect::<Vec<_>>());
        let bad = [(3, ErrorKind::Io), (7, ErrorKind::LimitExceeded), (11, ErrorKind::Io)];
        for (index, kind) in bad {
            let error = folder.read(index, &mut Bundle::default()).unwrap_err();
            let place = (error.place().index, error.place().path.clone());
            assert_eq!(
                (error.kind(), place),
                (kind, (Some(index), Some(dir.path().join(&names[index as usize]))))
            );
        }
        let (device, stream) = device_and_stream();
        let loader = Loader::builder(folder)
            .decode_with([Field::new::<u8>("name", &[6])], |sample, row| {
                Ok(row.copy("name", sample.read()?.member("jpg").unwrap_or_default())?)
            })
            .batch_size(8)
            .workers(2)
            .on_error(OnError::Skip { limit: 3 })
            .build(&device);
        let loader = loader.unwrap();
        let mut seen = Vec::new();
        for batch in loader.epoch(&stream).unwrap() {
            let batch = batch.unwrap();
            let rows = batch.host::<u8>("name").unwrap();
            let rows = rows.chunks(6).zip(batch.valid().iter()).zip(batch.indices());
            seen.extend(rows.map(|((name, valid), index)| valid.then(|| (*index, name.to_vec()))));
        }
        let expected = (0..20u64).map(|i| match i {
            3 | 7 | 11 => None,
            9 => Some((9, b"other!".to_vec())),
            _ => Some((i, names[i as usize].as_bytes()[2..].to_vec())),
        });
        assert_eq!(seen, expected.collect::<Vec<_>>());
    });
}

/// Every path below `root` with its size, time of change and a hash of its bytes.
fn listing(root: &Path) -> BTreeMap<PathBuf, (u64, i64, i64, u64)> {
    let mut all = BTreeMap::new();
    let mut ahead = vec![root.to_path_buf()];
    while let Some(path) = ahead.pop() {
        let meta = fs::symlink_metadata(&path).unwrap();
        let mut hasher = DefaultHasher::new();
        if meta.is_dir() {
            ahead.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        } else if meta.is_file() {
            fs::read(&path).unwrap().hash(&mut hasher);
        }
        all.insert(path, (meta.len(), meta.mtime_nsec(), meta.ctime_nsec(), hasher.finish()));
    }
    all
}

#[test]
fn nothing_is_written_into_the_folder() {
    let dir = tree(&["a/1.jpg", "a/b/2.png", "c/3.jpg", "c/4.tif"]);
    symlink("../c", dir.path().join("a/c")).unwrap();
    let before = listing(dir.path());
    assert_eq!(before.len(), 9);
    let folder = open(dir.path());
    folder.hint(&[0, 1, 2, 3]);
    for index in 0..folder.len().unwrap() {
        folder.read(index, &mut Bundle::default()).unwrap();
    }
    let (part, rest) = folder.split(0.5, 1).unwrap();
    assert_eq!((part.len(), rest.len()), (Some(2), Some(2)));
    assert_eq!(listing(dir.path()), before);
}

/// Prints what opening a million files costs, and what it would cost to ask for the size of each.
#[test]
#[ignore = "a measurement, not a check: run it alone, with --release"]
fn rate() {
    let dir = tempfile::tempdir().unwrap();
    for class in 0..1000 {
        let folder = dir.path().join(format!("n{class:08}"));
        fs::create_dir(&folder).unwrap();
        for i in 0..1000 {
            fs::File::create(folder.join(format!("n{class:08}_{i}.JPEG"))).unwrap();
        }
    }
    let before = watch::resident();
    let start = std::time::Instant::now();
    let folder = ImageFolder::open(dir.path()).unwrap();
    println!(
        "{folder}\nopened in {:.2?}, resident memory + {} MiB",
        start.elapsed(),
        (watch::resident() - before) >> 20
    );
    let start = std::time::Instant::now();
    let bytes: u64 = folder.samples().map(|(path, _)| dir.path().join(path).metadata().unwrap().len()).sum();
    println!("sizes ({bytes} bytes) on one thread in {:.2?}", start.elapsed());
}

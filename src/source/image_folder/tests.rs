use std::fs;
use std::os::unix::fs::symlink;

use super::*;
use crate::source::contract::holds_contract;

fn tree(files: &[&str]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for file in files {
        let path = dir.path().join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, file).unwrap(); // each holds its name
    }
    dir
}

fn bundle(name: &str, extension: &str, class: Option<i64>) -> Bundle {
    let mut bundle = Bundle::default();
    bundle.restart(name);
    bundle.add(extension, name.len()).copy_from_slice(name.as_bytes());
    class.into_iter().for_each(|class| bundle.set_class(class));
    bundle
}

fn holds(source: &ImageFolder, expected: &[Bundle]) {
    holds_contract(source, &expected.iter().collect::<Vec<_>>());
    for (i, bundle) in expected.iter().enumerate() {
        assert_eq!(source.describe(i as u64).path, Some(source.root().join(bundle.key())));
        let (path, class) = source.samples().nth(i).unwrap();
        assert_eq!((path, class), (Path::new(bundle.key()), bundle.class()));
        let picture = source.picture(bundle).unwrap();
        assert_eq!((picture.bytes, picture.class), (bundle.key().as_bytes(), bundle.class()));
    }
}

#[test]
fn class_folders_are_a_source() {
    let dir = tree(&["b/2.PNG", "b/1.jpg", "a/x/y.jpeg"]);
    let source = ImageFolder::open(dir.path()).unwrap();
    holds(
        &source,
        &[
            bundle("a/x/y.jpeg", "jpeg", Some(0)),
            bundle("b/1.jpg", "jpg", Some(1)),
            bundle("b/2.PNG", "png", Some(1)),
        ],
    );
    assert_eq!(
        (source.classes(), source.class_counts()),
        (["a", "b"].map(String::from).as_slice(), [1, 2].as_slice())
    );
    assert_eq!(source.labels(), Labels::Class);
}

#[test]
fn a_flat_folder_is_a_source_without_classes() {
    let dir = tree(&["2.png", "1.jpg", "notes.txt"]);
    let source = ImageFolder::open(dir.path()).unwrap();
    holds(&source, &[bundle("1.jpg", "jpg", None), bundle("2.png", "png", None)]);
    assert_eq!((source.labels(), source.classes().len(), source.class_counts().len()), (Labels::None, 0, 0));

    let dir = tree(&["b/2.png", "1.jpg"]);
    let source = ImageFolder::options().flat(true).open(dir.path()).unwrap();
    holds(&source, &[bundle("1.jpg", "jpg", None), bundle("b/2.png", "png", None)]);
}

#[test]
fn a_list_of_classes_numbers_them_and_keeps_the_order_of_the_samples() {
    let dir = tree(&["ant/1.jpg", "bee/1.jpg"]);
    let options = ImageFolder::options().classes(["bee", "cow", "ant"]);
    let error = options.open(dir.path()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.message().contains("1 of 3 classes") && error.message().contains("cow"), "{error}");
    let source = options.allow_empty(true).open(dir.path()).unwrap();
    holds(&source, &[bundle("ant/1.jpg", "jpg", Some(2)), bundle("bee/1.jpg", "jpg", Some(0))]);
    assert_eq!(
        (source.class_counts(), source.classes().join(" ")),
        ([1, 0, 1].as_slice(), "bee cow ant".to_string())
    );
    assert_eq!(source.report().empty_classes, ["cow"]);

    let error = ImageFolder::options().classes(["bee"]).open(dir.path()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.message().contains("1 of 2 folders") && error.message().contains("ant"), "{error}");
}

#[test]
fn options_that_make_no_sense_are_refused() {
    let dir = tree(&["a/1.jpg"]);
    let options = ImageFolder::options;
    for bad in [
        options().extensions(["jpg", "."]),
        options().extensions([""; 0]),
        options().classes([""; 0]),
        options().classes(["a", "b", "a"]),
        options().classes(["a"]).flat(true),
    ] {
        assert_eq!(bad.open(dir.path()).unwrap_err().kind(), ErrorKind::InvalidConfig, "{bad:?}");
    }
}

#[test]
fn extensions_end_a_name_behind_a_dot_in_any_case() {
    let choose = |options: &ImageFolderOptions, name: &str| options.choose(OsStr::new(name));
    let default = ImageFolder::options();
    for image in ["a.jpg", "a.JpG", "a.b.jpeg", "ä.JFIF", "a.gif", "a..png", "a.txt.webp"] {
        assert_eq!(choose(&default, image), Choice::Take, "{image}");
    }
    for other in ["a.tif", "a.TIFF", "a.ppm", "a.heic"] {
        assert_eq!(choose(&default, other), Choice::Skip(SkipReason::Format), "{other}");
    }
    for not in ["jpg", "ajpg", "a.jpg.txt", "a.jpgx", "a.", "a", "a.jpg~"] {
        assert_eq!(choose(&default, not), Choice::Skip(SkipReason::NotAnImage), "{not}");
    }
    let own = ImageFolder::options().extensions([".TIF", "dat.gz"]);
    for (name, wanted) in [
        ("a.tif", Choice::Take),
        ("a.dat.gz", Choice::Take),
        ("a.gz", Choice::Skip(SkipReason::NotAnImage)),
        ("a.jpg", Choice::Skip(SkipReason::Format)),
    ] {
        assert_eq!(choose(&own, name), wanted, "{name}");
    }
}

#[test]
fn the_fingerprint_knows_names_and_classes_but_not_the_root_or_the_bytes() {
    let files = ["a/1.jpg", "b/2.jpg"];
    let open = |options: ImageFolderOptions, files: &[&str]| {
        let dir = tree(files);
        options.open(dir.path()).unwrap().fingerprint()
    };
    let options = ImageFolder::options;
    let here = open(options(), &files);
    assert_eq!(here, open(options(), &files), "another root");
    let others = [
        open(options(), &["a/1.jpg", "b/3.jpg"]),
        open(options(), &["a/1.jpg", "c/2.jpg"]),
        open(options(), &["a/1.jpg", "a/2.jpg"]),
        open(options(), &["a/1.jpg"]),
        open(options().classes(["b", "a"]), &files),
        open(options().classes(["a", "b", "c"]).allow_empty(true), &files),
        open(options().flat(true), &files),
    ];
    for (i, other) in others.iter().enumerate() {
        assert!(*other != here && !others[..i].contains(other), "case {i}");
    }
    let dir = tree(&files);
    fs::write(dir.path().join(files[0]), "other bytes").unwrap();
    assert_eq!(ImageFolder::open(dir.path()).unwrap().fingerprint(), here);
}

#[test]
fn folders_of_parts_are_not_classes_unless_listed() {
    let dir = tree(&["train/a/1.jpg", "Val/a/1.jpg"]);
    let error = ImageFolder::open(dir.path()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    let train = format!("{:?}", dir.path().join("train"));
    assert!(error.message().contains("parts of a set") && error.message().contains(&train), "{error}");
    assert_eq!(ImageFolder::options().classes(["train", "Val"]).open(dir.path()).unwrap().len(), Some(2));
    let dir = tree(&["train/1.jpg", "val/1.jpg", "extra/1.jpg"]);
    let error = ImageFolder::open(dir.path()).unwrap_err();
    assert!(error.message().contains("/val") && !error.message().contains("/extra"), "{error}");
    let dir = tree(&["train/1.jpg", "tram/1.jpg"]);
    assert_eq!(ImageFolder::open(dir.path()).unwrap().classes(), ["train", "tram"]);
}

#[test]
fn a_link_may_be_the_root_or_a_class() {
    let dir = tree(&["set/a/1.jpg", "elsewhere/2.jpg"]);
    symlink("set", dir.path().join("link")).unwrap();
    symlink("../elsewhere", dir.path().join("set/b")).unwrap();
    let source = ImageFolder::open(dir.path().join("link")).unwrap();
    assert_eq!(source.classes(), ["a", "b"]);
    assert_eq!(
        source.read(1, &mut Bundle::default()).unwrap().members().next(),
        Some(("jpg", &b"elsewhere/2.jpg"[..]))
    );
    let unfollowed = ImageFolder::options().follow_links(false).open(dir.path().join("link")).unwrap();
    assert_eq!(
        (unfollowed.classes(), unfollowed.report().skipped[0].reason),
        (["a".to_string()].as_slice(), SkipReason::Link)
    );
}

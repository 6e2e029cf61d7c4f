//! Which members are the image and the class.

use super::*;

fn both(path: &Path, options: ShardOptions) -> (Shards, ShardStream) {
    (options.clone().open(path).unwrap(), options.stream(path).unwrap())
}

/// The bytes of each sample's image, or what is wrong with it: the same by index and in sequence.
fn images(path: &Path, options: ShardOptions) -> Vec<Result<String, (ErrorKind, String)>> {
    let (shards, stream) = both(path, options);
    let all: Vec<Bundle> = by_index(&shards).into_iter().map(Result::unwrap).collect();
    let seen = |source: &dyn Fn2| {
        let text = |picture: Picture<'_>| String::from_utf8(picture.bytes.to_vec()).unwrap();
        let one =
            |bundle| source.picture_of(bundle).map(text).map_err(|e| (e.kind(), e.message().to_string()));
        all.iter().map(one).collect::<Vec<_>>()
    };
    let images = seen(&shards);
    assert_eq!(images, seen(&stream));
    images
}

fn good(names: &[&str]) -> Vec<Result<String, (ErrorKind, String)>> {
    names.iter().map(|name| Ok((*name).to_string())).collect()
}

fn missing(text: &str) -> Result<String, (ErrorKind, String)> {
    Err((ErrorKind::MissingField, text.to_string()))
}

#[test]
fn the_image_is_the_member_named_for_a_format_alone() {
    let folder = Folder::new();
    let names = ["0.depth.png", "0.jpg", "0.txt", "1.PNG", "1.seg.png", "2.depth.png", "2.seg.png", "3.raw"];
    let members: Vec<_> = names.iter().map(|name| (*name, name.as_bytes())).collect();
    let path = folder.put("x.tar", &archive(&members));
    assert_eq!(images(&path, Shards::options()), good(&["0.jpg", "1.PNG", "2.depth.png", "3.raw"]));

    let named = images(&path, Shards::options().image("seg.png; JPG"));
    assert_eq!(named[..3], good(&["0.jpg", "1.seg.png", "2.seg.png"]));
    assert_eq!(named[3], missing("the sample has no seg.png and no jpg; its members are raw"));
}

#[test]
fn a_sample_without_an_image_says_what_it_has() {
    let folder = Folder::new();
    let members: [(&str, &[u8]); 4] =
        [("0.cls", b"3"), ("1.meta.JSON", b"{}"), ("2.cls", b"1"), ("2.txt", b"a")];
    let path = folder.put("x.tar", &archive(&members));
    let expected = ["cls", "meta.json", "cls, txt"]
        .map(|members| missing(&format!("the sample has no image; its members are {members}")));
    assert_eq!(images(&path, Shards::options().class("")), expected);
}

#[test]
fn one_sample_with_a_class_is_enough_where_all_are_seen() {
    let folder = Folder::new();
    let late: [(&str, &[u8]); 3] = [("0.jpg", b"a"), ("1.jpg", b"b"), ("1.cls", b"7")];
    let path = folder.put("x.tar", &archive(&late));
    let (shards, stream) = both(&path, Shards::options());
    assert_eq!(
        (shards.labels(), stream.labels()),
        (Labels::Class, Labels::None),
        "a stream has seen the first alone"
    );
    assert_eq!(
        images(&path, Shards::options().class("cls")),
        [missing("the sample has no \"cls\"; it has jpg"), Ok("b".to_string())]
    );
    for promised in [Shards::options().class("CLS"), Shards::options().require(["cls"])] {
        let (shards, stream) = both(&path, promised);
        assert_eq!((shards.labels(), stream.labels()), (Labels::Class, Labels::Class));
    }
    let (shards, stream) = both(&path, Shards::options().class(""));
    assert_eq!((shards.labels(), stream.labels()), (Labels::None, Labels::None));

    let other: [(&str, &[u8]); 2] = [("0.jpg", b"a"), ("0.label", b" 12\n")];
    let (shards, stream) = both(&folder.put("y.tar", &archive(&other)), Shards::options().class("label"));
    let bundle = by_index(&shards).remove(0).unwrap();
    assert_eq!(shards.picture(&bundle).unwrap().class, Some(12));
    let bundle = in_sequence(&stream).remove(0).unwrap();
    assert_eq!(stream.picture(&bundle).unwrap().class, Some(12));
}

#[test]
fn a_folder_of_plain_and_compressed_shards() {
    let folder = Folder::new();
    folder.put("a.tar", &shard(0, 3));
    folder.put("b.tgz", &gzip(&shard(3, 2)));
    let shards = Shards::open(folder.0.path()).unwrap();
    assert_eq!((shards.len(), shards.report().packed()), (Some(3), 1));
    assert!(shards.report().to_string().ends_with("; left out: 1 compressed shard"), "{}", shards.report());
    assert_eq!(in_sequence(&ShardStream::open(folder.0.path()).unwrap()).len(), 5);
    fs::remove_file(folder.path("a.tar")).unwrap();
    let e = Shards::open(folder.0.path()).unwrap_err();
    assert_eq!((e.kind(), e.place().shard.as_deref()), (ErrorKind::Unsupported, Some("b.tgz")), "{e}");
}

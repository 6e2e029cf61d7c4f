//! Both ways of reading shards, on archives that the `tar` crate writes.

use std::collections::HashSet;
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use tar::{Builder, EntryType, Header};

use super::index;
use super::walk::{Input, Kind, Walk};
use super::*;
use crate::source::contract::{holds_contract, holds_sequence_contract, within};
use crate::source::{Pictures, Source, SourceExt};

mod damage;
mod kept;
mod roles;

/// An archive with these members.
fn archive(members: &[(&str, &[u8])]) -> Vec<u8> {
    let mut builder = Builder::new(Vec::new());
    for (name, bytes) in members {
        append(&mut builder, EntryType::Regular, name, bytes);
    }
    builder.into_inner().unwrap()
}

fn append(builder: &mut Builder<Vec<u8>>, what: EntryType, name: &str, bytes: &[u8]) {
    let mut header = Header::new_gnu();
    header.set_entry_type(what);
    header.set_size(bytes.len() as u64);
    header.set_mode(0o644);
    builder.append_data(&mut header, name, bytes).unwrap();
}

/// Members of `n` samples from `first` on, each of three parts: the sizes differ, and are whole blocks too.
fn members(first: usize, n: usize) -> Vec<(String, Vec<u8>)> {
    let bytes = |i: usize, len: usize| (0..len).map(|k| (i * 31 + k * 7) as u8).collect::<Vec<u8>>();
    let one = |i: usize| {
        let cls = format!(" {}\n", i % 10).into_bytes();
        [("jpg", bytes(i, [0, 511, 512, 513, 2000][i % 5])), ("cls", cls), ("seg.png", bytes(i + 1, 30))]
            .map(|(field, bytes)| (format!("d{}/{i:06}.{field}", i % 2), bytes))
    };
    (first..first + n).flat_map(one).collect()
}

fn shard(first: usize, n: usize) -> Vec<u8> {
    let members = members(first, n);
    archive(&members.iter().map(|(name, bytes)| (name.as_str(), bytes.as_slice())).collect::<Vec<_>>())
}

fn bundle(key: &str, parts: &[(&str, &[u8])]) -> Bundle {
    let mut bundle = Bundle::default();
    bundle.restart(key);
    for (name, bytes) in parts {
        bundle.add(name, bytes.len()).copy_from_slice(bytes);
    }
    Rules::default().note_class(&mut bundle);
    bundle
}

/// What [`shard`] holds.
fn bundles(first: usize, n: usize) -> Vec<Bundle> {
    let members = members(first, n);
    let one = |three: &[(String, Vec<u8>)]| {
        let split = |name: &str| name.split_once('.').map(|(k, f)| (k.to_string(), f.to_string())).unwrap();
        let parts: Vec<_> = three.iter().map(|(name, bytes)| (split(name).1, bytes.as_slice())).collect();
        let parts: Vec<_> = parts.iter().map(|(name, bytes)| (name.as_str(), *bytes)).collect();
        bundle(&split(&three[0].0).0, &parts)
    };
    members.chunks(3).map(one).collect()
}

struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn put(&self, name: &str, bytes: &[u8]) -> PathBuf {
        fs::write(self.path(name), bytes).unwrap();
        self.path(name)
    }

    fn names(&self) -> Vec<String> {
        let mut names: Vec<String> =
            fs::read_dir(&self.0).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gz.write_all(bytes).unwrap();
    gz.finish().unwrap()
}

fn zstd(bytes: &[u8]) -> Vec<u8> {
    zstd::stream::encode_all(bytes, 1).unwrap()
}

fn by_index(source: &Shards) -> Vec<Result<Bundle>> {
    let mut scratch = Bundle::default();
    (0..source.len().unwrap()).map(|i| source.read(i, &mut scratch).cloned()).collect()
}

fn in_sequence(source: &ShardStream) -> Vec<Result<Bundle>> {
    assert!(source.open(0).unwrap());
    let mut all = Vec::new();
    let mut scratch = Bundle::default();
    loop {
        match source.pull(&mut scratch) {
            Ok(true) => all.push(Ok(source.read(0, &mut scratch).unwrap().clone())),
            Ok(false) => return all,
            Err(e) => all.push(Err(e)),
        }
    }
}

/// Bundles, and the kinds of errors.
fn kinds(got: Vec<Result<Bundle>>) -> Vec<Result<Bundle, ErrorKind>> {
    got.into_iter().map(|one| one.map_err(|e| e.kind())).collect()
}

#[test]
fn both_hold_the_contract_of_sources() {
    let folder = Folder::new();
    let paths = [
        folder.put("a.tar", &shard(0, 7)),
        folder.put("b.tar", &shard(7, 1)),
        folder.put("c.tar", &shard(8, 9)),
    ];
    let expected = bundles(0, 17);
    let expected: Vec<&Bundle> = expected.iter().collect();
    let shards = Shards::open_all(&paths).unwrap();
    holds_contract(&shards, &expected);
    assert_eq!(
        (shards.labels(), shards.read(3, &mut Bundle::default()).unwrap().class()),
        (Labels::Class, Some(3))
    );
    holds_sequence_contract(&ShardStream::open_all(&paths).unwrap(), &expected);
    let packed = [folder.put("a.tgz", &gzip(&shard(0, 7))), folder.put("b.tar.zst", &zstd(&shard(7, 10)))];
    holds_sequence_contract(&ShardStream::open_all(packed).unwrap(), &expected);
    holds_contract(
        &Shards::open(folder.path("{a,b,c}.tar")).unwrap().subset([16, 0]).unwrap(),
        &[expected[16], expected[0]],
    );
}

#[test]
fn places_name_shard_member_and_offset() {
    let folder = Folder::new();
    folder.put("a.tar", &shard(0, 2));
    let b = folder.put("b.tar", &shard(2, 2));
    let shards = Shards::open(folder.path("{a,b}.tar")).unwrap();
    let place = shards.describe(2);
    assert_eq!((place.shard.as_deref(), place.path.as_deref()), (Some("b.tar"), Some(b.as_path())));
    assert_eq!((place.member.as_deref(), place.offset, place.index), (Some("d0/000002"), Some(512), Some(2)));
    let in_turn = in_sequence(&ShardStream::open(&b).unwrap()).remove(0).unwrap().place();
    assert_eq!((in_turn.shard, in_turn.path, in_turn.member), (place.shard, place.path, place.member));
    fs::write(&b, &shard(2, 2)[..1200]).unwrap();
    let e = shards.read(3, &mut Bundle::default()).unwrap_err();
    assert_eq!((e.kind(), e.place().index), (ErrorKind::Truncated, Some(3)));
    assert_eq!((e.place().shard.as_deref(), e.place().member.as_deref()), (Some("b.tar"), Some("d1/000003")));
}

#[test]
fn members_far_apart_are_read_by_themselves() {
    let folder = Folder::new();
    let mut builder = Builder::new(Vec::new());
    append(&mut builder, EntryType::Regular, "1.a", b"one");
    append(&mut builder, EntryType::Regular, "no extension", &[7; 60_000]);
    append(&mut builder, EntryType::Regular, "1.b", b"two");
    append(&mut builder, EntryType::Regular, "1.c", b"");
    let path = folder.put("x.tar", &builder.into_inner().unwrap());
    let shards = Shards::open(&path).unwrap();
    let mut scratch = Bundle::default();
    let expected = bundle("1", &[("a", b"one"), ("b", b"two"), ("c", b"")]);
    assert_eq!(shards.read(0, &mut scratch).unwrap(), &expected);
    assert!(scratch.filled() < 2000, "{} bytes were read for 6", scratch.filled());
    assert_eq!(
        shards.report().to_string(),
        "1 shard, 1 sample, 6 bytes; members: a 1, b 1, c 1; skipped: no extension 1"
    );
    assert_eq!(
        (shards.labels(), kinds(in_sequence(&ShardStream::open(&path).unwrap()))),
        (Labels::None, vec![Ok(expected)])
    );
}

#[test]
fn a_class_is_an_integer_that_every_sample_has() {
    let folder = Folder::new();
    let path = folder.put(
        "x.tar",
        &archive(&[("1.jpg", b"x"), ("1.cls", b"-3\n"), ("2.jpg", b"y"), ("2.cls", b"dog"), ("3.jpg", b"z")]),
    );
    let (shards, stream) = (Shards::open(&path).unwrap(), ShardStream::open(&path).unwrap());
    assert_eq!((shards.labels(), stream.labels()), (Labels::Class, Labels::Class));
    let all: Vec<Bundle> = by_index(&shards).into_iter().map(Result::unwrap).collect();
    let first = shards.picture(&all[0]).unwrap();
    assert_eq!((first.bytes, first.class), (b"x".as_slice(), Some(-3)));
    for source in [&shards as &dyn Fn2, &stream] {
        let e = source.picture_of(&all[1]).unwrap_err();
        assert!(e.kind() == ErrorKind::InvalidLabel && e.message().contains("\"dog\""), "{e}");
        let e = source.picture_of(&all[2]).unwrap_err();
        assert_eq!((e.kind(), e.place().member.as_deref()), (ErrorKind::MissingField, Some("3")));
    }
}

trait Fn2 {
    fn picture_of<'r>(&self, bundle: &'r Bundle) -> Result<Picture<'r>>;
}
impl<P: Pictures<Record = Bundle>> Fn2 for P {
    fn picture_of<'r>(&self, bundle: &'r Bundle) -> Result<Picture<'r>> {
        self.picture(bundle)
    }
}

#[test]
fn a_sample_that_cannot_be_had_is_one_error_in_its_place() {
    let folder = Folder::new();
    let path = folder.put(
        "x.tar",
        &archive(&[
            ("1.a", b"1"),
            ("1.b", b"1"),
            ("2.a", b"2"),
            ("2.b", b"2"),
            ("2.A", b"again"),
            ("3.a", &[3; 600]),
            ("3.b", &[3; 600]),
            ("4.a", b"4"),
            ("5.a", b"5"),
            ("5.b", b"5"),
            ("1.a", b"later"),
            ("1.b", b"later"),
        ]),
    );
    let options = || Shards::options().require(["a", "b"]).max_sample_bytes(1000);
    let shards = options().open(&path).unwrap();
    for got in [by_index(&shards), in_sequence(&options().stream(&path).unwrap())] {
        let faults: Vec<_> = got.iter().filter_map(|one| one.as_ref().err()).cloned_places();
        assert_eq!(
            kinds(got),
            [
                Ok(bundle("1", &[("a", b"1"), ("b", b"1")])),
                Err(ErrorKind::DuplicateKey),
                Err(ErrorKind::LimitExceeded),
                Err(ErrorKind::MissingField),
                Ok(bundle("5", &[("a", b"5"), ("b", b"5")])),
                Ok(bundle("1", &[("a", b"later"), ("b", b"later")])),
            ]
        );
        assert!(faults.iter().all(|(place, _)| place.shard.as_deref() == Some("x.tar")), "{faults:?}");
        assert!(faults[2].1.contains("\"b\"") && faults[2].0.member.as_deref() == Some("4"), "{faults:?}");
    }
    assert_eq!(shards.report().samples(), 6);
}

trait Places<'e> {
    fn cloned_places(self) -> Vec<(Place, String)>;
}
impl<'e, I: Iterator<Item = &'e Error>> Places<'e> for I {
    fn cloned_places(self) -> Vec<(Place, String)> {
        self.map(|e| (e.place().clone(), e.message().to_string())).collect()
    }
}

struct Slice<'a> {
    bytes: &'a [u8],
    at: usize,
}
impl Input for Slice<'_> {
    fn fill(&mut self, to: &mut [u8]) -> Result<usize> {
        let n = to.len().min(self.bytes.len() - self.at);
        to[..n].copy_from_slice(&self.bytes[self.at..self.at + n]);
        self.at += n;
        Ok(n)
    }
    fn skip(&mut self, bytes: u64) -> Result<u64> {
        let n = (bytes as usize).min(self.bytes.len() - self.at);
        self.at += n;
        Ok(n as u64)
    }
    fn len(&self) -> Option<u64> {
        Some(self.bytes.len() as u64)
    }
}

#[test]
fn extended_headers_with_newlines_sizes_and_sparse_maps() {
    let folder = Folder::new();
    let mut builder = Builder::new(Vec::new());
    builder
        .append_pax_extensions([("SCHILY.xattr.a", b"\n\n12 b=c\n".as_slice()), ("path", b"p/1.a")])
        .unwrap();
    append(&mut builder, EntryType::Regular, "short", b"one");
    builder.append_pax_extensions([("size", b"5".as_slice())]).unwrap();
    // The header's own size is what fits 11 octal digits; here it is wrong.
    let mut header = Header::new_ustar();
    header.set_path("2.a").unwrap();
    header.set_size(0);
    header.set_cksum();
    builder.append(&header, b"".as_slice()).unwrap();
    let mut bytes = builder.into_inner().unwrap();
    bytes.truncate(bytes.len() - 1024);
    bytes.extend(b"three");
    bytes.resize(bytes.len().next_multiple_of(512), 0);
    let mut builder = Builder::new(Vec::new());
    let sparse = [
        ("GNU.sparse.major", b"1".as_slice()),
        ("GNU.sparse.name", b"3.a"),
        ("path", b"GNUSparseFile.0/3.a"),
    ];
    builder.append_pax_extensions(sparse).unwrap();
    append(&mut builder, EntryType::Regular, "GNUSparseFile.0/3.a", b"map and data");
    append(&mut builder, EntryType::Regular, "4.a", b"four");
    bytes.extend(builder.into_inner().unwrap());
    let path = folder.put("x.tar", &bytes);
    let expected = [
        Ok(bundle("p/1", &[("a", b"one")])),
        Ok(bundle("2", &[("a", b"three")])),
        Err(ErrorKind::Unsupported),
        Ok(bundle("4", &[("a", b"four")])),
    ];
    let shards = Shards::open(&path).unwrap();
    assert_eq!(shards.describe(2).member.as_deref(), Some("3"));
    assert_eq!(kinds(by_index(&shards)), expected);
    assert_eq!(kinds(in_sequence(&ShardStream::open(&path).unwrap())), expected);
}

#[test]
fn kinds_of_members_by_type() {
    let mut builder = Builder::new(Vec::new());
    for what in [b'0', b'\0', b'7', b'1', b'2', b'3', b'4', b'5', b'6', b'V', b'S', b'!'] {
        let mut header = Header::new_gnu();
        header.set_path("x").unwrap();
        header.set_entry_type(EntryType::new(what));
        // What is no file has no data, whatever its size says.
        header.set_size(if (b'1'..=b'6').contains(&what) { 1000 } else { 0 });
        header.set_cksum();
        builder.append(&header, std::io::empty()).unwrap();
    }
    let mut header = Header::new_ustar();
    header.set_path("folder/").unwrap();
    header.set_size(0);
    header.set_cksum();
    builder.append(&header, std::io::empty()).unwrap();
    let bytes = builder.into_inner().unwrap();
    let (mut walk, mut input, mut found) = (Walk::default(), Slice { bytes: &bytes, at: 0 }, Vec::new());
    while let Some(member) = walk.next(&mut input).unwrap() {
        found.push(member.kind);
    }
    let (file, link, special) = (Kind::File, Kind::Other(Skipped::Link), Kind::Other(Skipped::Special));
    let directory = Kind::Other(Skipped::Directory);
    let expected = [
        file,
        file,
        file,
        link,
        link,
        special,
        special,
        directory,
        special,
        special,
        Kind::Sparse,
        special,
        directory,
    ];
    assert_eq!(found, expected);
    assert!(walk.marked() && walk.position() == bytes.len() as u64);
}

#[test]
fn shards_are_shuffled_by_seed_and_epoch_and_split_among_ranks() {
    let folder = Folder::new();
    for i in 0..10 {
        folder.put(&format!("{i}.tar"), &archive(&[(&format!("{i}.txt"), b"x")]));
    }
    let keys = |stream: &ShardStream, epoch| {
        assert!(stream.open(epoch).unwrap());
        let (mut keys, mut scratch) = (Vec::new(), Bundle::default());
        while stream.pull(&mut scratch).unwrap() {
            keys.push(scratch.key().parse::<usize>().unwrap());
        }
        keys
    };
    let open = || ShardStream::open(folder.path("{0..9}.tar")).unwrap();
    assert_eq!(keys(&open(), 3), (0..10).collect::<Vec<_>>());
    let shuffled = open().shuffle_shards(5);
    let first = keys(&shuffled, 0);
    assert!(first != keys(&shuffled, 1) && first != keys(&open().shuffle_shards(6), 0));
    assert_eq!(first, keys(&open().shuffle_shards(5), 0));
    let ranks: Vec<_> = (0..3).map(|r| open().shuffle_shards(5).split_shards(r, 3).unwrap()).collect();
    for epoch in 0..3 {
        let parts: Vec<Vec<usize>> = ranks.iter().map(|rank| keys(rank, epoch)).collect();
        assert_eq!(parts.iter().map(Vec::len).collect::<Vec<_>>(), [4, 3, 3]);
        assert_eq!(parts.concat().into_iter().collect::<HashSet<_>>().len(), 10);
    }
    assert_ne!(keys(&ranks[0], 0), keys(&ranks[0], 1), "a rank has other shards each epoch");
    for (rank, world) in [(3, 3), (0, 11), (0, 0)] {
        assert_eq!(open().split_shards(rank, world).unwrap_err().kind(), ErrorKind::InvalidArgument);
    }
    let prints: HashSet<u64> = [
        open().fingerprint(),
        shuffled.fingerprint(),
        ranks[0].fingerprint(),
        ranks[1].fingerprint(),
        Shards::options().last_dot().stream(folder.path("{0..9}.tar")).unwrap().fingerprint(),
        ShardStream::open(folder.path("{0..8}.tar")).unwrap().fingerprint(),
    ]
    .into();
    assert_eq!((prints.len(), open().fingerprint()), (6, open().fingerprint()));
    fs::remove_file(folder.path("4.tar")).unwrap();
    let gone = open_gone(&folder);
    assert!(gone.message().starts_with("1 of 10 shards do not exist (9 do)"), "{gone}");
}

fn open_gone(folder: &Folder) -> Error {
    let by_index = Shards::open(folder.path("{0..9}.tar")).unwrap_err();
    let in_sequence = ShardStream::open(folder.path("{0..9}.tar")).unwrap_err();
    assert_eq!((by_index.kind(), by_index.message()), (in_sequence.kind(), in_sequence.message()));
    assert_eq!(by_index.place().path.as_deref(), Some(folder.path("4.tar").as_path()));
    by_index
}

#[test]
fn the_fingerprint_knows_names_sizes_and_counts() {
    let folder = Folder::new();
    let a = folder.put("a.tar", &shard(0, 3));
    let print = |path: &Path| Shards::open(path).unwrap().fingerprint();
    let first = print(&a);
    let other = Folder::new();
    assert_eq!(first, print(&other.put("a.tar", &shard(0, 3))), "data may move");
    assert_ne!(first, print(&other.put("b.tar", &shard(0, 3))));
    assert_ne!(first, print(&other.put("a.tar", &shard(0, 4))));
    assert_ne!(first, Shards::options().last_dot().open(&a).unwrap().fingerprint());
}

#[test]
fn an_index_takes_eight_bytes_a_sample_and_twelve_a_member() {
    let folder = Folder::new();
    const N: usize = 3000;
    let shards = Shards::open(folder.put("x.tar", &shard(0, N))).unwrap();
    let (bytes, keys) = shards.index_memory();
    assert_eq!((keys, bytes - keys), (9 * N, N * (8 + 3 * 12)));
}

#[test]
fn one_hint_of_neighbours_is_one_run() {
    let bytes = shard(0, 20);
    let rules = ShardOptions::default().rules;
    let index = index::read(&mut Slice { bytes: &bytes, at: 0 }, &rules).index;
    let extents: Vec<_> = (0..20).map(|sample| index.extent(sample).unwrap()).collect();
    assert!(extents[0].start == 0 && extents.windows(2).all(|pair| pair[0].end == pair[1].start));
    assert_eq!(extents[19].end, bytes.len() as u64 - 1024);
}

#[test]
fn many_threads_read_many_shards_with_few_descriptors() {
    within(120, || {
        let folder = Folder::new();
        let paths: Vec<PathBuf> =
            (0..40).map(|i| folder.put(&format!("{i:02}.tar"), &shard(25 * i, 25))).collect();
        let (shards, expected) = (Shards::open_all(&paths).unwrap(), bundles(0, 1000));
        std::thread::scope(|scope| {
            for thread in 0..8u64 {
                let (shards, expected) = (&shards, &expected);
                scope.spawn(move || {
                    let mut scratch = Bundle::default();
                    for k in 0..3000u64 {
                        let i = (k * 617 + thread * 131) % 1000;
                        assert_eq!(shards.read(i, &mut scratch).unwrap(), &expected[i as usize]);
                        if k % 50 == 0 {
                            shards.hint(&[i, (i + 500) % 1000]);
                        }
                    }
                });
            }
        });
    });
}

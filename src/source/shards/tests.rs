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
    note_class(&mut bundle);
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

/// Where each header of an archive begins, and at the end where the last member's blocks end.
fn boundaries(bytes: &[u8]) -> Vec<usize> {
    let mut walk = Walk::default();
    let mut input = Slice { bytes, at: 0 };
    let mut all = Vec::new();
    let mut end = 0;
    while let Some(member) = walk.next(&mut input).unwrap() {
        all.push(member.header as usize);
        end = (member.data + member.bytes.next_multiple_of(512)) as usize;
    }
    all.push(end);
    all
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

/// Cuts an archive at `len` and compares what both ways of reading deliver with the whole one.
fn cut(folder: &Folder, whole: &[u8], originals: &[Bundle], boundaries: &[usize], len: usize) {
    let path = folder.put("cut.tar", &whole[..len]);
    let plain = ShardStream::open(&path).map(|s| in_sequence(&s));
    let indexed = Shards::options().on_damage(OnDamage::Skip).open(&path);
    let strict = Shards::open(&path).map(drop);
    let packed = folder.put("cut.tar.gz", &gzip(&whole[..len]));
    let packed = ShardStream::open(&packed).map(|s| kinds(in_sequence(&s)));
    let end = *boundaries.last().unwrap();
    let clean = len >= end || (len > 0 && boundaries.contains(&len));
    assert_eq!(strict.is_ok(), clean, "cut at {len}: {strict:?}");
    let delivered = match plain {
        Err(e) => {
            assert!(
                !clean && matches!(e.kind(), ErrorKind::Truncated | ErrorKind::Corrupt | ErrorKind::Empty),
                "{e}"
            );
            assert!(indexed.is_err() && packed.is_err(), "cut at {len}");
            return;
        }
        Ok(mut all) => {
            assert_eq!(packed.unwrap(), kinds(all.iter().map(copy).collect()), "cut at {len}");
            let last = all.pop_if(|last| last.is_err()).map(Result::unwrap_err);
            assert_eq!(last.is_none(), clean, "cut at {len}");
            if let (Some(stream), Err(index)) = (last, strict) {
                assert_eq!(
                    (stream.kind(), stream.message(), stream.place()),
                    (index.kind(), index.message(), index.place())
                );
                assert!(matches!(stream.kind(), ErrorKind::Truncated | ErrorKind::Corrupt), "{stream}");
                assert!(stream.place().offset.is_some_and(|at| at as usize <= len), "{stream}");
                assert!(stream.message().contains(&format!("; {} whole samples", all.len())), "{stream}");
            }
            all.into_iter().map(Result::unwrap).collect::<Vec<_>>()
        }
    };
    let indexed = indexed.unwrap();
    assert_eq!(indexed.report().damaged(), u64::from(!clean));
    assert_eq!(indexed.report().unmarked(), u64::from(clean && len < end + 1024), "cut at {len}");
    let by_index: Vec<Bundle> = by_index(&indexed).into_iter().map(Result::unwrap).collect();
    assert_eq!(by_index, delivered, "cut at {len}");
    let (whole, last) = match clean && delivered.last() != originals.get(delivered.len() - 1) {
        true => (delivered.len() - 1, delivered.last()),
        false => (delivered.len(), None),
    };
    assert_eq!(delivered[..whole], originals[..whole], "cut at {len}");
    // Between two members there is nothing to tell a cut by; what there is of the sample is right.
    if let Some(last) = last {
        assert!(last.members().eq(originals[whole].members().take(last.members().count())), "cut at {len}");
    }
}

fn copy(one: &Result<Bundle>) -> Result<Bundle> {
    match one {
        Ok(bundle) => Ok(bundle.clone()),
        Err(e) => Err(Error::new(e.kind(), e.message()).at(e.place().clone())),
    }
}

#[test]
fn cut_anywhere_the_whole_samples_come_first_and_then_an_error() {
    let folder = Folder::new();
    let whole = shard(0, 5);
    let originals = bundles(0, 5);
    let boundaries = boundaries(&whole);
    assert_eq!(boundaries.len(), 16);
    let odd = (0..whole.len()).step_by(151);
    for len in (0..=whole.len()).step_by(512).chain(odd) {
        cut(&folder, &whole, &originals, &boundaries, len);
    }
    // Not one sample less than there is for certain: of samples like the first those whose data is there.
    for (k, bytes) in [(2, 512 + 511), (3, 512), (4, 100)] {
        let path = folder.put("cut.tar", &whole[..boundaries[3 * k] + bytes]);
        let shards = Shards::options().on_damage(OnDamage::Skip).open(&path).unwrap();
        assert_eq!(shards.len(), Some(k as u64));
    }
}

#[test]
fn a_sample_whose_end_was_not_seen_is_left_out_where_it_lacks_what_the_first_has() {
    let folder = Folder::new();
    let whole = shard(0, 3);
    let boundaries = boundaries(&whole);
    // In the header of the second sample's `cls`, and of its `seg.png`.
    for header in [boundaries[4], boundaries[5]] {
        let path = folder.put("cut.tar", &whole[..header + 100]);
        let e = Shards::open(&path).unwrap_err();
        assert_eq!((e.kind(), e.place().offset), (ErrorKind::Truncated, Some(header as u64)));
        assert!(e.message().ends_with("; 1 whole samples come before"), "{e}");
        let got = in_sequence(&ShardStream::open(&path).unwrap());
        assert_eq!(kinds(got), [Ok(bundles(0, 1).remove(0)), Err(ErrorKind::Truncated)]);
    }
}

#[test]
fn whatever_byte_is_flipped_nothing_panics_and_both_ways_agree() {
    let folder = Folder::new();
    let mut builder = Builder::new(Vec::new());
    builder.append_pax_extensions([("SCHILY.xattr.a", b"x\ny=1\n".as_slice())]).unwrap();
    append(&mut builder, EntryType::Regular, "1.a", b"one");
    append(&mut builder, EntryType::Regular, &format!("{}/1.b", "b".repeat(120)), b"two");
    append(&mut builder, EntryType::Regular, "2.a", b"three");
    let whole = builder.into_inner().unwrap();
    within(120, move || {
        let (mut fine, mut refused) = (0, 0);
        let path = folder.put("flip.tar", &whole);
        let file = fs::File::options().write(true).open(&path).unwrap();
        for at in 0..whole.len() {
            file.write_all_at(&[whole[at] ^ [0x80, 0x01, 0xff][at % 3]], at as u64).unwrap();
            let options = || Shards::options().on_damage(OnDamage::Skip);
            match (options().open(&path), options().stream(&path)) {
                (Ok(shards), Ok(stream)) => {
                    fine += 1;
                    assert_eq!(kinds(by_index(&shards)), kinds(in_sequence(&stream)), "byte {at}");
                }
                (shards, stream) => {
                    refused += 1;
                    assert!(shards.is_err() && stream.is_err(), "byte {at}");
                }
            }
            file.write_all_at(&whole[at..=at], at as u64).unwrap();
        }
        assert!(fine > 1000 && refused > 500, "{fine} {refused}");
    });
}

#[test]
fn headers_that_claim_what_no_file_has_are_refused_without_memory() {
    let folder = Folder::new();
    let header = |what: EntryType, size: u64| {
        let mut header = Header::new_gnu();
        header.set_path("2.a").unwrap();
        header.set_entry_type(what);
        header.set_size(size);
        header.set_cksum();
        [archive(&[("1.a", b"1")])[..1024].to_vec(), header.as_bytes().to_vec(), vec![1; 700]].concat()
    };
    let cases = [
        (EntryType::Regular, 1 << 40, ErrorKind::Truncated),
        (EntryType::Regular, u64::MAX, ErrorKind::Corrupt),
        (EntryType::Regular, i64::MAX as u64, ErrorKind::Truncated),
        (EntryType::GNULongName, 1 << 40, ErrorKind::LimitExceeded),
        (EntryType::GNULongName, 1 << 20, ErrorKind::Truncated),
        (EntryType::XHeader, 100, ErrorKind::Corrupt),
        (EntryType::XGlobalHeader, 1 << 40, ErrorKind::Truncated),
    ];
    for (what, size, kind) in cases {
        let bytes = header(what, size);
        for (name, bytes) in [("x.tar", bytes.clone()), ("x.tgz", gzip(&bytes))] {
            let path = folder.put(name, &bytes);
            // The first sample's end was seen where the header is one of another key.
            let got = ShardStream::open(&path).map(|stream| kinds(in_sequence(&stream)));
            let got = got.unwrap_or_else(|e| vec![Err(e.kind())]);
            // Of packed bytes only the limit on samples is known beforehand.
            let kind = if name == "x.tgz" && what == EntryType::Regular && size != u64::MAX {
                ErrorKind::LimitExceeded
            } else {
                kind
            };
            assert_eq!(got.iter().find_map(|one| one.clone().err()), Some(kind), "{what:?} {size} {name}");
        }
        assert_eq!(Shards::open(folder.path("x.tar")).unwrap_err().kind(), kind, "{what:?} {size}");
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
fn what_is_packed_or_no_archive_is_named() {
    let folder = Folder::new();
    let cases: [(&[u8], &str, ErrorKind); 8] = [
        (&gzip(&shard(0, 1)), "gzip", ErrorKind::Unsupported),
        (&zstd(&shard(0, 1)), "zstd", ErrorKind::Unsupported),
        (b"BZh9...", "bzip2", ErrorKind::Unsupported),
        (b"\xfd7zXZ\0...", "xz", ErrorKind::Unsupported),
        (b"PK\x03\x04...", "zip", ErrorKind::Unsupported),
        (b"hello", "no tar archive", ErrorKind::Corrupt),
        (&[7; 4096], "no tar archive", ErrorKind::Corrupt),
        (b"", "not a single byte", ErrorKind::Empty),
    ];
    for (bytes, text, kind) in cases {
        let path = folder.put("x.tar", bytes);
        let e = Shards::open(&path).unwrap_err();
        assert_eq!((e.kind(), e.place().shard.as_deref()), (kind, Some("x.tar")), "{e}");
        assert!(e.message().contains(text), "{e}");
        assert_eq!(e.message().contains("ShardStream"), kind == ErrorKind::Unsupported, "{e}");
        let stream = ShardStream::open(&path);
        match text {
            "gzip" | "zstd" => {
                assert_eq!(kinds(in_sequence(&stream.unwrap())), [Ok(bundles(0, 1).remove(0))])
            }
            _ => assert!(stream.unwrap_err().to_string().contains(text)),
        }
    }
    // The name of a first member that looks like a magic number is a name.
    let path = folder.put("x.tar", &archive(&[("PK\x03\x04.txt", b"x")]));
    assert_eq!(
        (Shards::open(&path).unwrap().len(), in_sequence(&ShardStream::open(&path).unwrap()).len()),
        (Some(1), 1)
    );
    let path = folder.put("x.tar", &[archive(&[("1.txt", b"x")]), b"junk".to_vec()].concat());
    let e = Shards::open(&path).unwrap_err();
    assert_eq!((e.kind(), e.place().offset), (ErrorKind::Corrupt, Some(2048)), "{e}");
    assert!(e.message().contains("what follows the end"), "{e}");
    assert_eq!(kinds(in_sequence(&ShardStream::open(&path).unwrap())).len(), 2);
}

#[test]
fn damaged_packed_shards_are_an_error_and_the_next_one_follows() {
    let folder = Folder::new();
    let (gz, zst) = (gzip(&shard(0, 40)), zstd(&shard(0, 40)));
    let flipped = |bytes: &[u8]| {
        let mut bytes = bytes.to_vec();
        let at = bytes.len() - 3; // in the checksum, or the last block
        bytes[at] ^= 0x55;
        bytes
    };
    for (bytes, kind) in [(&gz, ErrorKind::Truncated), (&zst, ErrorKind::Truncated)] {
        let cut = folder.put("1.x", &bytes[..bytes.len() * 2 / 3]);
        let next = folder.put("2.tar", &shard(40, 1));
        let got = kinds(in_sequence(&ShardStream::open_all([&cut, &next]).unwrap()));
        let whole = got.iter().position(Result::is_err).unwrap();
        let expected: Vec<_> = bundles(0, whole).into_iter().map(Ok).collect();
        assert_eq!(
            (&got[..whole], &got[whole..]),
            (&expected[..], &[Err(kind), Ok(bundles(40, 1).remove(0))][..])
        );
        let stream = Shards::options().on_damage(OnDamage::Skip).stream_all([&cut, &next]).unwrap();
        assert_eq!(in_sequence(&stream).iter().filter(|one| one.is_ok()).count(), whole + 1);
        assert_eq!((stream.report().damaged(), stream.report().shards()), (1, 2));
    }
    let path = folder.put("1.x", &flipped(&gz));
    let got = kinds(in_sequence(&ShardStream::open(&path).unwrap()));
    assert_eq!((got.len(), got.last()), (41, Some(&Err(ErrorKind::Corrupt))));
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

mod kept {
    use super::*;

    fn open(folder: &Folder) -> Result<Shards> {
        Shards::options().cache_index_beside().open(folder.path("{a,b}.tar"))
    }

    fn put(folder: &Folder) {
        folder.put("a.tar", &shard(0, 30));
        folder.put("b.tar", &shard(30, 10));
    }

    #[test]
    fn an_index_is_kept_only_when_asked_and_says_the_same() {
        let folder = Folder::new();
        put(&folder);
        let plain = Shards::open(folder.path("{a,b}.tar")).unwrap();
        drop(ShardStream::open(folder.path("{a,b}.tar")).unwrap());
        assert_eq!(folder.names(), ["a.tar", "b.tar"]);
        let made = open(&folder).unwrap();
        let all = ["a.tar", "a.tar.warpfeed-index", "b.tar", "b.tar.warpfeed-index"];
        assert_eq!(folder.names(), all);
        let kept = open(&folder).unwrap();
        for shards in [&made, &kept] {
            assert_eq!(shards.indices_are(), plain.indices_are());
            assert_eq!((shards.report(), shards.fingerprint()), (plain.report(), plain.fingerprint()));
            assert_eq!(kinds(by_index(shards)), bundles(0, 40).into_iter().map(Ok).collect::<Vec<_>>());
        }
        assert_eq!(kept.index_memory(), plain.index_memory());
        let elsewhere = Folder::new();
        let options = || Shards::options().cache_index_in(elsewhere.path("deep/er"));
        options().open(folder.path("{a,b}.tar")).unwrap();
        options().open(folder.path("{a,b}.tar")).unwrap();
        assert_eq!(fs::read_dir(elsewhere.path("deep/er")).unwrap().count(), 2);
        assert_eq!(folder.names(), all);
        let e = Shards::options().cache_index_beside().stream(folder.path("a.tar")).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::InvalidConfig);
    }

    #[test]
    fn an_index_is_what_is_used() {
        let folder = Folder::new();
        put(&folder);
        open(&folder).unwrap();
        // The same size and time, other bytes: only who reads the headers again notices.
        let (path, time) =
            (folder.path("a.tar"), fs::metadata(folder.path("a.tar")).unwrap().modified().unwrap());
        let len = fs::metadata(&path).unwrap().len();
        fs::write(&path, vec![1; len as usize]).unwrap();
        fs::File::options().write(true).open(&path).unwrap().set_modified(time).unwrap();
        assert_eq!(open(&folder).unwrap().len(), Some(40));
        assert_eq!(Shards::open(&path).unwrap_err().kind(), ErrorKind::Corrupt);
    }

    #[test]
    fn one_that_is_stale_or_damaged_is_made_anew() {
        let folder = Folder::new();
        put(&folder);
        open(&folder).unwrap();
        let kept = folder.path("a.tar.warpfeed-index");
        let good = fs::read(&kept).unwrap();
        let holds = |n: u64| {
            let shards = open(&folder).unwrap();
            assert_eq!(shards.len(), Some(n));
            let all: Vec<Bundle> = by_index(&shards).into_iter().map(Result::unwrap).collect();
            assert_eq!(all[..30], bundles(0, 30));
        };
        for len in [0, 7, 12, 20, good.len() / 2, good.len() - 1] {
            fs::write(&kept, &good[..len]).unwrap();
            holds(40);
            assert_eq!(fs::read(&kept).unwrap(), good, "cut at {len}");
        }
        for at in (0..64).chain((64..good.len()).step_by(13)) {
            let mut bytes = good.clone();
            bytes[at] ^= 1;
            fs::write(&kept, &bytes).unwrap();
            assert_eq!(open(&folder).unwrap().len(), Some(40), "byte {at}");
            assert_eq!(fs::read(&kept).unwrap(), good, "byte {at}");
        }
        // Another rule, another size, another time.
        Shards::options().last_dot().cache_index_beside().open(folder.path("a.tar")).unwrap();
        assert_ne!(fs::read(&kept).unwrap(), good);
        holds(40);
        folder.put("b.tar", &shard(30, 12));
        holds(42);
        let file = fs::File::options().write(true).open(folder.path("a.tar")).unwrap();
        file.set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
        holds(42);
        assert_ne!(fs::read(&kept).unwrap(), good);
    }

    #[test]
    fn one_whose_sums_hold_and_whose_numbers_do_not_is_refused() {
        let folder = Folder::new();
        folder.put("a.tar", &shard(0, 2));
        let path = folder.path("a.tar");
        let open = || Shards::options().cache_index_beside().open(&path).unwrap();
        let good = open().index_memory();
        let kept = folder.path("a.tar.warpfeed-index");
        let bytes = fs::read(&kept).unwrap();
        let body = bytes.len() - 8;
        // Every four bytes of it made huge, the checksum right. Counts of the report aside none may be believed.
        for at in (28..body - 4).step_by(4) {
            let mut bytes = bytes.clone();
            bytes[at..at + 4].copy_from_slice(&[0xff, 0xff, 0xff, 0x0f]);
            let sum = crate::random::key_of_bytes(&bytes[..body]);
            bytes[body..].copy_from_slice(&sum.to_le_bytes());
            fs::write(&kept, &bytes).unwrap();
            let shards = open();
            assert_eq!(shards.index_memory().1, good.1, "byte {at}");
            drop(by_index(&shards));
        }
    }

    #[test]
    fn where_none_can_be_written_the_shards_open_all_the_same() {
        let folder = Folder::new();
        folder.put("a.tar", &shard(0, 2));
        folder.put("file", b"");
        let options = Shards::options().cache_index_in(folder.path("file/below"));
        assert_eq!(options.open(folder.path("a.tar")).unwrap().len(), Some(2));
        assert_eq!(folder.names(), ["a.tar", "file"]);
    }
}

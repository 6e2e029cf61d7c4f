//! Shards that are cut, flipped, packed or no archives at all.

use super::*;

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

/// Found by the fuzz target `tar`.
#[test]
fn a_faulty_sample_whose_end_was_not_seen_is_left_out_as_well() {
    let folder = Folder::new();
    let mut whole = archive(&[("0.a", b"x"), ("0.b", b"x"), ("1.a", b"x"), ("1.a", b"x")]);
    whole.truncate(*boundaries(&whole).last().unwrap());
    whole.extend([b'j'; 512]);
    let path = folder.put("a.tar", &whole);
    let indexed = Shards::options().on_damage(OnDamage::Skip).open(&path).unwrap();
    let got = kinds(in_sequence(&ShardStream::open(&path).unwrap()));
    assert_eq!((indexed.len(), got.len()), (Some(1), 2), "{got:?}");
    assert_eq!(got[1], Err(ErrorKind::Corrupt));
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

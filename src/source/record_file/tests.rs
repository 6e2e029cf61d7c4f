use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use tempfile::{TempDir, tempdir};

use super::*;
use crate::source::contract::{holds_contract, holds_records_contract};
use crate::source::{SourceExt, concat};
use crate::spec::DType;

/// Bytes that differ from place to place.
fn noise(seed: u64, n: usize) -> Vec<u8> {
    (0..n as u64).map(|i| key(&[seed, i]) as u8).collect()
}

fn file(dir: &TempDir, name: &str, bytes: &[u8]) -> PathBuf {
    let path = dir.path().join(name);
    fs::write(&path, bytes).unwrap();
    path
}

fn map(path: impl AsRef<Path>, layout: impl Into<RecordLayout>) -> Result<RecordFile> {
    // SAFETY: only this test knows the file, and it doesn't change it while it is mapped.
    unsafe { RecordFile::map(path, layout) }
}

fn map_all(paths: &[PathBuf], layout: RecordLayout) -> Result<RecordFile> {
    // SAFETY: as above.
    unsafe { RecordFile::map_all(paths, layout) }
}

fn bytes_part(name: &str, range: Range<usize>) -> Part {
    Part { field: Field::new::<u8>(name, &[range.len()]), range }
}

fn with_parts(mut source: RecordFile, parts: &[Part]) -> RecordFile {
    for part in parts {
        source = source.part(part.field.clone(), part.range.clone()).unwrap();
    }
    source
}

/// Both ways to read the same files, and what a plain slice says of them.
fn check(paths: &[PathBuf], layout: RecordLayout, parts: &[Part]) {
    let whole = [bytes_part("record", 0..layout.record_bytes)];
    let files: Vec<Vec<u8>> = paths.iter().map(|path| fs::read(path).unwrap()).collect();
    let body = |file: &Vec<u8>| file[layout.header_bytes as usize..].to_vec();
    let records: Vec<Vec<u8>> = files
        .iter()
        .flat_map(|f| body(f).chunks(layout.record_bytes).map(<[u8]>::to_vec).collect::<Vec<_>>())
        .collect();
    let expected: Vec<&[u8]> = records.iter().map(Vec::as_slice).collect();
    for source in [RecordFile::open_all(paths, layout).unwrap(), map_all(paths, layout).unwrap()] {
        let shown = if parts.is_empty() { &whole } else { parts };
        let source = with_parts(source, parts);
        holds_records_contract(&source, shown, &expected);
        let n = expected.len() as u64;
        let backwards = source.take(n).subset((0..n).rev()).unwrap();
        let reversed: Vec<&[u8]> = expected.iter().rev().copied().collect();
        holds_records_contract(&backwards, shown, &reversed);
    }
    let (a, b) = (RecordFile::open_all(paths, layout).unwrap(), map_all(paths, layout).unwrap());
    assert_eq!(a.fingerprint(), b.fingerprint());
    let twice = concat(vec![with_parts(a, parts), with_parts(b, parts)]).unwrap();
    holds_records_contract(&twice, if parts.is_empty() { &whole } else { parts }, &expected.repeat(2));
}

#[test]
fn parts_that_tile_overlap_or_leave_gaps() {
    let dir = tempdir().unwrap();
    let path = file(&dir, "a.bin", &noise(1, 10 * 20 + 3));
    let layout = RecordLayout::new(20).header(3);
    let part = |range: Range<usize>| bytes_part(&format!("{range:?}"), range);
    check(std::slice::from_ref(&path), layout, &[]);
    for parts in [
        vec![part(0..20)],
        vec![part(4..9)],
        vec![part(0..1), part(1..20)],
        vec![part(2..5), part(5..9), part(9..12)],
        vec![part(5..20), part(0..5)],
        vec![part(0..15), part(10..20), part(3..4)],
        (0..20).map(|i| part(i..i + 1)).collect(), // more than one vectored read takes
    ] {
        check(std::slice::from_ref(&path), layout, &parts);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn any_files_and_parts_are_what_plain_slices_say(
        record in 1usize..40,
        header in 0u64..9,
        counts in prop::collection::vec(0usize..6, 1..6),
        cuts in prop::collection::vec((0usize..40, 1usize..40), 0..20),
        seed: u64,
    ) {
        let dir = tempdir().unwrap();
        let paths: Vec<PathBuf> = counts.iter().enumerate().map(|(i, n)| {
            file(&dir, &format!("{i}.bin"), &noise(seed ^ i as u64, header as usize + n * record))
        }).collect();
        let parts: Vec<Part> = cuts.iter().enumerate().map(|(i, &(start, len))| {
            let start = start % record;
            bytes_part(&format!("p{i}"), start..(start + len).min(record))
        }).collect();
        check(&paths, RecordLayout::new(record).header(header), &parts);
    }
}

#[test]
fn a_record_is_described_by_path_and_offset() {
    let dir = tempdir().unwrap();
    let paths = [file(&dir, "a", &[0; 5 + 20]), file(&dir, "b", &[0; 5 + 30])];
    let source = RecordFile::open_all(&paths, RecordLayout::new(10).header(5)).unwrap();
    let place = source.describe(3);
    assert_eq!((place.index, place.path, place.offset), (Some(3), Some(paths[1].clone()), Some(15)));
    assert_eq!(source.describe(5), Place::of_index(5));
}

#[test]
fn the_fingerprint_knows_names_counts_layout_and_parts_but_no_directory() {
    let dir = tempdir().unwrap();
    let print = |name: &str, bytes: usize, layout: RecordLayout, parts: &[Part]| {
        fs::create_dir_all(dir.path().join(name).parent().unwrap()).unwrap();
        with_parts(RecordFile::open(file(&dir, name, &noise(bytes as u64, bytes)), layout).unwrap(), parts)
            .fingerprint()
    };
    let base = print("x/a", 40, 10.into(), &[]);
    assert_eq!(base, print("y/a", 40, 10.into(), &[]));
    let others = [
        print("x/b", 40, 10.into(), &[]),
        print("x/a", 50, 10.into(), &[]),
        print("x/a", 40, 20.into(), &[]),
        print("x/a", 50, RecordLayout::new(10).header(10), &[]),
        print("x/a", 40, 10.into(), &[bytes_part("record", 0..5)]),
        print("x/a", 40, 10.into(), &[bytes_part("other", 0..10)]),
    ];
    assert!(others.iter().all(|&other| other != base));
}

#[test]
fn parts_that_do_not_fit_are_refused() {
    let dir = tempdir().unwrap();
    let path = file(&dir, "a", &[0; 20]);
    let open = || RecordFile::open(&path, 10).unwrap().part(Field::scalar::<u8>("a"), 0..1).unwrap();
    let refused = |field: Field, range: Range<usize>, word: &str| {
        let e = open().part(field, range).unwrap_err();
        assert!(e.kind() == ErrorKind::InvalidConfig && e.message().contains(word), "{e}");
    };
    refused(Field::scalar::<f32>("b"), 1..4, "takes 4 bytes");
    refused(Field::new::<u8>("b", &[2]), 9..11, "within a record");
    refused(Field::new::<u8>("b", &[0]), 3..3, "within a record");
    refused(Field::new::<u64>("b", &[usize::MAX, 9]), 0..8, "addressed");
    refused(Field::scalar::<u8>("a"), 1..2, "named");
    refused(Field::ragged::<u8>("b", 2), 1..2, "fixed shape");
    refused(Field::host("b"), 1..2, "fixed shape");
    assert_eq!(open().part(Field::of("b", DType::F16, &[3]), 1..7).unwrap().parts().len(), 2);
}

#[test]
fn what_is_no_file_of_records_is_refused_with_its_path() {
    let dir = tempdir().unwrap();
    let fifo = dir.path().join("fifo");
    let name = std::ffi::CString::new(fifo.as_os_str().as_encoded_bytes()).unwrap();
    // SAFETY: the name is a string that ends in 0 and outlives the call.
    assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
    let odd = file(&dir, "odd", &[0; 2003]);
    let cases = [
        (dir.path().join("missing"), RecordLayout::new(2), ErrorKind::Io, "opened"),
        (dir.path().to_path_buf(), RecordLayout::new(2), ErrorKind::Io, "directory"),
        (fifo, RecordLayout::new(2), ErrorKind::Io, "regular"),
        (odd.clone(), RecordLayout::new(2), ErrorKind::Truncated, "1001 records of 2 bytes and 1 bytes more"),
        (odd.clone(), RecordLayout::new(2).header(3000), ErrorKind::Truncated, "its header alone 3000"),
        (odd, RecordLayout::new(0), ErrorKind::InvalidConfig, "at least 1 byte"),
    ];
    for (path, layout, kind, word) in cases {
        for e in [RecordFile::open(&path, layout).unwrap_err(), map(&path, layout).unwrap_err()] {
            assert!(e.kind() == kind && e.message().contains(word), "{e}");
            assert!(kind == ErrorKind::InvalidConfig || e.place().path.as_ref() == Some(&path), "{e}");
        }
    }
    let none = RecordFile::open_all(Vec::<PathBuf>::new(), 2).unwrap_err();
    assert_eq!(none.kind(), ErrorKind::InvalidConfig);
}

#[test]
fn empty_files_hold_no_records() {
    let dir = tempdir().unwrap();
    let paths = [file(&dir, "a", &[]), file(&dir, "b", &[1, 2]), file(&dir, "c", &[])];
    check(&paths, 2.into(), &[]);
    check(&paths[..1], 2.into(), &[]);
}

#[test]
fn a_file_that_shrinks_while_open_is_an_error_with_path_offset_and_sizes() {
    let dir = tempdir().unwrap();
    let path = file(&dir, "a", &noise(1, 100));
    let source = RecordFile::open(&path, 10).unwrap();
    let tiled = RecordFile::open(&path, 10)
        .unwrap()
        .part(Field::scalar::<u8>("a"), 0..1)
        .unwrap()
        .part(Field::new::<u8>("b", &[9]), 1..10)
        .unwrap();
    File::options().write(true).open(&path).unwrap().set_len(44).unwrap();
    let mut scratch = Vec::new();
    assert!(source.read(3, &mut scratch).is_ok());
    for (index, found) in [(4, 4), (5, 0), (9, 0)] {
        let check = |e: Error| {
            assert_eq!(e.kind(), ErrorKind::Truncated);
            let place = (e.place().path.as_ref(), e.place().offset, e.place().index);
            assert_eq!(place, (Some(&path), Some(10 * index), Some(index)));
            for part in [
                format!("expected 10 bytes, found {found};"),
                "changed since".into(),
                "100 bytes then, 44".into(),
            ] {
                assert!(e.message().contains(&part), "{e}");
            }
        };
        check(source.read(index, &mut scratch).unwrap_err());
        check(tiled.read_into(index, &mut [&mut [0], &mut [0; 9]]).unwrap_err());
    }
    assert!(source.read(3, &mut scratch).is_ok(), "the records before the damage still come");
}

fn descriptors_in(dir: &Path) -> usize {
    let links =
        fs::read_dir("/proc/self/fd").unwrap().filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
    links.filter(|link| link.starts_with(dir)).count()
}

#[test]
#[cfg(target_os = "linux")]
fn row_42_ten_thousand_files_need_few_descriptors() {
    let dir = tempdir().unwrap();
    let paths: Vec<PathBuf> = (0..10_000u32).map(|i| file(&dir, &i.to_string(), &[i as u8])).collect();
    let source = RecordFile::open_all(&paths, 1).unwrap();
    let real = dir.path().canonicalize().unwrap();
    std::thread::scope(|scope| {
        for worker in 0..2 {
            let (source, real) = (&source, &real);
            scope.spawn(move || {
                let mut scratch = Vec::new();
                let all = if worker == 0 { 10_000 } else { 3_000 };
                for i in (0..all).map(|i| if worker == 0 { i } else { i * 7919 % 10_000 }) {
                    assert_eq!(source.read(i, &mut scratch).unwrap(), [i as u8]);
                    if i % 1000 == 0 {
                        // A count that others open and close during can be too high, never for long.
                        let open = (0..5).map(|_| descriptors_in(real)).min();
                        assert!(open <= Some(16 + 2 * 2), "{open:?} descriptors");
                    }
                }
            });
        }
    });
    source.hint(&(0..10_000).collect::<Vec<_>>());
    assert!(descriptors_in(&real) <= 16);
    // A file that was replaced or touched since is noticed when it is opened again.
    for (i, bytes, kind) in [(5, 0, ErrorKind::Truncated), (6, 2, ErrorKind::Corrupt)] {
        let mut new = File::create(dir.path().join("new")).unwrap();
        new.write_all(&vec![0; bytes]).unwrap();
        fs::rename(dir.path().join("new"), &paths[i]).unwrap();
        let mut scratch = Vec::new();
        source.read(i as u64 + 16, &mut scratch).unwrap(); // takes the slot of file i
        let e = source.read(i as u64, &mut scratch).unwrap_err();
        assert_eq!(
            (e.kind(), e.place().path.as_ref(), e.place().index),
            (kind, Some(&paths[i]), Some(i as u64))
        );
        assert!(e.message().contains("changed since it was opened: 1 bytes then"), "{e}");
    }
    fs::remove_file(&paths[7]).unwrap();
    let mut scratch = Vec::new();
    source.read(7 + 16, &mut scratch).unwrap();
    assert_eq!(source.read(7, &mut scratch).unwrap_err().kind(), ErrorKind::Io);
}

#[test]
fn joined_files_of_other_parts_are_refused() {
    let dir = tempdir().unwrap();
    let path = file(&dir, "a", &[0; 20]);
    let open =
        |name: &str| RecordFile::open(&path, 10).unwrap().part(Field::new::<u8>(name, &[10]), 0..10).unwrap();
    let joined = concat(vec![open("a"), open("b")]).unwrap();
    assert_eq!(joined.read_into(0, &mut [&mut [0; 10]]).unwrap_err().kind(), ErrorKind::InvalidConfig);
    let (train, val) = concat(vec![open("a"), open("a")]).unwrap().split(0.75, 1).unwrap();
    assert_eq!((train.len(), val.len()), (Some(3), Some(1)));
    holds_contract(&val, &[&[0; 10]]);
}

#[test]
#[cfg(target_os = "linux")]
fn a_hint_brings_a_cold_record_into_the_cache() {
    use std::os::fd::AsRawFd;
    use std::time::{Duration, Instant};
    const RECORD: usize = 150_528;
    let dir = tempdir().unwrap();
    let path = file(&dir, "a", &noise(1, RECORD).repeat(20));
    let raw = File::open(&path).unwrap();
    raw.sync_all().unwrap();
    let end = 8 * RECORD as u64 - 1; // the last byte of record 7: past the first piece of advice
    for mapped in [false, true] {
        // SAFETY: no memory is passed; the descriptor is open.
        unsafe { libc::posix_fadvise(raw.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
        let source = if mapped { map(&path, RECORD) } else { RecordFile::open(&path, RECORD) }.unwrap();
        if source.bytes.residence(0, end) != Residence::Missing {
            println!("skipped: this file system can't drop a page or can't say that it is missing");
            return;
        }
        source.hint(&[7]);
        let start = Instant::now();
        while source.bytes.residence(0, end) != Residence::Resident {
            assert!(start.elapsed() < Duration::from_secs(20), "mapped {mapped}: nothing was read ahead");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Prints what reading costs from a warm cache: 2 threads, random order, records of 150,528 bytes.
#[test]
#[ignore = "a measurement, not a check: run it alone, with --release"]
fn rate() {
    use std::hint::black_box;
    use std::os::unix::fs::FileExt;
    use std::time::Instant;
    const RECORD: usize = 224 * 224 * 3;
    const COUNT: u64 = 2000;
    type Read<'a> = &'a (dyn Fn(u64, &mut Vec<u8>) + Sync);
    let dir = tempdir().unwrap();
    let path = file(&dir, "a", &noise(1, RECORD).repeat(COUNT as usize));
    let plain = File::open(&path).unwrap();
    let read = RecordFile::open(&path, RECORD).unwrap();
    let tiled = with_parts(
        RecordFile::open(&path, RECORD).unwrap(),
        &[bytes_part("a", 0..8), bytes_part("b", 8..RECORD)],
    );
    let map = map(&path, RECORD).unwrap();
    let order = |worker: u64| (0..COUNT / 2).map(move |i| (2 * i + worker) * 7919 % COUNT);
    let time = |each: Read<'_>| {
        let start = Instant::now();
        std::thread::scope(|scope| {
            for worker in 0..2 {
                scope.spawn(move || {
                    let mut buffer = vec![0; RECORD];
                    order(worker).for_each(|i| each(i, &mut buffer));
                });
            }
        });
        start.elapsed().as_secs_f64() / COUNT as f64 * 2e6
    };
    let upcoming: Vec<u64> = (0..COUNT).map(|i| i * 7919 % COUNT).collect();
    let cases: [(&str, Read<'_>); 5] = [
        ("plain pread", &|i, b| plain.read_exact_at(b, i * RECORD as u64).unwrap()),
        ("read", &|i, b| assert_eq!(black_box(read.read(i, b).unwrap()).len(), RECORD)),
        ("read_into, 1 part", &|i, b| read.read_into(i, &mut [b]).unwrap()),
        ("read_into, 2 parts", &|i, b| {
            let (x, y) = b.split_at_mut(8);
            tiled.read_into(i, &mut [x, y]).unwrap();
        }),
        ("read_into, mapped", &|i, b| map.read_into(i, &mut [b]).unwrap()),
    ];
    let mut best = [f64::MAX; 5];
    for _ in 0..12 {
        for (best, (_, each)) in best.iter_mut().zip(&cases) {
            *best = best.min(time(*each));
        }
    }
    for (best, (name, _)) in best.iter().zip(&cases) {
        let gb = RECORD as f64 / best / 1e3 * 2.0;
        println!("{name:20} {best:7.2} us a record and thread, {gb:5.2} GB/s on two");
    }
    for source in [&read, &map] {
        let each = |name: &str, f: &dyn Fn(u64)| {
            let start = Instant::now();
            upcoming.iter().for_each(|&i| f(i * RECORD as u64));
            println!(
                "{name:20} {:7.3} us a record, warm",
                start.elapsed().as_secs_f64() / COUNT as f64 * 1e6
            );
        };
        each("  advice", &|at| source.bytes.will_need(0, at..at + RECORD as u64));
        each("  question", &|at| assert_eq!(source.bytes.residence(0, at), Residence::Resident));
        source.hint(&upcoming);
        let start = Instant::now();
        source.hint(&upcoming);
        println!(
            "{:20} {:7.3} us a record, warm",
            "  hint",
            start.elapsed().as_secs_f64() / COUNT as f64 * 1e6
        );
    }
    let each: Vec<u8> = noise(1, RECORD);
    let paths: Vec<PathBuf> = (0..1100).map(|i| file(&dir, &format!("f{i}"), &each)).collect();
    let many = RecordFile::open_all(&paths, RECORD).unwrap();
    let read = |i: u64, b: &mut Vec<u8>| many.read_into(i / 2, &mut [b]).unwrap();
    let best = (0..6).map(|_| time(&read)).fold(f64::MAX, f64::min);
    println!("read_into, 1100 files {best:6.2} us a record and thread");
}

//! Rows of `docs/FAILURES.md` about tar shards and their indices, on the archives of `tests/cases/tar`; what is right is told by
//! `expectations.json`. Then shards in a loader.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test stops at the first surprise")]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use serde_json::Value;
use warpfeed::decode::{Decode, Sample};
use warpfeed::sampler::{Remainder, Shard};
use warpfeed::source::{Bundle, OnDamage, ShardOptions, ShardReport, Shards, Source, SourceExt};
use warpfeed::{Builder, Error, ErrorKind, Field, Loader, OnError, Row};

#[path = "support/watch.rs"]
mod watch;
use watch::{LONG, device_and_stream, epoch, samples, values, within};

/// One sample: its key, and the bytes of its members.
type Plain = (String, BTreeMap<String, Vec<u8>>);

fn cases() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases")
}

fn tar(name: &str) -> PathBuf {
    cases().join("tar").join(name)
}

fn plain(bundle: &Bundle) -> Plain {
    let members = bundle.members().map(|(name, bytes)| (name.to_string(), bytes.to_vec()));
    (bundle.key().to_string(), members.collect())
}

/// What came of an archive: samples and errors in order, or the error that it was not opened with.
type Delivered = Result<(Samples, ShardReport), Error>;

type Samples = Vec<Result<Plain, Error>>;

fn by_index(path: &Path, options: ShardOptions) -> Delivered {
    let shards = options.open(path)?;
    let mut scratch = Bundle::default();
    let all = (0..shards.len().unwrap()).map(|i| shards.read(i, &mut scratch).map(plain)).collect();
    Ok((all, shards.report().clone()))
}

fn in_sequence(path: &Path, options: ShardOptions) -> Delivered {
    let stream = options.stream(path)?;
    assert!(stream.open(0)?);
    let (mut all, mut scratch) = (Vec::new(), Bundle::default());
    loop {
        match stream.pull(&mut scratch) {
            Ok(true) => all.push(Ok(plain(&scratch))),
            Ok(false) => return Ok((all, stream.report())),
            Err(e) => all.push(Err(e)),
        }
    }
}

fn crc32(bytes: &[u8]) -> u64 {
    let mut crc = flate2::Crc::new();
    crc.update(bytes);
    crc.sum().into()
}

fn kind_is(kinds: &Value, kind: ErrorKind) -> bool {
    kinds.as_array().into_iter().flatten().any(|name| {
        let same: &[ErrorKind] = match name.as_str().unwrap() {
            "Truncated" => &[ErrorKind::Truncated],
            "Corrupt" | "TrailingData" => &[ErrorKind::Corrupt],
            "MissingField" => &[ErrorKind::MissingField],
            "DuplicateKey" => &[ErrorKind::DuplicateKey],
            "UnsupportedFormat" | "UnsupportedFeature" => &[ErrorKind::Unsupported],
            other => panic!("no kind for {other}"),
        };
        same.contains(&kind)
    })
}

fn samples_are(expected: &Value, got: &[&Plain]) -> bool {
    let Some(expected) = expected.as_array() else { return got.is_empty() };
    expected.len() == got.len()
        && expected.iter().zip(got).all(|(sample, (key, members))| {
            let fields = sample["fields"].as_object().unwrap();
            sample["key"] == key.as_str()
                && fields.len() == members.len()
                && fields.iter().all(|(name, field)| {
                    members.get(name).is_some_and(|bytes| {
                        field["len"] == bytes.len() as u64
                            && field["crc32"] == crc32(bytes)
                            && field["text"].as_str().is_none_or(|text| text.as_bytes() == bytes)
                    })
                })
        })
}

/// Whether one listed outcome is what came.
fn fits(outcome: &Value, got: &Delivered) -> bool {
    let (all, skipped): (Vec<Result<&Plain, &Error>>, u64) = match got {
        Ok((all, report)) => {
            (all.iter().map(Result::as_ref).collect(), report.skipped().map(|(_, n)| n).sum())
        }
        Err(e) => (vec![Err(e)], 0),
    };
    let good: Vec<&Plain> = all.iter().filter_map(|one| one.ok()).collect();
    let first_error = all.iter().position(Result::is_err);
    let errors: Vec<&Error> = all.iter().filter_map(|one| one.err()).collect();
    let right_errors = !errors.is_empty()
        && errors.iter().all(|e| {
            let texts = outcome["text_has"].as_array();
            let has = |text: &Value| e.to_string().contains(text.as_str().unwrap());
            kind_is(&outcome["kinds"], e.kind()) && texts.is_none_or(|texts| texts.iter().all(has))
        });
    samples_are(&outcome["samples"], &good)
        && match outcome["status"].as_str().unwrap() {
            "ok" => errors.is_empty() && outcome["ignored"].as_u64().is_none_or(|n| n == skipped),
            "error" => right_errors && good.is_empty(),
            "ok_then_error" => right_errors && first_error == Some(good.len()),
            "error_then_ok" => right_errors && first_error == Some(0),
            other => panic!("no status {other}"),
        }
}

/// The outcomes of a case, under the options in use: `when` says which they are for.
fn outcomes(name: &str, when: &str) -> Vec<Value> {
    let all: Value =
        serde_json::from_str(&fs::read_to_string(cases().join("expectations.json")).unwrap()).unwrap();
    let all = all["files"][format!("tar/{name}")]["expect"].as_array().unwrap().clone();
    assert!(!all.is_empty());
    all.into_iter().filter(|one| one["when"].as_str().is_none_or(|w| w.starts_with(when))).collect()
}

fn check(
    name: &str,
    options: &ShardOptions,
    when: &str,
    read: fn(&Path, ShardOptions) -> Delivered,
) -> Delivered {
    let start = Instant::now();
    let got = read(&tar(name), options.clone());
    assert!(start.elapsed().as_secs() < 1, "{name}");
    let outcomes = outcomes(name, when);
    assert!(outcomes.iter().any(|outcome| fits(outcome, &got)), "{name}: {got:?} is none of {outcomes:#?}");
    got
}

/// Both ways of reading give a listed outcome.
fn holds(name: &str) {
    for read in [by_index, in_sequence] {
        check(name, &Shards::options(), "rule=first dot", read).unwrap();
    }
}

#[test]
fn the_check_sees_what_is_wrong() {
    let good = by_index(&tar("no_eof_blocks.tar"), Shards::options());
    let outcome = &outcomes("no_eof_blocks.tar", "")[0];
    assert!(fits(outcome, &good));
    let (all, report) = good.unwrap();
    let with = |change: &dyn Fn(&mut Samples)| {
        let mut all = all.iter().map(|one| Ok(one.as_ref().unwrap().clone())).collect();
        change(&mut all);
        fits(outcome, &Ok((all, report.clone())))
    };
    assert!(with(&|_| {}));
    assert!(!with(&|all| drop(all.pop())));
    assert!(!with(&|all| all.swap(0, 1)));
    assert!(!with(&|all| all.push(Err(Error::new(ErrorKind::Truncated, "")))));
    assert!(!with(&|all| all[0].as_mut().unwrap().1.get_mut("txt").unwrap()[0] ^= 1));
    assert!(!fits(&outcomes("dup_key.tar", "")[0], &by_index(&tar("no_eof_blocks.tar"), Shards::options())));
}

#[test]
fn row_130_extended_headers_of_pax() {
    holds("pax_long.tar");
    holds("pax_global.tar");
}

#[test]
fn row_131_long_names_of_gnu_and_prefixes_of_ustar() {
    holds("gnu_long.tar");
    holds("ustar_prefix.tar");
}

#[test]
fn row_134_whole_samples_come_before_a_cut_and_the_next_shard_after_it() {
    for name in ["trunc_member.tar", "trunc_header.tar"] {
        let (all, report) = check(name, &Shards::options(), "", in_sequence).unwrap();
        let e = all[2].as_ref().unwrap_err();
        let len = fs::metadata(tar(name)).unwrap().len();
        assert!(e.place().offset.is_some_and(|at| at > 7000 && at <= len), "{e}");
        assert_eq!((e.place().shard.as_deref(), report.damaged()), (Some(name), 1));

        let refused = Shards::open(tar(name)).unwrap_err();
        assert_eq!((refused.kind(), refused.place().offset), (e.kind(), e.place().offset));
        assert!(refused.message().contains("2 whole samples come before"), "{refused}");
        let both = [tar(name), tar("no_eof_blocks.tar")];
        let skip = Shards::options().on_damage(OnDamage::Skip);
        let shards = skip.clone().open_all(&both).unwrap();
        assert_eq!((shards.len(), shards.report().damaged()), (Some(5), 1));
        let stream = skip.stream_all(&both).unwrap();
        let mut scratch = Bundle::default();
        assert!(stream.open(0).unwrap());
        for i in 0..5 {
            assert!(stream.pull(&mut scratch).unwrap());
            assert_eq!(plain(&scratch), plain(shards.read(i, &mut Bundle::default()).unwrap()));
        }
        assert!(!stream.pull(&mut scratch).unwrap());
        assert_eq!(stream.report().damaged(), 1);
    }
}

#[test]
fn row_135_the_end_blocks_may_be_missing() {
    holds("no_eof_blocks.tar");
    assert_eq!(Shards::open(tar("no_eof_blocks.tar")).unwrap().report().unmarked(), 1);
}

#[test]
fn row_136_a_sample_without_a_required_member_is_named() {
    let options = Shards::options().require(["txt", "cls"]);
    for read in [by_index, in_sequence] {
        let (all, _) = check("missing_field.tar", &options, "policy=fail", read).unwrap();
        let e = all[1].as_ref().unwrap_err();
        assert_eq!(
            (e.place().member.as_deref(), e.place().shard.as_deref()),
            (Some("0002"), Some("missing_field.tar"))
        );
        assert!(e.message().contains("\"cls\""), "{e}");
    }
}

#[test]
fn row_137_a_dot_in_the_base_name_by_either_rule() {
    for read in [by_index, in_sequence] {
        check("dots.tar", &Shards::options(), "rule=first dot", read).unwrap();
        check("dots.tar", &Shards::options().last_dot(), "rule=last dot", read).unwrap();
        let last = read(&tar("dots.tar"), Shards::options().last_dot());
        assert!(!outcomes("dots.tar", "rule=first dot").iter().any(|outcome| fits(outcome, &last)));
    }
}

#[test]
fn row_139_the_same_key_twice_is_an_error() {
    for read in [by_index, in_sequence] {
        let (all, _) = check("dup_key.tar", &Shards::options(), "", read).unwrap();
        assert!(all[0].as_ref().unwrap_err().to_string().contains("0001"));
    }
}

#[test]
fn row_141_side_files_of_macos_are_left_out_and_counted() {
    holds("appledouble.tar");
}

#[test]
fn row_142_links_and_directories_are_left_out_and_counted() {
    holds("links_dirs.tar");
}

#[test]
fn row_143_a_leading_dot_and_slash_is_no_part_of_a_key() {
    holds("dotslash.tar");
}

#[test]
fn row_144_compressed_shards_are_told_by_their_content() {
    for name in ["gz_named.tar", "ok.tar.gz", "gz_two_members.tar.gz"] {
        let (all, _) = check(name, &Shards::options(), "", in_sequence).unwrap();
        assert_eq!(all.len(), 3);
        let e = check(name, &Shards::options(), "", by_index).unwrap_err();
        assert!(e.message().contains("ShardStream"), "{e}");
    }
}

#[test]
fn row_146_concatenated_archives_are_all_read() {
    holds("concat.tar");
    assert_eq!(Shards::open(tar("concat.tar")).unwrap().len(), Some(4));
}

#[test]
fn row_148_a_sparse_member_is_refused_and_the_next_one_intact() {
    holds("gnu_sparse.tar");
}

/// An archive of samples `first..first + n`: a number as text, and its class.
fn write(path: &Path, first: usize, n: usize) {
    let mut builder = tar::Builder::new(Vec::new());
    for i in first..first + n {
        for (field, text) in [("txt", i.to_string()), ("cls", (i % 10).to_string())] {
            let mut header = tar::Header::new_ustar();
            header.set_size(text.len() as u64);
            builder.append_data(&mut header, format!("{i:05}.{field}"), text.as_bytes()).unwrap();
        }
    }
    fs::write(path, builder.into_inner().unwrap()).unwrap();
}

#[test]
fn row_202_an_index_of_more_samples_than_the_shard_holds() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.tar");
    let open = || Shards::options().cache_index_beside().open(&path);
    write(&path, 0, 100);
    let before = open().unwrap();
    assert_eq!(before.len(), Some(100));
    // In the `txt` of sample 85, each member being of two blocks.
    fs::write(&path, &fs::read(&path).unwrap()[..85 * 2048 + 513]).unwrap();
    let mut scratch = Bundle::default();
    assert_eq!(before.read(84, &mut scratch).unwrap().member("txt"), Some(b"84".as_slice()));
    let e = before.read(85, &mut scratch).unwrap_err();
    assert_eq!(
        (e.kind(), e.place().index, e.place().shard.as_deref()),
        (ErrorKind::Truncated, Some(85), Some("x.tar"))
    );
    let e = open().unwrap_err();
    assert_eq!((e.kind(), e.place().shard.as_deref()), (ErrorKind::Truncated, Some("x.tar")));
    assert!(
        e.message().contains("85 whole samples come before; the index that was kept of it counts 100"),
        "{e}"
    );
    let shards = Shards::options().cache_index_beside().on_damage(OnDamage::Skip).open(&path).unwrap();
    assert_eq!((shards.len(), shards.report().damaged()), (Some(85), 1));
}

/// Names and contents of all files below a folder.
fn listing(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut all = BTreeMap::new();
    for path in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        if path.is_dir() {
            all.extend(listing(&path))
        } else {
            drop(all.insert(path.clone(), fs::read(path).unwrap()))
        }
    }
    all
}

#[test]
fn row_204_nothing_is_written_or_deleted_among_the_inputs() {
    within(LONG, || {
        let (device, stream) = device_and_stream();
        let (folder, kept) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        for i in 0..4 {
            write(&folder.path().join(format!("{i}.tar")), 10 * i, 10);
        }
        fs::copy(tar("trunc_member.tar"), folder.path().join("cut.tar")).unwrap();
        let before = listing(folder.path());
        let pattern = folder.path().join("{0..3}.tar");
        Shards::open(folder.path()).unwrap_err();
        let loader = text(Shards::open(&pattern).unwrap()).build(&device).unwrap();
        assert_eq!(samples(&loader, &stream).len(), 40);
        let source = Shards::options().stream(&pattern).unwrap();
        assert_eq!(samples(&text(source).build(&device).unwrap(), &stream).len(), 40);
        for _ in 0..2 {
            Shards::options().cache_index_in(kept.path()).open(&pattern).unwrap();
        }
        assert_eq!(listing(folder.path()), before);
        assert_eq!(listing(kept.path()).len(), 4);
    });
}

/// The number that a sample's `txt` is.
struct Text;

impl<S: Source<Record = Bundle>> Decode<S> for Text {
    type Scratch = ();

    fn fields(&self, _: &S) -> warpfeed::Result<Vec<Field>> {
        Ok(vec![Field::scalar::<u64>("x")])
    }

    fn decode(&self, sample: &mut Sample<'_, S>, (): &mut (), row: &mut Row<'_>) -> anyhow::Result<()> {
        let text = sample.read()?.member("txt").ok_or_else(|| anyhow::anyhow!("no txt"))?;
        let x: u64 = std::str::from_utf8(text)?.parse()?;
        Ok(row.set("x", x)?)
    }
}

fn text<S: Source<Record = Bundle>>(source: S) -> Builder<S, Text> {
    Loader::builder(source).decode(Text).batch_size(7).workers(2)
}

fn sorted(mut all: Vec<u64>) -> Vec<u64> {
    all.sort_unstable();
    all
}

/// Ten shards of different sizes, with the numbers 0 to 459.
fn ten() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let mut first = 0;
    for i in 0..10 {
        let n = 1 + 10 * i;
        write(&folder.path().join(format!("train-{i:03}.tar")), first, n);
        first += n;
    }
    let pattern = folder.path().join("train-{000..009}.tar");
    (folder, pattern)
}

#[test]
fn a_loader_delivers_every_sample_of_the_shards_once_an_epoch() {
    within(LONG, || {
        let (device, stream) = device_and_stream();
        let (_folder, pattern) = ten();
        let all: Vec<u64> = (0..460).collect();
        for workers in [0, 3] {
            let shards = Shards::open(&pattern).unwrap();
            let loader = text(shards).workers(workers).shuffle(5).build(&device).unwrap();
            let epochs = [samples(&loader, &stream), samples(&loader, &stream)];
            assert!(epochs[0] != epochs[1] && epochs.iter().all(|one| sorted(one.clone()) == all));
            let source = Shards::options().stream(&pattern).unwrap();
            let source = source.shuffle_shards(5).shuffle_buffer(50, 5).unwrap();
            let loader = text(source).workers(workers).build(&device).unwrap();
            let epochs = [samples(&loader, &stream), samples(&loader, &stream)];
            assert!(epochs[0] != epochs[1] && epochs.iter().all(|one| sorted(one.clone()) == all));
            assert!(!epochs[0].is_sorted());
        }
    });
}

#[test]
fn ranks_share_a_stream_by_samples_or_by_shards() {
    within(LONG, || {
        let (device, stream) = device_and_stream();
        let (_folder, pattern) = ten();
        let open = || Shards::options().stream(&pattern).unwrap().shuffle_shards(9);
        let by_samples = |rank| {
            let loader = text(open()).shard(Shard::new(rank, 4).unwrap()).remainder(Remainder::Uneven);
            loader.build(&device).unwrap()
        };
        let by_shards = |rank| text(open().split_shards(rank, 4).unwrap()).build(&device).unwrap();
        for one in [&by_samples as &dyn Fn(u64) -> Loader, &by_shards] {
            let all = (0..4).flat_map(|rank| samples(&one(rank), &stream)).collect();
            assert_eq!(sorted(all), (0..460).collect::<Vec<u64>>());
        }
    });
}

#[test]
fn a_run_over_shards_is_resumed_where_it_was() {
    within(LONG, || {
        let (device, stream) = device_and_stream();
        let (_folder, pattern) = ten();
        let by_index = |_: ()| text(Shards::open(&pattern).unwrap()).shuffle(3);
        let whole = epoch(&by_index(()).build(&device).unwrap(), &stream);
        let loader = by_index(()).build(&device).unwrap();
        let mut running = loader.epoch(&stream).unwrap();
        let seen: Vec<Vec<u64>> = running.by_ref().take(9).map(|b| values(&b.unwrap())).collect();
        let state = loader.state();
        assert_eq!(seen, whole[..9]);
        let resumed = by_index(()).workers(0).resume(state).build(&device).unwrap();
        assert_eq!(epoch(&resumed, &stream), whole[9..]);
        let other = text(Shards::options().last_dot().open(&pattern).unwrap()).shuffle(3).resume(state);
        assert_eq!(other.build(&device).unwrap_err().kind(), ErrorKind::StateMismatch);

        let in_sequence = || {
            let source = Shards::options().stream(&pattern).unwrap().shuffle_shards(3);
            text(source.shuffle_buffer(30, 3).unwrap())
        };
        let whole = epoch(&in_sequence().build(&device).unwrap(), &stream);
        let loader = in_sequence().build(&device).unwrap();
        let mut running = loader.epoch(&stream).unwrap();
        assert_eq!(running.by_ref().take(9).map(|b| values(&b.unwrap())).collect::<Vec<_>>(), whole[..9]);
        let resumed = in_sequence().resume(loader.state()).build(&device).unwrap();
        assert_eq!(epoch(&resumed, &stream), whole[9..]);
    });
}

#[test]
fn a_damaged_shard_of_a_stream_is_one_hole_under_the_skip_policy() {
    within(LONG, || {
        let (device, stream) = device_and_stream();
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        write(&path("a.tar"), 1, 10);
        write(&path("b.tar"), 11, 10);
        let cut = fs::read(path("a.tar")).unwrap();
        fs::write(path("a.tar"), &cut[..5 * 2048 + 600]).unwrap();
        let open = || Shards::options().stream(path("{a,b}.tar")).unwrap();
        let loader = text(open()).on_error(OnError::Skip { limit: 1 }).build(&device).unwrap();
        let expected: Vec<u64> = (1..6).chain([0]).chain(11..21).collect();
        assert_eq!(samples(&loader, &stream), expected, "one hole, of zeros");
        let loader = text(open()).build(&device).unwrap();
        let e = loader.epoch(&stream).unwrap().find_map(Result::err).unwrap();
        assert_eq!(
            (e.kind(), e.place().index, e.place().shard.as_deref()),
            (ErrorKind::Truncated, Some(5), Some("a.tar"))
        );
    });
}

//! Samples that fail, panic or get stuck. The number in a test's name is the row of the list in `docs/FAILURES.md`.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test stops at the first surprise")]

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use warpfeed::decode::Sample;
use warpfeed::sampler::Sampler;
use warpfeed::source::{RecordFile, Source, from_fn};
use warpfeed::{Builder, Error, ErrorKind, Field, Loader, OnError, Order, Place, SampleRng, Stage, Stream};

#[path = "support/watch.rs"]
mod watch;
use watch::{LONG, Number, device_and_stream, epoch, numbers, range, samples, values, within};

/// A source of the numbers below `n`, of which `check` may fail some. It is told the index and how often it was
/// called for that index before.
fn flaky(
    n: u64,
    check: impl Fn(u64, u32) -> anyhow::Result<()> + Send + Sync + 'static,
) -> Builder<impl Source<Record = u64>, Number> {
    let calls = Mutex::new(HashMap::<u64, u32>::new());
    let source = from_fn(n, move |i| {
        let before = {
            let mut calls = calls.lock().unwrap();
            let count = calls.entry(i).or_default();
            *count += 1;
            *count - 1
        };
        check(i, before).map(|()| i)
    });
    Loader::builder(source).decode(Number)
}

fn broken(index: u64) -> impl Fn(u64, u32) -> anyhow::Result<()> + Send + Sync + 'static {
    move |i, _| if i == index { anyhow::bail!("boom {i}") } else { Ok(()) }
}

/// The good batches of an epoch, then its error; the iterator must end behind it.
fn until_error(loader: &Loader, stream: &Stream) -> (Vec<Vec<u64>>, Error) {
    let mut running = loader.epoch(stream).unwrap();
    let mut seen = Vec::new();
    loop {
        match running.next() {
            None => panic!("an epoch with an error has no clean end"),
            Some(Ok(batch)) => seen.push(values(&batch)),
            Some(Err(e)) => {
                assert!(running.next().is_none() && running.next().is_none());
                return (seen, e);
            }
        }
    }
}

#[test]
fn row_31_a_panic_comes_in_its_place_and_the_loader_ends() {
    within(LONG, || {
        let (device, stream) = device_and_stream();
        for workers in [0, 1, 4] {
            let loader = flaky(40, |i, _| if i == 7 * 2 { panic!("boom in batch 7") } else { Ok(()) });
            let loader = loader.batch_size(2).workers(workers).build(&device).unwrap();
            let (seen, e) = until_error(&loader, &stream);
            assert_eq!(seen.concat(), (0..14).collect::<Vec<_>>());
            assert_eq!((e.kind(), e.place().index, e.place().batch), (ErrorKind::Panic, Some(14), Some(7)));
            assert!(e.to_string().contains("boom in batch 7"), "{e}");
            let start = Instant::now();
            drop(loader);
            assert!(start.elapsed() < Duration::from_secs(1));
        }
    });
}

/// A source whose records lie in shards.
struct Sharded;

impl Source for Sharded {
    type Record = u64;
    type Scratch = ();

    fn len(&self) -> Option<u64> {
        Some(10)
    }
    fn fingerprint(&self) -> u64 {
        1
    }
    fn describe(&self, index: u64) -> Place {
        let mut place = Place::of_index(index);
        (place.shard, place.member) = (Some(format!("s{}.tar", index / 5)), Some(format!("{index:04}.txt")));
        place
    }
    fn read<'a>(&'a self, index: u64, (): &'a mut ()) -> warpfeed::Result<&'a u64> {
        if index == 6 { Err(Error::new(ErrorKind::Corrupt, "bad header")) } else { Ok(&1) }
    }
}

#[test]
fn row_49_an_error_names_file_shard_member_and_offset() {
    within(LONG, || {
        let (device, stream) = device_and_stream();
        let loader = Loader::builder(Sharded).decode(Number).batch_size(4).workers(1).build(&device).unwrap();
        let (_, e) = until_error(&loader, &stream);
        let p = e.place();
        assert_eq!((p.index, p.row, p.stage), (Some(6), Some(2), Some(Stage::Read)));
        assert_eq!((p.shard.as_deref(), p.member.as_deref()), (Some("s1.tar"), Some("0006.txt")));
        for part in ["bad header", "index 6", "s1.tar", "0006.txt", "stage read", "epoch 0", "batch 1"] {
            assert!(e.to_string().contains(part), "{e}");
        }

        let dir = tempfile::tempdir().unwrap();
        let path: PathBuf = dir.path().join("records.bin");
        std::fs::write(&path, [7; 100]).unwrap();
        let source = RecordFile::open(&path, 10).unwrap();
        std::fs::File::options().write(true).open(&path).unwrap().set_len(44).unwrap();
        let loader = Loader::builder(source).batch_size(2).workers(1).build(&device).unwrap();
        let e = loader.epoch(&stream).unwrap().find_map(Result::err).unwrap();
        assert_eq!((e.kind(), e.place().index, e.place().offset), (ErrorKind::Truncated, Some(4), Some(40)));
        assert_eq!(e.place().path.as_ref(), Some(&path));
        assert!(e.to_string().contains(path.to_str().unwrap()) && e.to_string().contains("byte 40"), "{e}");
    });
}

#[test]
fn row_51_a_panic_is_an_error_and_other_loaders_work() {
    within(LONG, || {
        let (device, stream) = device_and_stream();
        for workers in [0, 2] {
            let decode = |s: &mut Sample<'_, _>, row: &mut warpfeed::Row<'_>| {
                assert!(s.index() != 13, "boom {}", s.index());
                Ok(row.set("x", s.index())?)
            };
            let loader = Loader::builder(range(20)).decode_with([Field::scalar::<u64>("x")], decode);
            let loader = loader.workers(workers).build(&device).unwrap();
            let (seen, e) = until_error(&loader, &stream);
            assert_eq!((seen.len(), e.kind(), e.place().index), (13, ErrorKind::Panic, Some(13)));
            assert_eq!(e.place().stage, Some(Stage::Decode));
            assert!(e.to_string().contains("boom 13"), "{e}");
            let other = numbers(20).workers(workers).build(&device).unwrap();
            assert_eq!(samples(&other, &stream).len(), 20);
        }
    });
}

#[test]
fn row_61_an_error_is_never_a_clean_end() {
    within(LONG, || {
        let (device, stream) = device_and_stream();
        for workers in [0, 1, 3] {
            let loader = flaky(5, broken(3)).workers(workers).build(&device).unwrap();
            for attempt in 0..3 {
                let (seen, e) = until_error(&loader, &stream);
                let wanted = if attempt == 0 { vec![0, 1, 2] } else { vec![] };
                assert_eq!((seen.concat(), e.message(), e.place().index), (wanted, "boom 3", Some(3)));
                assert_eq!(loader.state().position(), 3, "it stays at the batch that failed");
            }
        }
    });
}

#[test]
fn row_63_two_shapes_in_a_batch_are_named() {
    within(LONG, || {
        let (device, stream) = device_and_stream();
        let loader =
            Loader::builder(range(2)).decode_with([Field::new::<u8>("image", &[3, 32, 64])], |s, row| {
                let width = 64 - *s.read()? as usize;
                Ok(row.copy_shaped("image", &[3, 32, width], &vec![0u8; 3 * 32 * width])?)
            });
        let loader = loader.batch_size(2).workers(1).build(&device).unwrap();
        let e = loader.epoch(&stream).unwrap().next().unwrap().unwrap_err();
        assert_eq!((e.kind(), e.place().index), (ErrorKind::ShapeMismatch, Some(1)));
        for part in ["[3, 32, 64]", "[3, 32, 63]", "image", "index 1"] {
            assert!(e.to_string().contains(part), "{e}");
        }
    });
}

#[test]
fn a_field_that_is_not_written_is_an_error() {
    within(LONG, || {
        let (device, stream) = device_and_stream();
        let fields = [Field::scalar::<u64>("x"), Field::scalar::<f32>("label")];
        let loader = Loader::builder(range(3)).decode_with(fields, |s, row| {
            row.set("x", s.index())?;
            if s.index() != 1 {
                row.set("label", 1f32)?;
            }
            Ok(())
        });
        let loader = loader.workers(1).build(&device).unwrap();
        let (_, e) = until_error(&loader, &stream);
        assert_eq!((e.kind(), e.place().index), (ErrorKind::MissingField, Some(1)));
        assert!(e.to_string().contains("label"), "{e}");
    });
}

#[test]
fn after_a_failure_the_next_epoch_tries_that_batch_again() {
    within(LONG, || {
        let (device, stream) = device_and_stream();
        for workers in [0, 1, 4] {
            let loader =
                flaky(30, |i, calls| if i == 11 && calls < 2 { anyhow::bail!("{calls}") } else { Ok(()) });
            let loader = loader.batch_size(4).workers(workers).build(&device).unwrap();
            let (seen, e) = until_error(&loader, &stream);
            assert_eq!((seen.len(), e.message(), loader.state().position()), (2, "0", 8));
            let (seen, e) = until_error(&loader, &stream);
            assert_eq!((seen.len(), e.message()), (0, "1"));
            let running = loader.epoch(&stream).unwrap();
            assert_eq!((running.number(), running.remaining()), (0, Some(6)));
            let rest: Vec<_> = running.flat_map(|b| values(&b.unwrap())).collect();
            assert_eq!(rest, (8..30).collect::<Vec<_>>());
            assert_eq!(epoch(&loader, &stream).len(), 8);
        }
    });
}

#[test]
fn as_ready_a_failure_loses_and_repeats_nothing() {
    within(LONG, || {
        let (device, stream) = device_and_stream();
        let loader = flaky(60, |i, calls| {
            std::thread::sleep(Duration::from_millis(if i % 20 == 4 { 15 } else { 0 }));
            if i % 20 == 9 && calls == 0 { anyhow::bail!("once") } else { Ok(()) }
        });
        let loader =
            loader.batch_size(2).workers(3).host_slots(6).order(Order::AsReady).epochs(1).build(&device);
        let loader = loader.unwrap();
        let (mut seen, mut errors) = (Vec::new(), 0);
        while loader.state().epoch() == 0 {
            for batch in loader.epoch(&stream).unwrap() {
                match batch {
                    Ok(batch) => seen.extend(values(&batch)),
                    Err(e) => errors += usize::from(e.message() == "once"),
                }
            }
        }
        seen.sort_unstable();
        assert_eq!(seen, (0..60).collect::<Vec<_>>());
        // A failure of a batch that was fed again before it was delivered is not seen.
        assert!((1..=3).contains(&errors), "{errors}");
    });
}

#[test]
fn a_skipped_sample_is_a_hole_of_zeros() {
    within(LONG, || {
        let (device, stream) = device_and_stream();
        for (workers, compact) in [(0, false), (2, false), (0, true), (2, true)] {
            let loader =
                flaky(10, |i, _| if i % 4 == 1 { anyhow::bail!("boom") } else { Ok(()) }).batch_size(4);
            let loader = loader.on_error(OnError::Skip { limit: 3 }).compact(compact).workers(workers);
            let loader = loader.build(&device).unwrap();
            for _ in 0..2 {
                let batches = loader.epoch(&stream).unwrap().map(|b| b.unwrap()).map(|b| {
                    assert_eq!(b.valid().to_vec(), b.host::<bool>("valid").unwrap().to_vec());
                    (values(&b), b.valid().to_vec(), b.indices().to_vec())
                });
                let batches = batches.collect::<Vec<_>>();
                let wanted = if compact {
                    vec![vec![0, 3, 2], vec![4, 7, 6], vec![8]]
                } else {
                    vec![vec![0, 0, 2, 3], vec![4, 0, 6, 7], vec![8, 0]]
                };
                assert_eq!(batches.iter().map(|b| b.0.clone()).collect::<Vec<_>>(), wanted);
                if compact {
                    assert!(batches.iter().all(|b| b.1.iter().all(|v| *v) && b.0 == b.2));
                } else {
                    assert_eq!(batches[0].1, [true, false, true, true]);
                    assert_eq!(batches[2], (vec![8, 0], vec![true, false], vec![8, 9]));
                }
            }
            assert_eq!((loader.stats().samples, loader.stats().failed), (14, 6));
        }
    });
}

/// What a run under `policy` comes to: what was delivered, its errors, and the quarantine file.
fn outcome(policy: &OnError, workers: usize) -> (Vec<Vec<u64>>, Vec<String>, String) {
    let (device, stream) = device_and_stream();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("quarantine.jsonl");
    let loader = flaky(120, |i, _| {
        let mut rng = SampleRng::new(9, 9, i);
        std::thread::sleep(Duration::from_micros(rng.below(300)));
        if rng.chance(0.15) { anyhow::bail!("broken {i}") } else { Ok(()) }
    });
    let loader = loader.shuffle(2).batch_size(5).workers(workers).on_error(policy.clone()).quarantine(&path);
    let loader = loader.epochs(2).build(&device).unwrap();
    let (mut seen, mut errors) = (Vec::new(), Vec::new());
    for _ in 0..2 {
        for batch in loader.epoch(&stream).unwrap() {
            match batch {
                Ok(batch) => seen.push([values(&batch), batch.indices().to_vec()].concat()),
                Err(e) => errors.push(format!("{:?} {} {:?}", e.kind(), e.message(), e.place().index)),
            }
        }
    }
    (seen, errors, std::fs::read_to_string(path).unwrap())
}

#[test]
fn limits_trip_and_faults_are_recorded_in_delivery_order_on_any_workers() {
    within(LONG, || {
        for (policy, trips) in [
            (OnError::Skip { limit: 4 }, 2),
            (OnError::Skip { limit: 1000 }, 0),
            (OnError::Replace { limit: 6 }, 2),
            (OnError::Replace { limit: 1000 }, 0),
            (retry(1, Duration::from_micros(100), OnError::Skip { limit: 5 }), 2),
        ] {
            let one = outcome(&policy, 1);
            assert_eq!(one.1.len(), trips, "{policy:?}: {:?}", one.1);
            assert!(one.1.iter().all(|e| e.starts_with("TooManyFaults")), "{:?}", one.1);
            assert!(one.2.lines().count() > 4);
            for workers in [0, 2, 8] {
                assert_eq!(outcome(&policy, workers), one, "{policy:?} on {workers} workers");
            }
        }
    });
}

#[test]
fn a_limit_is_the_number_of_faults_that_an_epoch_may_have() {
    within(LONG, || {
        let (device, stream) = device_and_stream();
        let build = |policy| {
            let loader =
                flaky(40, |i, _| if [3, 9, 22].contains(&i) { anyhow::bail!("boom {i}") } else { Ok(()) });
            loader.batch_size(5).workers(2).on_error(policy).build(&device).unwrap()
        };
        let loader = build(OnError::Skip { limit: 3 });
        for _ in 0..3 {
            assert_eq!(epoch(&loader, &stream).len(), 8, "each epoch counts for itself");
        }
        let loader = build(OnError::Skip { limit: 2 });
        let (seen, e) = until_error(&loader, &stream);
        assert_eq!((seen.len(), e.kind()), (4, ErrorKind::TooManyFaults));
        assert_eq!((e.place().index, e.place().batch, e.place().row), (Some(22), Some(4), Some(2)));
        assert!(e.to_string().contains("limit is 2") && e.to_string().contains("boom 22"), "{e}");
    });
}

fn retry(times: u32, backoff: Duration, then: OnError) -> OnError {
    OnError::Retry { times, backoff, then: Box::new(then) }
}

#[test]
fn a_replacement_is_another_sample_that_can_be_had() {
    within(LONG, || {
        let (device, stream) = device_and_stream();
        let broken = |i: u64, _| if i.is_multiple_of(3) { anyhow::bail!("boom") } else { Ok(()) };
        let build = |limit| flaky(30, broken).batch_size(6).workers(2).on_error(OnError::Replace { limit });
        let loader = build(100).build(&device).unwrap();
        for batch in loader.epoch(&stream).unwrap() {
            let batch = batch.unwrap();
            assert_eq!(batch.len(), 6);
            assert!(batch.valid().iter().all(|v| *v) && values(&batch).iter().all(|x| x % 3 != 0));
            assert_eq!(
                values(&batch),
                batch.indices(),
                "the indices are those of the samples that are there"
            );
        }
        assert!(loader.stats().replaced >= 10);
        let none = flaky(30, |_, _| anyhow::bail!("all")).workers(2).on_error(OnError::Replace { limit: 7 });
        let (_, e) = until_error(&none.build(&device).unwrap(), &stream);
        assert_eq!(e.kind(), ErrorKind::TooManyFaults);
    });
}

#[test]
fn a_retry_succeeds_and_no_worker_sleeps_for_it() {
    within(LONG, || {
        let (device, stream) = device_and_stream();
        let backoff = Duration::from_millis(150);
        for workers in [0, 1] {
            let log = Arc::new(Mutex::new(Vec::new()));
            let told = log.clone();
            let loader = flaky(32, move |i, calls| {
                told.lock().unwrap().push((i, Instant::now()));
                if i == 2 && calls < 2 { anyhow::bail!("not yet") } else { Ok(()) }
            });
            let loader = loader.batch_size(8).workers(workers).on_error(retry(2, backoff, OnError::Fail));
            let loader = loader.epochs(1).build(&device).unwrap();
            assert_eq!(samples(&loader, &stream), (0..32).collect::<Vec<_>>());
            assert_eq!((loader.stats().failed, loader.stats().retried), (2, 2));
            let log = log.lock().unwrap();
            let tries: Vec<_> = (0..log.len()).filter(|&k| log[k].0 == 2).collect();
            let pauses: Vec<_> = tries.windows(2).map(|t| log[t[1]].1 - log[t[0]].1).collect();
            assert!(pauses[0] >= backoff && pauses[1] >= 2 * backoff, "{pauses:?}");
            let first = log[tries[0]].1;
            let meanwhile = log.iter().filter(|(_, at)| first < *at && *at < first + backoff).count();
            assert!(meanwhile > 0, "{workers} workers: nothing went on during the pause");
        }
    });
}

#[test]
fn retries_end_in_the_policy_behind_them_line_by_line() {
    within(LONG, || {
        let (device, stream) = device_and_stream();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("quarantine.jsonl");
        let policy = retry(2, Duration::ZERO, OnError::Skip { limit: 1 });
        let loader = flaky(8, broken(5)).batch_size(4).workers(2).on_error(policy).quarantine(&path);
        let loader = loader.epochs(1).build(&device).unwrap();
        assert_eq!(epoch(&loader, &stream), [[0, 1, 2, 3], [4, 0, 6, 7]]);
        let text = std::fs::read_to_string(path).unwrap();
        let lines: Vec<serde_json::Value> = text.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
        let outcomes = lines.iter().map(|l| (l["attempt"].as_u64().unwrap(), l["outcome"].as_str().unwrap()));
        assert_eq!(outcomes.collect::<Vec<_>>(), [(0, "retried"), (1, "retried"), (2, "failed")]);
        for line in lines {
            let place = ["epoch", "batch", "row", "index"].map(|k| line[k].as_u64().unwrap());
            assert_eq!((place, line["stage"].as_str()), ([0, 1, 1, 5], Some("read")));
        }
    });
}

/// Sequential, until it is asked for this position; and a source that panics in `hint`, or in `describe`.
struct Panicking {
    at: u64,
    hint: bool,
    describe: bool,
}

impl Sampler for Panicking {
    fn len(&self) -> u64 {
        20
    }
    fn index(&self, _: u64, position: u64) -> u64 {
        assert!(position != self.at, "no position {position}");
        position
    }
    fn fingerprint(&self) -> u64 {
        1
    }
}

impl Source for Panicking {
    type Record = u64;
    type Scratch = u64;

    fn len(&self) -> Option<u64> {
        Some(20)
    }
    fn fingerprint(&self) -> u64 {
        1
    }
    fn describe(&self, index: u64) -> Place {
        assert!(!self.describe, "no place");
        Place::of_index(index)
    }
    fn hint(&self, upcoming: &[u64]) {
        assert!(!(self.hint && upcoming.contains(&self.at)), "no hint");
    }
    fn read<'a>(&'a self, index: u64, scratch: &'a mut u64) -> warpfeed::Result<&'a u64> {
        if self.describe && index == self.at {
            return Err(Error::new(ErrorKind::Corrupt, "bad record"));
        }
        *scratch = index;
        Ok(scratch)
    }
}

#[test]
fn a_panic_in_a_sampler_or_in_any_call_of_a_source_is_an_error() {
    within(LONG, || {
        let (device, stream) = device_and_stream();
        let panicking = |hint, describe| Panicking { at: 9, hint, describe };
        for workers in [0, 2] {
            let build = |source| Loader::builder(source).decode(Number).batch_size(4).workers(workers);
            let sampler = numbers(20).batch_size(4).workers(workers).sampler(panicking(false, false));
            let hint = build(panicking(true, false)).build(&device).unwrap();
            for (loader, text) in [(sampler.build(&device).unwrap(), "no position 9"), (hint, "no hint")] {
                for seen_before in [2, 0] {
                    let (seen, e) = until_error(&loader, &stream);
                    assert_eq!((seen.len(), e.kind()), (seen_before, ErrorKind::Panic), "{e}");
                    assert!(e.to_string().contains(text), "{e}");
                }
            }
            let describe = build(panicking(false, true)).build(&device).unwrap();
            let (seen, e) = until_error(&describe, &stream);
            assert_eq!((seen.len(), e.kind(), e.place().index), (2, ErrorKind::Corrupt, Some(9)));
        }
    });
}

//! Sources of unknown length, which are pulled in order. The number in a test's name is the row of the list in
//! `docs/FAILURES.md`.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test stops at the first surprise")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

use warpfeed::sampler::{Remainder, Shard};
use warpfeed::source::{SourceExt, from_iter, from_iter_fn, try_from_iter_fn};
use warpfeed::{ErrorKind, Field, Loader, OnError, State, Stream};

#[path = "support/watch.rs"]
mod watch;
use watch::{LONG, Number, alone, device_and_stream, epoch, resident, samples, values, within};

fn all(n: u64) -> Vec<u64> {
    (0..n).collect()
}

/// The first `k` batches of the next epoch, and the state behind them.
fn start(loader: &Loader, stream: &Stream, k: usize) -> (Vec<Vec<u64>>, State) {
    let mut running = loader.epoch(stream).unwrap();
    let seen = running.by_ref().take(k).map(|b| values(&b.unwrap())).collect();
    (seen, loader.state())
}

#[test]
fn row_80_a_stream_is_shared_not_repeated_by_the_workers() {
    within(LONG, || {
        let (device, stream) = device_and_stream();
        for workers in [0, 1, 4] {
            let source = from_iter(0..10u64);
            let loader = Loader::builder(source).decode(Number).batch_size(2).workers(workers);
            let loader = loader.build(&device).unwrap();
            assert_eq!(epoch(&loader, &stream), [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]);
        }
    });
}

#[test]
fn row_88_an_endless_stream_can_be_left() {
    alone("row_88_an_endless_stream_can_be_left", || {
        let (device, stream) = device_and_stream();
        let loader = Loader::builder(from_iter(std::iter::repeat(7u64))).decode(Number).batch_size(10);
        let loader = loader.workers(2).build(&device).unwrap();
        assert_eq!((loader.len(), loader.is_empty()), (None, false));
        let mut running = loader.epoch(&stream).unwrap();
        assert_eq!(running.remaining(), None);
        for _ in 0..10 {
            running.next().unwrap().unwrap();
        }
        let before = resident();
        for _ in 0..90 {
            assert_eq!(values(&running.next().unwrap().unwrap()), [7; 10]);
        }
        let grown = resident().saturating_sub(before);
        assert!(grown < 8 << 20, "{grown} bytes more");
        let start = Instant::now();
        drop(running);
        drop(loader);
        assert!(start.elapsed() < Duration::from_secs(1));
    });
}

#[test]
fn row_89_a_used_up_stream_ends_at_once() {
    within(LONG, || {
        let (device, stream) = device_and_stream();
        for workers in [0, 2] {
            let loader = Loader::builder(from_iter(0..10u64)).decode(Number).batch_size(4).workers(workers);
            let loader = loader.build(&device).unwrap();
            assert_eq!(samples(&loader, &stream), all(10));
            let start = Instant::now();
            for _ in 0..3 {
                assert_eq!(epoch(&loader, &stream).len(), 0);
            }
            assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
        }
    });
}

#[test]
fn a_stream_that_opens_anew_comes_whole_each_epoch_also_after_one_that_was_left() {
    within(LONG, || {
        let (device, stream) = device_and_stream();
        for workers in [0, 2] {
            let source = from_iter_fn(|epoch| (0..10).map(move |i| 100 * epoch + i)).take(9);
            let loader = Loader::builder(source).decode(Number).batch_size(4).workers(workers);
            let loader = loader.build(&device).unwrap();
            assert_eq!(samples(&loader, &stream), (0..9).collect::<Vec<_>>());
            assert_eq!(
                values(&loader.epoch(&stream).unwrap().next().unwrap().unwrap()),
                [100, 101, 102, 103]
            );
            assert_eq!(samples(&loader, &stream), (200..209).collect::<Vec<_>>());
        }
    });
}

#[test]
fn a_sequence_is_read_again_up_to_the_state() {
    within(LONG, || {
        let (device, stream) = device_and_stream();
        for workers in [0, 2] {
            let pulled = Arc::new(AtomicU64::new(0));
            let build = || {
                let counted = pulled.clone();
                let items = move |epoch: u64| {
                    let counted = counted.clone();
                    (0..20).map(move |i| {
                        counted.fetch_add(1, SeqCst);
                        100 * epoch + i
                    })
                };
                Loader::builder(from_iter_fn(items)).decode(Number).workers(workers)
            };
            let loader = build().batch_size(3).build(&device).unwrap();
            assert_eq!(samples(&loader, &stream), (0..20).collect::<Vec<_>>());
            let (_, state) = start(&loader, &stream, 3);
            assert_eq!((state.epoch(), state.position()), (1, 9));
            drop(loader);
            pulled.store(0, SeqCst);
            let resumed = build().batch_size(4).resume(state).epochs(2).build(&device).unwrap();
            assert_eq!(samples(&resumed, &stream), (109..120).collect::<Vec<_>>());
            assert_eq!(pulled.load(SeqCst), 20, "the 9 records before it are read again, once");
        }
    });
}

#[test]
fn a_source_that_is_read_once_does_not_resume() {
    within(LONG, || {
        let (device, stream) = device_and_stream();
        let build = || Loader::builder(from_iter(0..20u64)).decode(Number).batch_size(3).workers(1);
        let loader = build().build(&device).unwrap();
        let fresh = loader.state();
        let (_, state) = start(&loader, &stream, 2);
        let e = build().resume(state).build(&device).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::NotResumable);
        let at_the_start = build().resume(fresh).build(&device).unwrap();
        assert_eq!(samples(&at_the_start, &stream).len(), 20);
    });
}

#[test]
fn ranks_share_a_sequence_by_position() {
    within(LONG, || {
        let (device, stream) = device_and_stream();
        let rank = |r, remainder| {
            let loader = Loader::builder(from_iter_fn(|_| 0..11u64)).decode(Number).batch_size(2).workers(1);
            let loader = loader.shard(Shard::new(r, 3).unwrap()).remainder(remainder).build(&device).unwrap();
            [samples(&loader, &stream), samples(&loader, &stream)]
        };
        let uneven: [&[u64]; 3] = [&[0, 3, 6, 9], &[1, 4, 7, 10], &[2, 5, 8]];
        for r in 0..3 {
            assert_eq!(rank(r, Remainder::Uneven), [uneven[r as usize]; 2]);
            assert_eq!(rank(r, Remainder::Drop), [&uneven[r as usize][..3]; 2]);
        }
        let padded =
            Loader::builder(from_iter_fn(|_| 0..11u64)).decode(Number).shard(Shard::new(0, 3).unwrap());
        assert_eq!(padded.build(&device).unwrap_err().kind(), ErrorKind::InvalidConfig);
    });
}

#[test]
fn a_record_that_can_not_be_had_is_one_record() {
    within(LONG, || {
        let (device, stream) = device_and_stream();
        for workers in [0, 2] {
            let build = || {
                let items = |_| {
                    Ok((0..10u64).map(|i| match i {
                        4 => Err(anyhow::anyhow!("boom {i}")),
                        7 => panic!("panic {i}"),
                        _ => Ok(i),
                    }))
                };
                Loader::builder(try_from_iter_fn(items)).decode(Number).batch_size(4).workers(workers)
            };
            let loader = build().on_error(OnError::Skip { limit: 2 }).build(&device).unwrap();
            for _ in 0..2 {
                assert_eq!(epoch(&loader, &stream), [vec![0, 1, 2, 3], vec![0, 5, 6, 0], vec![8, 9]]);
            }
            let loader = build().build(&device).unwrap();
            for seen in [1, 0] {
                let mut running = loader.epoch(&stream).unwrap();
                for _ in 0..seen {
                    running.next().unwrap().unwrap();
                }
                let e = running.next().unwrap().unwrap_err();
                assert_eq!((e.kind(), e.message(), e.place().index), (ErrorKind::Sample, "boom 4", Some(4)));
                assert!(running.next().is_none());
            }
        }
    });
}

#[test]
fn a_sequence_that_does_not_open_is_an_error_each_time() {
    within(LONG, || {
        let (device, stream) = device_and_stream();
        for workers in [0, 2] {
            let closed = AtomicU64::new(1);
            let source = try_from_iter_fn(move |epoch| {
                anyhow::ensure!(epoch != 1 || closed.swap(0, SeqCst) == 0, "closed today");
                Ok((0..5).map(Ok))
            });
            let loader = Loader::builder(source).decode(Number).batch_size(2).workers(workers);
            let loader = loader.build(&device).unwrap();
            assert_eq!(samples(&loader, &stream), all(5));
            let mut running = loader.epoch(&stream).unwrap();
            let e = running.next().unwrap().unwrap_err();
            assert!(e.message().contains("closed today"), "{e}");
            assert!(running.next().is_none());
            drop(running);
            let again = loader.epoch(&stream).unwrap();
            assert_eq!(again.number(), 1, "what failed is tried again");
            assert_eq!(again.flat_map(|b| values(&b.unwrap())).collect::<Vec<_>>(), all(5));
        }
    });
}

#[test]
fn a_source_that_is_read_once_and_left_early_loses_nothing() {
    for workers in [0, 1, 2] {
        within(LONG, move || {
            let (device, stream) = device_and_stream();
            let loader = Loader::builder(warpfeed::source::from_iter(0..100u64))
                .decode_with([Field::scalar::<u64>("x")], |s, row| {
                    let x = *s.read()?;
                    Ok(row.set("x", x)?)
                })
                .batch_size(7)
                .workers(workers)
                .build(&device)
                .unwrap();
            let mut seen = Vec::new();
            for turn in 0..3 {
                for batch in loader.epoch(&stream).unwrap().take(if turn < 2 { 3 } else { 99 }) {
                    seen.extend_from_slice(&batch.unwrap().host::<u64>("x").unwrap());
                }
            }
            assert_eq!(seen, (0..100).collect::<Vec<_>>(), "{workers} workers");
            assert_eq!(loader.epoch(&stream).unwrap().count(), 0);
        });
    }
}

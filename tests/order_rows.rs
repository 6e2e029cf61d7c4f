//! What comes, how often and in which order: reported failures of data loaders that must not be ours. The number
//! in a test's name is the row of the list in `docs/FAILURES.md`.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test stops at the first surprise"
)]

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use warpfeed::decode::{Decode, Sample};
use warpfeed::sampler::{Remainder, Shard, Shuffle};
use warpfeed::source::{self, Source, from_fn};
use warpfeed::{ErrorKind, Field, Loader, OnError, Order, Row};

mod support;
use support::logged;
use support::watch::{LONG, Number, device_and_stream, epoch, numbers, range, samples, values, within};

fn sorted(mut values: Vec<u64>) -> Vec<u64> {
    values.sort_unstable();
    values
}

fn all(n: u64) -> Vec<u64> {
    (0..n).collect()
}

#[test]
fn row_38_every_size_of_the_pipeline_delivers_the_same() {
    within(LONG, || {
        let (device, stream) = device_and_stream();
        for host in [1, 2, 3] {
            for slots in [1, 2] {
                for workers in [0, 1, 8] {
                    for batch in [1, 7] {
                        let cell = format!("{host} {slots} {workers} {batch}");
                        let build = || {
                            numbers(20)
                                .host_slots(host)
                                .device_slots(slots)
                                .workers(workers)
                                .batch_size(batch)
                        };
                        let loader = build().build(&device).unwrap();
                        assert_eq!(samples(&loader, &stream), all(20), "{cell}");
                        let loader = build().order(Order::AsReady).build(&device).unwrap();
                        assert_eq!(sorted(samples(&loader, &stream)), all(20), "{cell}, as ready");
                    }
                }
            }
        }
    });
}

#[test]
fn row_39_a_batch_may_be_one_sample_or_more_than_there_are() {
    within(LONG, || {
        let (device, stream) = device_and_stream();
        let lens = |batch, drop_last| -> Vec<usize> {
            let loader = numbers(5).batch_size(batch).drop_last(drop_last).build(&device).unwrap();
            epoch(&loader, &stream).iter().map(Vec::len).collect()
        };
        for drop_last in [false, true] {
            assert_eq!(lens(1, drop_last), [1; 5]);
            assert_eq!(lens(5, drop_last), [5]);
        }
        assert_eq!(lens(6, false), [5]);
        assert_eq!(lens(6, true), [] as [usize; 0]);
    });
}

/// Reads sample 0 only once it is told to.
fn gated(n: u64) -> (impl Source<Record = u64>, impl FnOnce()) {
    let (open, gate) = channel::<()>();
    let gate = Mutex::new(gate);
    let source = from_fn(n, move |i| {
        if i == 0 {
            let _ = gate.lock().unwrap().recv();
        }
        Ok(i)
    });
    (source, move || drop(open))
}

#[test]
fn row_54_a_slow_sample_delays_its_own_batch_only() {
    within(LONG, || {
        let (device, stream) = device_and_stream();
        let build = |source| Loader::builder(source).decode(Number).batch_size(4).workers(4);
        let (source, open) = gated(64);
        let loader = Loader::builder(source).decode(Number).batch_size(4).workers(4);
        let loader = loader.order(Order::AsReady).build(&device).unwrap();
        let mut running = loader.epoch(&stream).unwrap();
        // All batches but the gated one, while it is being decoded.
        let mut seen: Vec<_> = running.by_ref().take(15).map(|b| values(&b.unwrap())).collect();
        assert!(!seen.concat().contains(&0));
        open();
        let last = values(&running.next().unwrap().unwrap());
        assert_eq!(last, [0, 1, 2, 3]);
        assert!(running.next().is_none());
        seen.push(last);
        assert_eq!(sorted(seen.concat()), all(64));

        let slow = from_fn(64, |i| {
            std::thread::sleep(Duration::from_millis(if i == 0 { 50 } else { 1 }));
            Ok(i)
        });
        let loader = build(slow).build(&device).unwrap();
        assert_eq!(samples(&loader, &stream), all(64));
    });
}

/// The times between the arrivals of the batches of one epoch, the first from the epoch's start.
fn gaps(loader: &Loader, stream: &warpfeed::Stream) -> Vec<Duration> {
    let mut last = Instant::now();
    let mut gaps = Vec::new();
    for batch in loader.epoch(stream).unwrap() {
        batch.unwrap();
        gaps.push(last.elapsed());
        last = Instant::now();
    }
    gaps
}

fn median(gaps: &[Duration]) -> Duration {
    let mut sorted = gaps.to_vec();
    sorted.sort_unstable();
    sorted[sorted.len() / 2]
}

#[test]
fn row_56_batches_come_at_an_even_pace() {
    within(LONG, || {
        let (device, stream) = device_and_stream();
        // A batch a worker would give one slow and three fast gaps, again and again: p75 ≥ 4 × the mean of the rest.
        let even = (0..5).any(|_| {
            let slow = from_fn(8 * 24, |i| {
                std::thread::sleep(Duration::from_millis(10));
                Ok(i)
            });
            let loader = Loader::builder(slow).decode(Number).batch_size(8).workers(4);
            let loader = loader.device_slots(1).build(&device).unwrap();
            let mut gaps = gaps(&loader, &stream).split_off(4);
            gaps.sort_unstable();
            let p95 = gaps[gaps.len() * 95 / 100];
            println!("p95 {p95:?}, median {:?}", median(&gaps));
            p95 <= 2 * median(&gaps)
        });
        assert!(even, "in none of 5 runs was the p95 gap within twice the median");
    });
}

#[test]
fn row_58_later_epochs_start_at_once() {
    within(LONG, || {
        let (device, stream) = device_and_stream();
        let threads = Arc::new(Mutex::new(Vec::<ThreadId>::new()));
        let seen = threads.clone();
        let slow = from_fn(64, move |i| {
            std::thread::sleep(Duration::from_millis(2));
            let mut seen = seen.lock().unwrap();
            let me = std::thread::current().id();
            if !seen.contains(&me) {
                seen.push(me);
            }
            Ok(i)
        });
        let loader = Loader::builder(slow).decode(Number).batch_size(4).workers(2).build(&device).unwrap();
        let epochs: Vec<_> = (0..6).map(|_| gaps(&loader, &stream)).collect();
        let at_once = epochs[1..].iter().any(|gaps| gaps[0] <= 2 * median(gaps));
        assert!(at_once, "{epochs:?}");
        let threads = threads.lock().unwrap().len();
        assert!(threads <= 2, "{threads} threads decoded in 6 epochs: the 2 workers were not kept");
    });
}

#[test]
fn row_60_look_ahead_is_bounded_and_complete() {
    within(LONG, || {
        let (device, stream) = device_and_stream();
        for (workers, host, slots) in [(0, 3, 2), (1, 1, 1), (2, 3, 2), (8, 4, 1)] {
            let calls = Arc::new(AtomicU64::new(0));
            let counted = calls.clone();
            let source = from_fn(10, move |i| {
                counted.fetch_add(1, SeqCst);
                Ok(i)
            });
            let loader = Loader::builder(source).decode(Number).workers(workers);
            let loader = loader.host_slots(host).device_slots(slots).epochs(1).build(&device).unwrap();
            let bound = (host + slots) as u64;
            let mut delivered = 0;
            assert!(calls.load(SeqCst) <= bound);
            for batch in loader.epoch(&stream).unwrap() {
                delivered += batch.unwrap().len() as u64;
                std::thread::sleep(Duration::from_millis(2));
                let calls = calls.load(SeqCst);
                assert!(calls <= delivered + bound, "{calls} reads after {delivered} samples");
            }
            std::thread::sleep(Duration::from_millis(5));
            assert_eq!((delivered, calls.load(SeqCst)), (10, 10), "epochs(1) reads nothing of epoch 1");
        }
    });
}

#[test]
fn row_64_every_epoch_is_whole_also_after_one_that_was_left() {
    within(LONG, || {
        let (device, stream) = device_and_stream();
        for workers in [0, 2] {
            let loader = numbers(10).batch_size(3).workers(workers).build(&device).unwrap();
            for _ in 0..3 {
                assert_eq!(epoch(&loader, &stream).len(), 4);
                let first = loader.epoch(&stream).unwrap().next().unwrap().unwrap();
                assert_eq!(values(&first), [0, 1, 2]);
            }
            assert_eq!(epoch(&loader, &stream).concat(), all(10));
        }
    });
}

#[test]
fn row_65_each_epoch_has_its_own_order_whatever_the_workers() {
    within(LONG, || {
        let (device, stream) = device_and_stream();
        let orders = |workers| {
            let loader = numbers(1000).batch_size(16).shuffle(7).workers(workers).build(&device).unwrap();
            [samples(&loader, &stream), samples(&loader, &stream)]
        };
        let [first, second] = orders(1);
        assert_ne!(first, second);
        assert_eq!((sorted(first.clone()), sorted(second.clone())), (all(1000), all(1000)));
        for workers in [0, 2, 8] {
            assert_eq!(orders(workers), [first.clone(), second.clone()], "{workers} workers");
        }
    });
}

/// What each sample's generator says first.
struct Draw;

impl<S: Source> Decode<S> for Draw {
    type Scratch = ();

    fn fields(&self, _: &S) -> warpfeed::Result<Vec<Field>> {
        Ok(vec![Field::scalar::<u64>("x")])
    }

    fn decode(&self, sample: &mut Sample<'_, S>, (): &mut (), row: &mut Row<'_>) -> anyhow::Result<()> {
        Ok(row.set("x", sample.rng().u64())?)
    }
}

#[test]
fn row_67_draws_belong_to_samples_not_to_workers() {
    within(LONG, || {
        let (device, stream) = device_and_stream();
        let draws = |workers, batch| {
            let loader = Loader::builder(range(20)).decode(Draw).seed(3).workers(workers).batch_size(batch);
            let loader = loader.build(&device).unwrap();
            [samples(&loader, &stream), samples(&loader, &stream)]
        };
        let both = draws(0, 3);
        let distinct: BTreeSet<u64> = both.iter().flatten().copied().collect();
        assert_eq!(distinct.len(), 40, "20 samples in 2 epochs");
        assert_eq!(draws(1, 3), both);
        assert_eq!(draws(4, 7), both);
    });
}

/// One rank's epochs: values, and how many of them are marked as padding.
fn rank(
    n: u64,
    shard: (u64, u64),
    remainder: Remainder,
    batch: usize,
    epochs: usize,
) -> Vec<(Vec<u64>, usize)> {
    let (device, stream) = device_and_stream();
    let loader = numbers(n).shuffle(5).batch_size(batch).workers(1).remainder(remainder);
    let loader = loader.shard(Shard::new(shard.0, shard.1).unwrap()).build(&device).unwrap();
    let one = |_| {
        let (mut seen, mut padding, mut batches) = (Vec::new(), 0, 0);
        for b in loader.epoch(&stream).unwrap() {
            let b = b.unwrap();
            assert_eq!(b.indices(), values(&b));
            padding += (0..b.len()).filter(|&row| b.is_padding(row)).count();
            seen.extend(values(&b));
            batches += 1;
        }
        assert_eq!(loader.len(), Some(batches), "len() is what comes");
        (seen, padding)
    };
    (0..epochs).map(one).collect()
}

fn world(n: u64, count: u64, remainder: Remainder, batch: usize) -> Vec<(Vec<u64>, usize)> {
    (0..count).map(|r| rank(n, (r, count), remainder, batch, 1).remove(0)).collect()
}

fn counts(ranks: &[(Vec<u64>, usize)]) -> Vec<usize> {
    ranks.iter().map(|(values, _)| values.len()).collect()
}

#[test]
fn row_69_epochs_advance_by_themselves_and_ranks_stay_disjoint() {
    within(LONG, || {
        let (a, b) = (rank(22, (0, 2), Remainder::Pad, 4, 2), rank(22, (1, 2), Remainder::Pad, 4, 2));
        assert_ne!(a[0], a[1]);
        for epoch in 0..2 {
            assert_eq!(sorted([a[epoch].0.clone(), b[epoch].0.clone()].concat()), all(22));
        }
    });
}

#[test]
fn row_70_fewer_samples_than_ranks() {
    within(LONG, || {
        let padded = world(3, 7, Remainder::Pad, 2);
        assert_eq!(counts(&padded), [1; 7]);
        let union: BTreeSet<u64> = padded.iter().flat_map(|(v, _)| v.clone()).collect();
        assert_eq!(union.into_iter().collect::<Vec<_>>(), all(3));
        assert_eq!(counts(&world(3, 7, Remainder::Uneven, 2)), [1, 1, 1, 0, 0, 0, 0]);
        assert_eq!(counts(&world(3, 7, Remainder::Drop, 2)), [0; 7]);
    });
}

#[test]
fn row_71_padding_is_marked_and_can_be_left_out() {
    within(LONG, || {
        let padded = world(10, 3, Remainder::Pad, 4);
        assert_eq!((counts(&padded), padded.iter().map(|r| r.1).sum::<usize>()), (vec![4; 3], 2));
        let uneven = world(10, 3, Remainder::Uneven, 4);
        assert_eq!(counts(&uneven), [4, 3, 3]);
        assert_eq!(sorted(uneven.into_iter().flat_map(|r| r.0).collect()), all(10));
    });
}

#[test]
fn row_71_padding_stays_marked_where_holes_are_closed() {
    within(LONG, || {
        let (device, stream) = device_and_stream();
        // Rank 1 of 2 over 7 samples: 1, 3, 5 and, as padding, 0. Sample 1 fails, and the last row takes its place.
        let source = from_fn(7, |i| if i == 1 { anyhow::bail!("broken") } else { Ok(i) });
        let loader = Loader::builder(source).decode(Number).batch_size(4).shard(Shard::new(1, 2).unwrap());
        let loader =
            loader.on_error(OnError::Skip { limit: 1 }).compact(true).workers(1).build(&device).unwrap();
        let batch = loader.epoch(&stream).unwrap().next().unwrap().unwrap();
        let mut rows: Vec<_> =
            values(&batch).into_iter().zip((0..).map(|row| batch.is_padding(row))).collect();
        rows.sort_unstable();
        assert_eq!(rows, [(0, true), (3, false), (5, false)]);
    });
}

#[test]
fn row_73_all_ranks_take_as_many_steps() {
    within(LONG, || {
        let steps =
            |remainder| counts(&world(5, 2, remainder, 2)).iter().map(|n| n.div_ceil(2)).collect::<Vec<_>>();
        assert_eq!(steps(Remainder::Pad), [2, 2]);
        assert_eq!(steps(Remainder::Drop), [1, 1]);
    });
}

#[test]
fn row_75_len_counts_what_is_delivered() {
    within(LONG, || {
        let (device, stream) = device_and_stream();
        for (drop_last, batches, last) in [(false, 13, 4), (true, 12, 8)] {
            let loader = numbers(100).batch_size(8).workers(3).drop_last(drop_last).build(&device).unwrap();
            let seen = epoch(&loader, &stream);
            assert_eq!((loader.len(), seen.len()), (Some(batches), batches as usize));
            assert_eq!(seen.last().unwrap().len(), last);
        }
    });
}

#[test]
fn row_77_no_more_comes_out_than_there_is() {
    within(LONG, || {
        let (device, stream) = device_and_stream();
        for order in [Order::InOrder, Order::AsReady] {
            let loader =
                numbers(100).batch_size(4).workers(4).shuffle(1).order(order).build(&device).unwrap();
            let seen = epoch(&loader, &stream);
            assert_eq!((seen.len(), sorted(seen.concat())), (25, all(100)));
        }
    });
}

#[test]
fn row_79_all_ranks_have_the_same_count_with_drop_last() {
    within(LONG, || {
        let (device, stream) = device_and_stream();
        for r in 0..4 {
            let loader = numbers(137).batch_size(2).drop_last(true).shard(Shard::new(r, 4).unwrap());
            let loader = loader.workers(1).build(&device).unwrap();
            assert_eq!((loader.len(), epoch(&loader, &stream).len()), (Some(17), 17));
        }
    });
}

#[test]
fn row_86_a_wrong_world_is_named() {
    let e = Shard::new(0, 0).unwrap_err();
    assert!(e.to_string().contains("must be at least 1"), "{e}");
    let e = Shard::new(2, 2).unwrap_err();
    assert!(e.to_string().contains("rank 2") && e.to_string().contains("size of 2"), "{e}");
}

#[test]
fn row_87_an_epoch_without_a_batch_is_said_at_build() {
    within(LONG, || {
        let (device, stream) = device_and_stream();
        let build = || numbers(3).batch_size(8).drop_last(true).workers(1).build(&device).unwrap();
        let (loader, lines) = logged(build);
        assert_eq!((loader.len(), epoch(&loader, &stream).len()), (Some(0), 0));
        assert_eq!(epoch(&loader, &stream).len(), 0, "and so is every other epoch");
        let said: Vec<_> = lines.iter().filter(|l| l.contains("empty")).collect();
        assert!(
            said.len() == 1 && said[0].contains("3 samples") && said[0].contains("batch_size 8"),
            "{lines:?}"
        );
    });
}

#[test]
fn two_ways_to_set_the_order_are_refused() {
    let (device, _stream) = device_and_stream();
    let both = numbers(9).shuffle(1).sampler(Shuffle::new(9, 1)).build(&device);
    assert_eq!(both.unwrap_err().kind(), ErrorKind::InvalidConfig);
    let sequence = Loader::builder(source::from_iter(0..9u64)).decode(Number).shuffle(1).build(&device);
    assert_eq!(sequence.unwrap_err().kind(), ErrorKind::InvalidConfig);
}

//! Samples that do not come back, and loaders that end in spite of them; several loaders on one [`Runtime`].

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test stops at the first surprise")]

use std::collections::HashSet;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use warpfeed::source::{Source, from_fn};
use warpfeed::{Builder, ErrorKind, Field, Loader, Runtime, Stage};

#[path = "support/watch.rs"]
mod watch;
use watch::{LONG, Number, device_and_stream, epoch, eventually, numbers, range, samples, values, within};

/// Waits until the other end is dropped.
struct Gate(Mutex<Receiver<()>>);

fn gate() -> (Sender<()>, Gate) {
    let (open, gate) = channel();
    (open, Gate(Mutex::new(gate)))
}

impl Gate {
    fn pass(&self) {
        let _ = self.0.lock().unwrap().recv();
    }
}

/// The numbers below `n`, of which `index` is read only once the sender is dropped.
fn stuck(n: u64, index: u64) -> (Sender<()>, Builder<impl Source<Record = u64>, Number>) {
    let (open, gate) = gate();
    let source = from_fn(n, move |i| {
        if i == index {
            gate.pass();
        }
        Ok(i)
    });
    (open, Loader::builder(source).decode(Number))
}

#[test]
fn a_timeout_names_the_sample_that_is_stuck_and_the_epoch_goes_on() {
    within(LONG, || {
        let (device, stream) = device_and_stream();
        let limit = Duration::from_millis(40);
        let (open_read, reading) = stuck(20, 6);
        let (open, gate) = gate();
        let decoding = Loader::builder(range(20)).decode_with([Field::scalar::<u64>("x")], move |s, row| {
            let x = *s.read()?;
            if x == 6 {
                gate.pass();
            }
            Ok(row.set("x", x)?)
        });
        let reading = reading.batch_size(4).workers(2).timeout(limit).build(&device).unwrap();
        let decoding = decoding.batch_size(4).workers(2).timeout(limit).build(&device).unwrap();
        for (loader, open, stage) in [(reading, open_read, Stage::Read), (decoding, open, Stage::Decode)] {
            let mut running = loader.epoch(&stream).unwrap();
            // A busy machine may let the first batch be late, too.
            let mut next = || loop {
                match running.next().unwrap() {
                    Err(e) if e.place().index != Some(6) => assert_eq!(e.kind(), ErrorKind::Timeout),
                    other => return other,
                }
            };
            assert_eq!(values(&next().unwrap()), [0, 1, 2, 3]);
            for _ in 0..2 {
                let start = Instant::now();
                let e = next().unwrap_err();
                assert!(start.elapsed() >= limit);
                let p = e.place().clone();
                assert_eq!((e.kind(), p.index, p.stage), (ErrorKind::Timeout, Some(6), Some(stage)), "{e}");
                assert_eq!((p.epoch, p.batch, p.row), (Some(0), Some(1), Some(2)));
                assert!(p.worker.is_some_and(|w| w < 2), "{e}");
            }
            drop(open);
            for first in [4, 8, 12, 16] {
                assert_eq!(values(&next().unwrap()), (first..first + 4).collect::<Vec<_>>());
            }
        }
    });
}

#[test]
fn a_sample_that_is_stuck_among_trivial_ones_is_named_too() {
    within(LONG, || {
        let (device, stream) = device_and_stream();
        for workers in [1, 2] {
            let (open, builder) = stuck(4000, 3001);
            let loader = builder.batch_size(4).workers(workers).timeout(Duration::from_millis(60)).epochs(1);
            let loader = loader.build(&device).unwrap();
            let mut running = loader.epoch(&stream).unwrap();
            let (mut seen, mut named) = (Vec::new(), 0);
            while named < 2 {
                match running.next().unwrap() {
                    Ok(batch) => seen.extend(values(&batch)),
                    Err(e) => {
                        assert_eq!(e.kind(), ErrorKind::Timeout);
                        // Another one, where the machine was busy.
                        named += u32::from(e.place().index == Some(3001));
                    }
                }
            }
            drop(open);
            seen.extend(running.filter_map(Result::ok).flat_map(|b| values(&b)));
            assert_eq!(seen, (0..4000).collect::<Vec<_>>());

            let (open, builder) = stuck(4000, 3001);
            let loader = builder.batch_size(4).workers(workers).build(&device).unwrap();
            assert_eq!(loader.epoch(&stream).unwrap().take(740).filter(Result::is_ok).count(), 740);
            let mut running = loader.epoch(&stream).unwrap();
            assert_eq!(running.by_ref().take(740).filter(Result::is_ok).count(), 740);
            drop(running);
            let start = Instant::now();
            drop(loader);
            assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
            drop(open);
        }
    });
}

#[test]
fn close_names_a_sample_that_is_stuck_and_a_drop_does_not_wait() {
    within(LONG, || {
        let (device, stream) = device_and_stream();
        for close in [true, false] {
            let (open, builder) = stuck(20, 5);
            let loader = builder.batch_size(4).workers(2).build(&device).unwrap();
            let held = loader.epoch(&stream).unwrap().next().unwrap().unwrap();
            // It is the next epoch's by then, or still the first one's.
            let start = Instant::now();
            if close {
                let e = loader.close().unwrap_err();
                assert_eq!((e.kind(), e.place().index), (ErrorKind::Timeout, Some(5)), "{e}");
                assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
            } else {
                drop(loader);
                assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
            }
            assert_eq!(values(&held), [0, 1, 2, 3]);
            let before = device.counters().host_bytes;
            assert!(before > 0, "the memory that it may write stays");
            drop(held);
            drop(open);
            eventually("its memory goes with it", || {
                let now = device.counters();
                now.host_bytes == 0 && now.device_bytes == 0
            });
        }
    });
}

#[test]
fn close_reports_what_is_left() {
    within(LONG, || {
        let (device, stream) = device_and_stream();
        for workers in [0, 2] {
            let loader = numbers(40).batch_size(4).workers(workers).epochs(1).build(&device).unwrap();
            let mut running = loader.epoch(&stream).unwrap();
            let held = running.next().unwrap().unwrap();
            drop(running);
            let report = loader.close().unwrap();
            assert_eq!((report.batches_alive, report.threads_left), (1, 0));
            assert_eq!((report.stats.batches, report.stats.samples), (1, 4));
            assert!(!report.workers_shared, "{workers} workers of its own");
            assert_eq!(values(&held), [0, 1, 2, 3]);
        }
        let runtime = Runtime::new(1, 1 << 20, 1 << 20).unwrap();
        let loader = numbers(4).runtime(&runtime).build(&device).unwrap();
        assert!(loader.close().unwrap().workers_shared);
    });
}

#[test]
fn loaders_share_the_workers_of_a_runtime() {
    within(LONG, || {
        let (device, stream) = device_and_stream();
        let runtime = Runtime::new(2, 1 << 20, 1 << 20).unwrap();
        let threads = Arc::new(Mutex::new(HashSet::new()));
        let build = |n: u64| {
            let threads = threads.clone();
            let source = from_fn(n, move |i| {
                let me = std::thread::current();
                // The feeder fills a batch itself where that costs less than to hand it over.
                if me.name() != Some("warpfeed-feeder") {
                    threads.lock().unwrap().insert(me.id());
                }
                std::thread::sleep(Duration::from_micros(100));
                Ok(i)
            });
            Loader::builder(source).decode(Number).batch_size(3).runtime(&runtime).build(&device).unwrap()
        };
        let (train, validation) = (build(40), build(10));
        for _ in 0..3 {
            let mut training = train.epoch(&stream).unwrap();
            let first = values(&training.next().unwrap().unwrap());
            assert_eq!(
                samples(&validation, &stream),
                (0..10).collect::<Vec<_>>(),
                "in the middle of the other"
            );
            let rest: Vec<u64> = training.flat_map(|b| values(&b.unwrap())).collect();
            assert_eq!([first, rest].concat(), (0..40).collect::<Vec<_>>());
        }
        drop(train);
        assert_eq!(epoch(&validation, &stream).len(), 4, "the workers go on");
        assert!(threads.lock().unwrap().len() <= 2);

        let (open, one) = stuck(20, 0);
        let stuck = one.runtime(&runtime).build(&device).unwrap();
        assert_eq!(epoch(&validation, &stream).len(), 4, "one worker is left to them");
        drop(open);
        assert_eq!(samples(&stuck, &stream).len(), 20);
        let e = numbers(5).runtime(&runtime).worker_init(|_| ()).build(&device).unwrap_err();
        assert!(e.kind() == ErrorKind::InvalidConfig && e.to_string().contains("worker_init"), "{e}");
    });
}

#[test]
fn loaders_share_the_budgets_of_a_runtime() {
    within(LONG, || {
        let (device, stream) = device_and_stream();
        let slot = numbers(9).batch_size(3).workers(0).build(&device).unwrap().spec().bytes();
        eventually("that loader's memory is gone", || device.counters().host_bytes == 0);
        let page = slot.next_multiple_of(4096); // memory comes in whole pages
        let runtime = Runtime::new(1, 4 * page, 4 * page).unwrap();
        let build = || numbers(9).batch_size(3).runtime(&runtime).build(&device);
        let first = build().unwrap();
        let second = build().unwrap(); // one host slot is left to it, where it asked for three
        assert_eq!(device.counters().host_bytes, 4 * slot as u64);
        let e = build().unwrap_err();
        assert_eq!(e.kind(), ErrorKind::LimitExceeded);
        assert!(e.to_string().contains("budget"), "{e}");
        for loader in [&first, &second] {
            assert_eq!(samples(loader, &stream), (0..9).collect::<Vec<_>>());
        }
        drop(first);
        let third = build().unwrap();
        assert_eq!(samples(&third, &stream), (0..9).collect::<Vec<_>>());
        drop((second, third));
        eventually("the budget is whole again", || device.counters().host_bytes == 0);
        assert!(build().is_ok());
    });
}

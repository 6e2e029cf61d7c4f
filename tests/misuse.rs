//! What would wait for itself, and what can't be meant, is refused with a reason.
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::sync::Arc;
use std::time::Duration;

use support::{device, range, within};
use warpfeed::{Device, ErrorKind, Field, Loader, OnError, Runtime, State};

mod support;

const LONG: Duration = Duration::from_secs(60);

fn numbers(device: &Device, workers: usize) -> Loader {
    Loader::builder(range(100))
        .decode_with([Field::scalar::<u64>("x")], |s, row| Ok(row.set("x", *s.read()?)?))
        .batch_size(10)
        .workers(workers)
        .build(device)
        .unwrap()
}

#[test]
fn an_epoch_inside_a_worker_of_its_own_runtime_is_refused() {
    within(LONG, || {
        let device = device();
        let runtime = Runtime::with_workers(1).unwrap();
        let inner = Loader::builder(range(4))
            .decode_with([Field::scalar::<u64>("x")], |s, row| Ok(row.set("x", *s.read()?)?))
            .runtime(&runtime)
            .build(&device)
            .unwrap();
        let stream = device.new_stream().unwrap();
        let streams = stream.clone();
        let outer = Loader::builder(range(4))
            .decode_with([Field::scalar::<u64>("x")], move |_, row| {
                let sum = inner.epoch(&streams)?.count();
                Ok(row.set("x", sum as u64)?)
            })
            .runtime(&runtime)
            .build(&device)
            .unwrap();
        let error = outer.epoch(&stream).unwrap().find_map(Result::err).unwrap();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(error.message().contains("wait for itself"), "{error}");
    });
}

#[test]
fn an_epoch_inside_work_on_its_own_stream_is_refused() {
    within(LONG, || {
        let device = device();
        let stream = device.new_stream().unwrap();
        let loader = Arc::new(numbers(&device, 2));
        let (tell, told) = std::sync::mpsc::channel();
        let (inner, own) = (loader.clone(), stream.clone());
        stream.enqueue(move || tell.send(inner.epoch(&own).err().map(|e| e.kind())).unwrap()).unwrap();
        assert_eq!(told.recv().unwrap(), Some(ErrorKind::InvalidArgument));
        assert_eq!(loader.epoch(&stream).unwrap().count(), 10);
    });
}

#[test]
fn a_state_whose_map_names_no_batch_is_refused() {
    let device = device();
    let position = numbers(&device, 0).state().to_string();
    for map in ["1", "400", "ffffffffffffffff"] {
        let state: State = format!("{position}:{map}:10:1").parse().unwrap();
        let loader = Loader::builder(range(100))
            .decode_with([Field::scalar::<u64>("x")], |s, row| Ok(row.set("x", *s.read()?)?))
            .batch_size(10)
            .resume(state)
            .build(&device);
        assert_eq!(loader.err().map(|e| e.kind()), Some(ErrorKind::StateMismatch), "{map}");
    }
}

#[test]
fn options_that_can_not_be_meant_are_refused() {
    let device = device();
    let builder = || {
        Loader::builder(range(9))
            .decode_with([Field::scalar::<u64>("x")], |s, row| Ok(row.set("x", *s.read()?)?))
    };
    let refused = [
        builder().host_slots(usize::MAX).build(&device),
        builder().device_slots(1 << 20).build(&device),
        builder().workers(1 << 20).build(&device),
        builder().runtime(&Runtime::with_workers(1).unwrap()).host_budget(1 << 20).build(&device),
    ];
    for loader in refused {
        assert_eq!(loader.err().map(|e| e.kind()), Some(ErrorKind::InvalidConfig));
    }
}

#[test]
fn a_budget_counts_whole_pages() {
    let device = device();
    let loader = Loader::builder(range(9))
        .decode_with([Field::scalar::<u64>("x")], |s, row| Ok(row.set("x", *s.read()?)?))
        .host_slots(1000)
        .host_budget(40 << 10)
        .build(&device)
        .unwrap();
    assert!(device.counters().host_bytes <= 40 << 10, "{}", device.counters().host_bytes);
    drop(loader);
}

#[test]
fn a_pause_without_end_and_a_payload_that_panics_are_taken() {
    struct Rude;
    impl Drop for Rude {
        fn drop(&mut self) {
            assert!(std::thread::panicking(), "a payload's own panic");
        }
    }
    within(LONG, || {
        for workers in [0, 2] {
            let device = device();
            let stream = device.new_stream().unwrap();
            let retry = OnError::Retry { times: 1, backoff: Duration::MAX, then: Box::new(OnError::Fail) };
            let loader = Loader::builder(range(3))
                .decode_with([Field::scalar::<u64>("x")], |_, _| anyhow::bail!("never"))
                .workers(workers)
                .on_error(retry)
                .timeout(Duration::from_millis(50))
                .build(&device)
                .unwrap();
            let error = loader.epoch(&stream).unwrap().find_map(Result::err).unwrap();
            assert_eq!((error.kind(), error.place().index), (ErrorKind::Timeout, Some(0)), "{error}");
            assert!(error.message().contains("attempt 2"), "{error}");
            let rude = Loader::builder(range(3))
                .decode_with([Field::scalar::<u64>("x")], |_, _| std::panic::panic_any(Rude))
                .workers(workers)
                .build(&device)
                .unwrap();
            let error = rude.epoch(&stream).unwrap().find_map(Result::err).unwrap();
            assert_eq!(error.kind(), ErrorKind::Panic);
        }
    });
}

#[test]
fn a_timeout_names_the_sample_without_workers_too_and_a_sampler_that_is_stuck() {
    struct Slow;
    impl warpfeed::sampler::Sampler for Slow {
        fn len(&self) -> u64 {
            4
        }
        fn index(&self, _epoch: u64, position: u64) -> u64 {
            std::thread::sleep(Duration::from_millis(300));
            position
        }
        fn fingerprint(&self) -> u64 {
            1
        }
    }
    within(LONG, || {
        let device = device();
        let stream = device.new_stream().unwrap();
        let builder = || {
            Loader::builder(range(4)).decode_with([Field::scalar::<u64>("x")], |s, row| {
                if s.index() == 2 {
                    std::thread::sleep(Duration::from_millis(100));
                }
                Ok(row.set("x", *s.read()?)?)
            })
        };
        let slow =
            builder().batch_size(4).workers(0).timeout(Duration::from_millis(50)).build(&device).unwrap();
        let error = slow.epoch(&stream).unwrap().find_map(Result::err).unwrap();
        assert_eq!((error.kind(), error.place().index), (ErrorKind::Timeout, Some(2)), "{error}");
        let stuck =
            builder().sampler(Slow).workers(1).timeout(Duration::from_millis(50)).build(&device).unwrap();
        let error = stuck.epoch(&stream).unwrap().find_map(Result::err).unwrap();
        assert_eq!(error.kind(), ErrorKind::Timeout);
        assert!(error.message().contains("sampler"), "{error}");
    });
}

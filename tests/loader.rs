//! The pipeline as its users see it, on the CPU device.

use warpfeed::{Field, Loader, source};

mod support;
use support::device;

fn range(n: u64) -> impl warpfeed::source::Source<Record = u64> {
    source::from_fn(n, Ok)
}

#[test]
fn every_sample_arrives_once_in_order() {
    let device = device();
    let stream = device.new_stream().unwrap();
    for workers in [0, 1, 2] {
        let loader = Loader::builder(range(100))
            .decode_with([Field::scalar::<u64>("x")], |s, row| {
                let x = *s.read()?;
                Ok(row.set("x", x)?)
            })
            .batch_size(7)
            .workers(workers)
            .build(&device)
            .unwrap();
        for epoch in 0..3 {
            let mut seen = Vec::new();
            for batch in loader.epoch(&stream).unwrap() {
                let batch = batch.unwrap();
                assert_eq!(batch.epoch(), epoch);
                seen.extend_from_slice(&batch.host::<u64>("x").unwrap());
            }
            assert_eq!(seen, (0..100).collect::<Vec<_>>());
        }
        println!("{}", loader.stats());
    }
}

#[test]
fn a_panic_in_worker_init_is_the_next_error() {
    let device = device();
    let stream = device.new_stream().unwrap();
    let (started, starts) = std::sync::mpsc::channel();
    let loader = Loader::builder(range(10))
        .decode_with([Field::scalar::<u64>("x")], |s, row| Ok(row.set("x", *s.read()?)?))
        .workers(2)
        .worker_init(move |worker| {
            started.send(worker).unwrap();
            assert!(worker != 1, "no such device for worker {worker}");
        })
        .build(&device)
        .unwrap();
    let mut workers: Vec<usize> = starts.iter().take(2).collect();
    workers.sort_unstable();
    assert_eq!(workers, [0, 1]);
    // The panic is noted right after the start that was seen.
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
    let error = loop {
        assert!(std::time::Instant::now() < deadline, "the panic was lost");
        if let Some(error) = loader.epoch(&stream).unwrap().find_map(Result::err) {
            break error;
        }
    };
    assert_eq!((error.kind(), error.place().worker), (warpfeed::ErrorKind::Panic, Some(1)));
    assert!(error.message().contains("no such device"), "{error}");
    // That told, the loader goes on.
    assert!(loader.epoch(&stream).unwrap().all(|b| b.is_ok()));
}

//! The pipeline as its users see it, on the CPU device.

use warpfeed::{Device, Field, Loader, source};

fn range(n: u64) -> impl warpfeed::source::Source<Record = u64> {
    source::from_fn(n, Ok)
}

#[test]
fn every_sample_arrives_once_in_order() {
    let device = Device::cpu();
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

//! Samples that failed and were skipped: holes in a batch, and batches without them.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test stops at the first surprise")]

mod support;

use std::time::Duration;

use support::{device_and_stream, range, within};
use warpfeed::{Batch, Field, Loader, OnError, Stream};

const MINUTE: Duration = Duration::from_secs(60);

/// Sample i has the fields x = i + 1, r = [i; i mod 4], key = "i"; those that `fails` names have none.
fn with_holes(
    n: u64,
    batch: usize,
    compact: bool,
    workers: usize,
    fails: fn(u64) -> bool,
) -> (Loader, Stream) {
    let (device, stream) = device_and_stream();
    let fields = [Field::new::<u32>("x", &[3]), Field::ragged::<u64>("r", 3), Field::host("key")];
    let loader = Loader::builder(range(n))
        .decode_with(fields, move |s, row| {
            let i = *s.read()?;
            // A failed attempt leaves its marks first.
            row.copy("x", &[i as u32 + 1; 3])?;
            row.copy_ragged("r", &vec![i; i as usize % 4])?;
            row.text("key")?.push_str(&i.to_string());
            anyhow::ensure!(!fails(i), "sample {i} is broken");
            Ok(())
        })
        .batch_size(batch)
        .compact(compact)
        .on_error(OnError::Skip { limit: 1000 })
        .workers(workers)
        .host_slots(2)
        .device_slots(1)
        .build(&device)
        .unwrap();
    (loader, stream)
}

/// Fixed, ragged and text fields of a row are those of sample `index`.
fn assert_row(batch: &Batch, row: usize, index: u64) {
    assert_eq!(batch.host::<u32>("x").unwrap()[row * 3..][..3], [index as u32 + 1; 3]);
    assert_eq!(*batch.host_ragged::<u64>("r", row).unwrap(), vec![index; index as usize % 4]);
    let view = batch.ragged_view::<u64>("r").unwrap();
    assert_eq!(view.row(row).map(|(_, len)| len), Some(index as usize % 4));
    assert_eq!(batch.text("key").unwrap().nth(row), Some(index.to_string().as_str()));
}

#[test]
fn a_hole_stays_where_it_is_and_holds_nothing() {
    within(MINUTE, || {
        for workers in [0, 3] {
            let fails = |i| i % 5 == 1 || i == 12;
            let (loader, stream) = with_holes(30, 8, false, workers, fails);
            let mut index = 0;
            for batch in loader.epoch(&stream).unwrap() {
                let batch = batch.unwrap();
                assert_eq!(batch.len(), if index < 24 { 8 } else { 6 });
                assert_eq!(batch.valid(), &*batch.host::<bool>("valid").unwrap());
                for row in 0..batch.len() {
                    assert_eq!((batch.indices()[row], batch.valid()[row]), (index, !fails(index)));
                    if fails(index) {
                        assert_eq!(batch.host::<u32>("x").unwrap()[row * 3..][..3], [0; 3]);
                        assert!(batch.host_ragged::<u64>("r", row).unwrap().is_empty());
                        assert_eq!(batch.text("key").unwrap().nth(row), Some(""));
                    } else {
                        assert_row(&batch, row, index);
                    }
                    index += 1;
                }
            }
            assert_eq!(index, 30);
            assert_eq!((loader.stats().samples, loader.stats().failed), (23, 7));
        }
    });
}

#[test]
fn compaction_leaves_no_hole_and_moves_rows_whole() {
    within(MINUTE, || {
        for workers in [0, 3] {
            // Batch 1 (8..16) fails as a whole, the others in part: at the start, in the middle, at the end.
            let fails = |i| (8..16).contains(&i) || [0, 3, 7, 17, 18, 29].contains(&i);
            let (loader, stream) = with_holes(30, 8, true, workers, fails);
            let mut lens = Vec::new();
            let mut seen = Vec::new();
            for (number, batch) in loader.epoch(&stream).unwrap().enumerate() {
                let batch = batch.unwrap();
                assert_eq!(batch.number(), number as u64);
                lens.push(batch.len());
                assert!(batch.valid().iter().all(|v| *v));
                for (row, &index) in batch.indices().iter().enumerate() {
                    assert_row(&batch, row, index);
                    seen.push(index);
                }
                let len = batch.len();
                let (found, at) = std::sync::mpsc::channel();
                batch
                    .enqueue(&stream, move |b| {
                        let tail = b.padded::<u32>("x").unwrap()[len * 3..].to_vec();
                        found.send((tail, b.padded::<bool>("valid").unwrap().to_vec())).unwrap();
                    })
                    .unwrap();
                let (tail, mask) = at.recv().unwrap();
                assert_eq!((tail, mask), (vec![0; (8 - len) * 3], (0..8).map(|row| row < len).collect()));
            }
            assert_eq!(lens, [5, 0, 6, 5]);
            // Rows from the end fill the holes in order.
            assert_eq!(seen[..5], [6, 1, 2, 5, 4]);
            seen.sort_unstable();
            assert_eq!(seen, (0..30).filter(|&i| !fails(i)).collect::<Vec<_>>());
        }
    });
}

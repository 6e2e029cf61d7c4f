//! Ragged rows: where they lie, what they hold, and their limits.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test stops at the first surprise")]

mod support;

use std::time::Duration;

use support::{device, device_and_stream, range, within};
use warpfeed::decode::Sample;
use warpfeed::{DType, ErrorKind, FIELD_ALIGN, Field, Loader, OnError, ROW_ALIGN, Row};

const MINUTE: Duration = Duration::from_secs(60);

#[test]
fn ragged_rows_arrive_as_they_were_written_wherever_they_lie() {
    within(MINUTE, || {
        let (device, stream) = device_and_stream();
        let boxes = |i: u64| (0..i % 6).map(|k| (i * 10 + k) as f32).collect::<Vec<_>>();
        let ids = |i: u64| (0..(i * 7) % 5).map(|k| (i + k) as u8).collect::<Vec<_>>();
        for workers in [0, 1, 4] {
            let fields =
                [Field::ragged::<f32>("boxes", 5), Field::scalar::<u64>("i"), Field::ragged::<u8>("ids", 4)];
            let loader = Loader::builder(range(103))
                .decode_with(fields, move |s, row| {
                    let i = s.index();
                    row.copy_ragged("boxes", &boxes(i))?;
                    row.set("i", i)?;
                    row.ragged::<u8>("ids", ids(i).len())?.copy_from_slice(&ids(i));
                    Ok(())
                })
                .batch_size(10)
                .shuffle(7)
                .workers(workers)
                .build(&device)
                .unwrap();
            let mut seen = 0;
            for batch in loader.epoch(&stream).unwrap() {
                let batch = batch.unwrap();
                let (a, b) =
                    (batch.ragged_view::<f32>("boxes").unwrap(), batch.ragged_view::<u8>("ids").unwrap());
                assert_eq!((a.rows(), a.dtype(), a.row(batch.len())), (batch.len(), DType::F32, None));
                assert_eq!(a.heap_offset() % FIELD_ALIGN, 0);
                batch.synchronize().unwrap();
                let mut spans = Vec::new();
                for (row, &i) in batch.indices().iter().enumerate() {
                    assert_eq!(*batch.host_ragged::<f32>("boxes", row).unwrap(), boxes(i));
                    assert_eq!(*batch.host_ragged::<u8>("ids", row).unwrap(), ids(i));
                    for ((offset, len), size, table) in [
                        (a.row(row).unwrap(), 4, a.table_offset()),
                        (b.row(row).unwrap(), 1, b.table_offset()),
                    ] {
                        assert_eq!(offset % ROW_ALIGN, 0);
                        let end = offset + (len * size).next_multiple_of(ROW_ALIGN);
                        assert!(offset >= a.heap_offset() && end <= batch.spec().bytes());
                        // SAFETY: the batch is there and alive, and the bytes lie inside its slot.
                        let (gap, entry) = unsafe {
                            let gap = std::slice::from_raw_parts(
                                a.device_ptr().add(offset + len * size),
                                end - offset - len * size,
                            );
                            (gap, a.device_ptr().add(table).cast::<[u64; 2]>().add(row).read())
                        };
                        assert!(gap.iter().all(|&byte| byte == 0), "the gap behind a row is zero");
                        assert_eq!(
                            entry,
                            [(offset - a.heap_offset()) as u64, len as u64],
                            "the table on the device"
                        );
                        spans.push(offset..end);
                    }
                    seen += 1;
                }
                spans.retain(|s| !s.is_empty());
                spans.sort_by_key(|s| s.start);
                assert!(spans.windows(2).all(|w| w[0].end <= w[1].start), "rows overlap: {spans:?}");
            }
            assert_eq!(seen, 103);
        }
    });
}

#[test]
fn a_row_over_its_limit_names_the_index() {
    within(MINUTE, || {
        let (device, stream) = device_and_stream();
        let loader = Loader::builder(range(12))
            .decode_with([Field::ragged::<u16>("x", 3)], |s, row| {
                row.ragged::<u16>("x", if s.index() == 7 { 4 } else { 3 })?;
                Ok(())
            })
            .batch_size(4)
            .workers(2)
            .build(&device)
            .unwrap();
        let mut epoch = loader.epoch(&stream).unwrap();
        assert_eq!(epoch.next().unwrap().unwrap().len(), 4);
        let e = epoch.next().unwrap().unwrap_err();
        assert_eq!(
            (e.kind(), e.place().index, e.place().batch),
            (ErrorKind::LimitExceeded, Some(7), Some(1)),
            "{e}"
        );
        assert!(e.to_string().contains("x: u16[..=3]"), "{e}");
        assert!(epoch.next().is_none());
    });
}

#[test]
fn a_batch_over_its_heap_is_an_error_of_the_batch_whatever_the_order() {
    within(MINUTE, || {
        // Batches of 4 rows of 20 bytes need 4 × 32: batch 1 has a row of 40, which needs 48.
        let decode = |s: &mut Sample<'_, _>, row: &mut Row<'_>| {
            row.ragged::<u8>("x", if s.index() == 6 { 40 } else { 20 })?.fill(s.index() as u8);
            Ok(())
        };
        let mut messages = std::collections::HashSet::new();
        for (workers, policy) in [
            (0, OnError::Fail),
            (1, OnError::Fail),
            (4, OnError::Fail),
            (4, OnError::Skip { limit: 100 }),
            (4, OnError::Replace { limit: 100 }),
        ] {
            for _ in 0..20 {
                let (device, stream) = device_and_stream();
                let loader = Loader::builder(range(12))
                    .decode_with([Field::ragged::<u8>("x", 64)], decode)
                    .batch_size(4)
                    .max_batch_bytes(128)
                    .on_error(policy.clone())
                    .workers(workers)
                    .build(&device)
                    .unwrap();
                let mut epoch = loader.epoch(&stream).unwrap();
                let first = epoch.next().unwrap().unwrap();
                (0..4)
                    .for_each(|row| assert_eq!(*first.host_ragged::<u8>("x", row).unwrap(), [row as u8; 20]));
                let e = epoch.next().unwrap().unwrap_err();
                assert_eq!((e.kind(), e.place().batch), (ErrorKind::LimitExceeded, Some(1)), "{e}");
                assert!(e.to_string().contains("128"), "{e}");
                if policy == OnError::Fail {
                    messages.insert(e.message().to_string());
                }
                assert!(epoch.next().is_none());
            }
        }
        assert_eq!(messages.len(), 1, "{messages:?}");
    });
}

#[test]
fn a_row_that_is_tried_again_fits_however_long_it_gets() {
    // The first attempt at sample 5 takes a short place and fails; its replacement needs a long one.
    let policies = [
        OnError::Replace { limit: 10 },
        OnError::Retry { times: 3, backoff: Duration::ZERO, then: Box::new(OnError::Fail) },
    ];
    for policy in policies {
        for workers in [0, 2] {
            let tries = std::sync::atomic::AtomicUsize::new(0);
            let fields = [Field::ragged::<u64>("r", 8), Field::scalar::<u64>("x")];
            let loader = Loader::builder(range(16))
                .decode_with(fields, move |sample, row| {
                    let i = sample.index();
                    let attempt =
                        if i == 5 { tries.fetch_add(1, std::sync::atomic::Ordering::Relaxed) } else { 9 };
                    row.copy_ragged("r", &vec![i; if attempt == 0 { 1 } else { 8 }])?;
                    anyhow::ensure!(attempt > 1, "not yet");
                    Ok(row.set("x", i)?)
                })
                .batch_size(4)
                .workers(workers)
                .on_error(policy.clone())
                .build(&device())
                .unwrap();
            let stream = loader.device().new_stream().unwrap();
            for batch in loader.epoch(&stream).unwrap() {
                let batch = batch.unwrap();
                for (row, &i) in batch.indices().iter().enumerate() {
                    assert_eq!(*batch.host_ragged::<u64>("r", row).unwrap(), [i; 8]);
                }
            }
        }
    }
}

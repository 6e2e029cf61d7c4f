//! What a batch looks like: shapes, dtypes, masks, ragged rows, text, and the bytes where there is no sample.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test stops at the first surprise")]

mod support;

use std::time::Duration;

use half::{bf16, f16};
use support::{Uniform, device_and_stream, range, within};
use warpfeed::{Batch, DType, Element, Error, ErrorKind, FIELD_ALIGN, Field, Loader, Row};

const MINUTE: Duration = Duration::from_secs(60);

/// One batch of all of `n` samples, decoded by `decode` on 2 workers.
fn one_batch<F>(n: u64, fields: Vec<Field>, decode: F) -> warpfeed::Result<Batch>
where
    F: Fn(u64, &mut Row<'_>) -> anyhow::Result<()> + Send + Sync + 'static,
{
    let (device, stream) = device_and_stream();
    within(MINUTE, move || {
        let loader = Loader::builder(range(n))
            .decode_with(fields, move |s, row| decode(s.index(), row))
            .batch_size(n as usize)
            .workers(2)
            .build(&device)?;
        let batch = loader.epoch(&stream)?.next();
        batch.unwrap()
    })
}

fn error_of<F>(n: u64, fields: Vec<Field>, decode: F) -> Error
where
    F: Fn(u64, &mut Row<'_>) -> anyhow::Result<()> + Send + Sync + 'static,
{
    one_batch(n, fields, decode).unwrap_err()
}

#[test]
fn the_last_batch_has_the_rows_that_are_left_and_a_tail_of_zeros() {
    within(MINUTE, || {
        let (device, stream) = device_and_stream();
        // One slot on each side: the tail lies where the rows of the batch before were.
        let loader = Loader::builder(range(10))
            .decode_with([Field::new::<u16>("x", &[2, 3])], |s, row| {
                let i = s.index() as u16 + 1;
                Ok(row.copy("x", &[i, i, i, i, i, i])?)
            })
            .batch_size(4)
            .host_slots(1)
            .device_slots(1)
            .workers(2)
            .build(&device)
            .unwrap();
        let mut lens = Vec::new();
        for batch in loader.epoch(&stream).unwrap() {
            let batch = batch.unwrap();
            let len = batch.len();
            lens.push(len);
            assert_eq!(batch.capacity(), 4);
            assert_eq!(batch.view::<u16>("x").unwrap().shape(), [len, 2, 3]);
            assert_eq!(batch.padded_view::<u16>("x").unwrap().shape(), [4, 2, 3]);
            assert_eq!(batch.padded_view::<bool>("valid").unwrap().shape(), [4]);
            assert_eq!(batch.view::<u8>("valid").unwrap().shape(), [len]);
            assert_eq!((batch.valid().len(), batch.indices().len()), (len, len));
            let first = batch.indices()[0] as u16 + 1;
            let expected: Vec<u16> = (0..4)
                .flat_map(|row| std::iter::repeat_n(if row < len { first + row as u16 } else { 0 }, 6))
                .collect();
            let (found, at) = std::sync::mpsc::channel();
            batch
                .enqueue(&stream, move |b| {
                    let copy = |r: warpfeed::Result<&[u16]>| r.unwrap().to_vec();
                    let masks = (
                        b.padded::<bool>("valid").unwrap().to_vec(),
                        b.get::<bool>("valid").unwrap().to_vec(),
                    );
                    found.send((copy(b.padded("x")), copy(b.get("x")), masks, b.valid().to_vec())).unwrap();
                })
                .unwrap();
            let (padded, got, (mask, short_mask), valid) = at.recv().unwrap();
            assert_eq!(padded, expected);
            assert_eq!(got, expected[..len * 6]);
            assert_eq!(mask, (0..4).map(|row| row < len).collect::<Vec<_>>());
            assert_eq!((short_mask, valid), (vec![true; len], vec![true; len]));
            assert_eq!(*batch.host::<u16>("x").unwrap(), expected[..len * 6]);
        }
        assert_eq!(lens, [4, 4, 2]);
    });
}

#[test]
fn a_wrong_name_or_dtype_is_an_error_that_lists_what_there_is() {
    let fields = vec![Field::new::<u8>("image", &[2]), Field::ragged::<f32>("boxes", 4), Field::host("key")];
    let batch = one_batch(3, fields, |i, row| {
        row.copy("image", &[i as u8; 2])?;
        row.copy_ragged("boxes", &[i as f32])?;
        row.text("key")?.push('k');
        Ok(())
    })
    .unwrap();
    let unknown = [
        batch.view::<u8>("imgae").err().unwrap(),
        batch.padded_view::<u8>("imgae").err().unwrap(),
        batch.ragged_view::<u8>("imgae").err().unwrap(),
        batch.host::<u8>("imgae").unwrap_err(),
        batch.host_ragged::<u8>("imgae", 0).unwrap_err(),
        batch.text("imgae").err().unwrap(),
    ];
    for e in unknown {
        assert_eq!(e.kind(), ErrorKind::InvalidArgument);
        for part in ["\"imgae\"", "image: u8[2]", "boxes: f32[..=4]", "key: text", "valid: bool[]"] {
            assert!(e.to_string().contains(part), "{part}: {e}");
        }
    }
    let e = batch.view::<f32>("image").unwrap_err();
    assert_eq!(e.kind(), ErrorKind::DTypeMismatch);
    assert!(e.to_string().contains("image: u8[2]") && e.to_string().contains("f32"), "{e}");
    let kinds = [
        (batch.host::<i32>("valid").unwrap_err(), ErrorKind::DTypeMismatch, "valid: bool[]"),
        (batch.host_ragged::<f64>("boxes", 0).unwrap_err(), ErrorKind::DTypeMismatch, "f64"),
        (batch.host::<f32>("boxes").unwrap_err(), ErrorKind::InvalidArgument, "ragged"),
        (batch.host_ragged::<u8>("image", 0).unwrap_err(), ErrorKind::InvalidArgument, "not ragged"),
        (
            batch.host_ragged::<f32>("boxes", 3).unwrap_err(),
            ErrorKind::InvalidArgument,
            "row 3 of a batch of 3",
        ),
        (batch.host::<u8>("key").unwrap_err(), ErrorKind::DTypeMismatch, "text"),
        (batch.text("image").err().unwrap(), ErrorKind::InvalidArgument, "no text"),
    ];
    for (e, kind, part) in kinds {
        assert_eq!(e.kind(), kind, "{e}");
        assert!(e.to_string().contains(part), "{part}: {e}");
    }
}

#[test]
fn a_decoder_that_writes_wrongly_is_told_the_sample_and_both_shapes() {
    let fields = || vec![Field::new::<f32>("x", &[2, 3])];
    let e = error_of(4, fields(), |i, row| {
        Ok(row.copy_shaped("x", &[2, 2 + usize::from(i != 2)], &[0f32; 6])?)
    });
    assert_eq!((e.kind(), e.place().index), (ErrorKind::ShapeMismatch, Some(2)));
    assert!(e.to_string().contains("[2, 3]") && e.to_string().contains("[2, 2]"), "{e}");
    let e = error_of(1, fields(), |_, row| Ok(row.copy("x", &[0f32; 5])?));
    assert_eq!(e.kind(), ErrorKind::ShapeMismatch);
    let e = error_of(1, fields(), |_, row| Ok(row.copy("x", &[0f64; 6])?));
    assert_eq!((e.kind(), e.place().index), (ErrorKind::DTypeMismatch, Some(0)));
    let e = error_of(1, fields(), |_, row| Ok(row.set("y", 0f32)?));
    assert!(e.to_string().contains("x: f32[2, 3]"), "{e}");
    let e = error_of(4, fields(), |i, row| if i == 3 { Ok(()) } else { Ok(row.copy("x", &[0f32; 6])?) });
    assert_eq!((e.kind(), e.place().index), (ErrorKind::MissingField, Some(3)));
    assert!(e.to_string().contains("x: f32[2, 3]"), "{e}");
    let e = error_of(1, vec![Field::scalar::<u8>("valid")], |_, _| Ok(()));
    assert_eq!(e.kind(), ErrorKind::InvalidConfig);
}

#[test]
fn every_dtype_comes_through_as_it_was_written() {
    fn check<T: Element>(dtype: DType, values: [T; 4]) {
        assert_eq!((T::DTYPE, dtype.size()), (dtype, size_of::<T>()));
        let fields = vec![
            Field::scalar::<T>("one"),
            Field::of("pair", dtype, &[2]),
            Field::ragged::<T>("some", 4),
            Field::new::<T>("raw", &[2]),
        ];
        let batch = one_batch(4, fields, move |i, row| {
            let i = i as usize;
            row.set("one", values[i])?;
            row.slice::<T>("pair")?.copy_from_slice(&[values[i], values[3 - i]]);
            row.copy_ragged("some", &values[..i])?;
            // `overwrite` takes the bytes of little-endian elements: zero is a value of all of them.
            row.overwrite("raw")?.fill(0);
            Ok(())
        })
        .unwrap();
        assert_eq!(*batch.host::<T>("one").unwrap(), values);
        let pairs = batch.host::<T>("pair").unwrap();
        assert_eq!(pairs[4..6], [values[2], values[1]]);
        (0..4).for_each(|i| assert_eq!(*batch.host_ragged::<T>("some", i).unwrap(), values[..i]));
        assert_eq!(*batch.host::<T>("raw").unwrap(), [T::default(); 8]);
        assert_eq!(batch.view::<T>("pair").unwrap().dtype(), dtype);
    }
    check(DType::U8, [0u8, 1, 254, 255]);
    check(DType::I8, [i8::MIN, -1, 0, i8::MAX]);
    check(DType::U16, [0u16, 1, 256, u16::MAX]);
    check(DType::I16, [i16::MIN, -1, 0, i16::MAX]);
    check(DType::U32, [0u32, 1, 1 << 24, u32::MAX]);
    check(DType::I32, [i32::MIN, -1, 0, i32::MAX]);
    check(DType::U64, [0u64, 1, 1 << 53, u64::MAX]);
    check(DType::I64, [i64::MIN, -1, 0, i64::MAX]);
    check(DType::F16, [f16::MIN, f16::ONE, f16::INFINITY, f16::from_f32(0.1)]);
    check(DType::BF16, [bf16::MIN, bf16::ONE, bf16::INFINITY, bf16::from_f32(0.1)]);
    check(DType::F32, [f32::MIN, -0.0, f32::INFINITY, f32::from_bits(1)]);
    check(DType::F64, [f64::MIN, -0.0, f64::INFINITY, f64::from_bits(1)]);
    check(DType::Bool, [false, true, true, false]);
}

#[test]
fn a_byte_that_is_no_bool_is_never_read_as_one() {
    let fields = vec![Field::new::<bool>("mask", &[2])];
    let batch = one_batch(2, fields, |i, row| {
        row.overwrite("mask")?.copy_from_slice(&[1, i as u8 + 1]);
        Ok(())
    })
    .unwrap();
    let e = batch.host::<bool>("mask").unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Corrupt);
    assert!(e.to_string().contains("mask"), "{e}");
    assert_eq!(batch.host::<u8>("mask").unwrap_err().kind(), ErrorKind::DTypeMismatch);
    assert_eq!(*batch.host::<bool>("valid").unwrap(), [true, true]);
}

#[test]
fn a_view_names_dtype_shape_strides_and_a_fixed_address() {
    within(MINUTE, || {
        let (device, stream) = device_and_stream();
        let loader = Loader::builder(range(40))
            .decode_with([Field::scalar::<u8>("a"), Field::new::<i32>("x", &[2, 3, 4])], |s, row| {
                row.set("a", 7u8)?;
                Ok(row.copy("x", &[s.index() as i32; 24])?)
            })
            .batch_size(5)
            .build(&device)
            .unwrap();
        let mut addresses = std::collections::HashMap::new();
        for batch in loader.epoch(&stream).unwrap() {
            let batch = batch.unwrap();
            let view = batch.view::<i32>("x").unwrap();
            assert_eq!((view.dtype(), view.shape(), view.elements()), (DType::I32, &[5, 2, 3, 4][..], 120));
            assert_eq!(*view.strides(), [24, 12, 4, 1]);
            assert_eq!(*batch.view::<u8>("a").unwrap().strides(), [1]);
            assert_eq!((Some(view.offset()), view.offset() % FIELD_ALIGN), (batch.spec().offset("x"), 0));
            assert_eq!(format!("{view:?}"), "View(i32[5, 2, 3, 4])");
            batch.synchronize().unwrap();
            // SAFETY: the batch is there and alive, and nothing is written through the pointer.
            let (address, first) = unsafe { (view.device_ptr(), *view.device_ptr()) };
            assert_eq!(first as u64, batch.indices()[0]);
            assert_eq!(*addresses.entry(batch.slot()).or_insert(address), address, "slot {}", batch.slot());
        }
        assert!((1..=2).contains(&addresses.len()), "{addresses:?}");
    });
}

#[test]
fn text_stays_beside_the_batch_and_never_leaks_into_the_next() {
    within(MINUTE, || {
        let (device, stream) = device_and_stream();
        let text = |i: u64| {
            ["", "a longer key than the next", "kürzer", "\u{2028}"][i as usize % 4]
                .repeat(1 + i as usize % 3)
        };
        for workers in [0, 2] {
            let loader = Loader::builder(range(50))
                .decode_with(
                    [Field::host("key"), Field::scalar::<u8>("x"), Field::host("path")],
                    move |s, row| {
                        row.text("key")?.push_str(&text(s.index()));
                        row.set("x", 1u8)?;
                        *row.text("path")? = format!("{}.jpg", s.index());
                        Ok(())
                    },
                )
                .batch_size(7)
                .host_slots(1)
                .device_slots(1)
                .workers(workers)
                .build(&device)
                .unwrap();
            let mut index = 0;
            for batch in loader.epoch(&stream).unwrap() {
                let batch = batch.unwrap();
                assert_eq!(batch.text("key").unwrap().len(), batch.len());
                for (key, path) in batch.text("key").unwrap().zip(batch.text("path").unwrap()) {
                    assert_eq!((key, path), (text(index).as_str(), format!("{index}.jpg").as_str()));
                    index += 1;
                }
            }
            assert_eq!(index, 50);
        }
    });
}

#[test]
fn no_record_and_one_record_are_no_special_cases() {
    within(MINUTE, || {
        let (device, stream) = device_and_stream();
        for workers in [0, 1, 3] {
            let build = |n, batch, drop_last| {
                let builder = Loader::builder(range(n)).decode(Uniform(3)).batch_size(batch).workers(workers);
                builder.drop_last(drop_last).build(&device).unwrap()
            };
            let lens = |loader: &Loader| -> Vec<usize> {
                let batches = loader.epoch(&stream).unwrap();
                batches.map(|b| b.unwrap().len()).collect()
            };
            for (n, batch, drop_last, expected) in [
                (0, 1, false, vec![]),
                (0, 8, true, vec![]),
                (1, 1, false, vec![1]),
                (1, 8, false, vec![1]),
                (1, 8, true, vec![]),
                (8, 8, true, vec![8]),
                (9, 8, false, vec![8, 1]),
                (9, 8, true, vec![8]),
            ] {
                let loader = build(n, batch, drop_last);
                assert_eq!(
                    (loader.len(), loader.is_empty()),
                    (Some(expected.len() as u64), expected.is_empty())
                );
                for epoch in 0..3 {
                    assert_eq!(
                        lens(&loader),
                        expected,
                        "epoch {epoch}: {n} records, batches of {batch}, {workers} workers"
                    );
                }
            }
        }
    });
}

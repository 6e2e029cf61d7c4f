//! Samples of every kind of field, and their sums by kernels.

#![allow(dead_code, reason = "each test binary uses a part of it")]

use half::{bf16, f16};
use warpfeed::{Builder, Device, Element, ErrorKind, Field, Loader, Stream, VALID};

use crate::step::{Step, sums};
use crate::support::{self, range};

pub(crate) const N: u64 = 43;

/// Sample i's fields, as bytes: (h, b, label, flag, x).
pub(crate) fn fields(i: u64) -> ([f16; 3], [bf16; 2], i64, [bool; 5], [u8; 7]) {
    (
        std::array::from_fn(|k| f16::from_f64(i as f64 / 8.0 - k as f64)),
        std::array::from_fn(|k| bf16::from_f64(k as f64 * 3.5 + i as f64)),
        1 - ((i as i64) << 33),
        std::array::from_fn(|k| i >> k & 1 == 1),
        std::array::from_fn(|k| (i * 31 + k as u64 * 101) as u8),
    )
}

/// A loader of samples 0, 1, … N-1 in batches of 5.
pub(crate) fn loader(device: &Device) -> Loader {
    configured().build(device).unwrap()
}

pub(crate) fn configured()
-> Builder<support::watch::Range, impl warpfeed::decode::Decode<support::watch::Range>> {
    let declared = [
        Field::new::<f16>("h", &[3]),
        Field::new::<bf16>("b", &[2]),
        Field::scalar::<i64>("label"),
        Field::new::<bool>("flag", &[5]),
        Field::new::<u8>("x", &[7]),
        Field::ragged::<u16>("words", 9),
    ];
    let decode = |sample: &mut warpfeed::decode::Sample<'_, _>, row: &mut warpfeed::Row<'_>| {
        let (h, b, label, flag, x) = fields(*sample.read()?);
        row.copy("h", &h)?;
        row.copy("b", &b)?;
        row.set("label", label)?;
        row.copy("flag", &flag)?;
        row.copy("x", &x)?;
        Ok(row.copy_ragged("words", &vec![7u16; (sample.index() % 10) as usize])?)
    };
    Loader::builder(range(N)).decode_with(declared, decode).batch_size(5).workers(2).shuffle(3)
}

/// The sums of the bytes of `x` over an epoch.
pub(crate) fn expected() -> Vec<u64> {
    let rows: Vec<_> = (0..N).map(|i| fields(i).4).collect();
    sums(rows.iter().map(<[u8; 7]>::as_slice), 7)
}

/// Sums `x` over an epoch of `loader` on `stream`, in kernels on that stream.
pub(crate) fn sum_on(loader: &Loader, stream: &Stream) -> Vec<u64> {
    let theirs = stream.cudarc().unwrap();
    let mut step = Step::new(theirs.context(), theirs, 7);
    for batch in loader.epoch(stream).unwrap() {
        let batch = batch.unwrap();
        let (x, valid) = (batch.cuda_view::<u8>("x", stream), batch.cuda_view::<bool>(VALID, stream));
        step.launch(theirs, &x.unwrap(), &valid.unwrap(), batch.len());
    }
    step.read(theirs)
}

pub(crate) fn kind<T>(result: warpfeed::Result<T>) -> ErrorKind {
    result.err().expect("an error").kind()
}

/// The bytes of elements.
pub(crate) fn bytes<T: Element>(elements: &[T]) -> &[u8] {
    // SAFETY: elements have no padding; the lifetime is theirs.
    unsafe { std::slice::from_raw_parts(elements.as_ptr().cast(), size_of_val(elements)) }
}

//! Whether what is on the device is what the producers wrote: batches under random delays of the workers, the streams and
//! the host, on several streams of two threads, compared with the generator of their bytes where they lie.
//!
//! A slot that is filled, copied into or read too early shows as bytes that differ: each byte depends on the epoch and on
//! its sample, so that what lay there before is wrong.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{bail, ensure};
use warpfeed::{AllHeld, Batch, Field, HostBatch, Loader, SampleRng, Stream, source};

#[cfg(feature = "cuda")]
use crate::kernel::{Found, Kernels};
use crate::rig::Rig;

#[path = "../../../../kernels/fill_check.rs"]
#[allow(unreachable_pub, reason = "other crates include it too")]
mod fill;

/// How a pipeline is shaped.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shape {
    pub(super) row_bytes: usize,
    pub(super) batch_size: usize,
    pub(super) workers: usize,
    pub(super) host_slots: usize,
    pub(super) device_slots: usize,
}

const fn shape(row_bytes: usize, batch_size: usize, slots: [usize; 2]) -> Shape {
    let [host_slots, device_slots] = slots;
    Shape { row_bytes, batch_size, workers: 4, host_slots, device_slots }
}

/// Small, odd and large rows, and few slots.
pub(super) const SHAPES: [Shape; 8] = [
    shape(1, 16, [2, 2]),
    shape(7, 5, [3, 2]),
    shape(48, 4, [4, 2]),
    shape(333, 9, [2, 3]),
    shape(4099, 8, [3, 2]),
    shape(65_537, 8, [3, 3]),
    shape((1 << 20) + 7, 8, [3, 2]),
    Shape { workers: 1, ..shape(1021, 3, [1, 1]) },
];

/// What was seen.
#[derive(Debug, Clone, Copy)]
pub(super) struct Seen {
    pub(super) batches: u64,
    pub(super) bytes: u64,
    /// Bytes that were compared: each on two streams.
    pub(super) compared: u64,
    /// Bytes that differed, and the least position of one.
    pub(super) wrong: u64,
    pub(super) first_wrong: Option<u64>,
}

const EPOCHS: u64 = 4;
/// Longer than anyone holds a batch.
const HELD: Duration = Duration::from_secs(60);

/// The seed of an epoch's bytes. Sample `i` has those from position `i × row_bytes` on.
fn epoch_seed(seed: u64, epoch: u64) -> u64 {
    SampleRng::new(seed, epoch, 0).u64()
}

/// Runs about `batches` batches, in four epochs, the last of each with fewer rows.
///
/// # Errors
/// What the loader and the device meet; a check that does not see wrong bytes where there are some. Bytes that differ
/// are no error, but what is reported.
pub(super) fn run(rig: &Rig, shape: Shape, batches: u64, seed: u64) -> anyhow::Result<Seen> {
    let Shape { row_bytes, batch_size, .. } = shape;
    let device = rig.device(None);
    let streams = [device.new_stream()?, device.new_stream()?, device.new_stream()?];
    let per_epoch = (batches / EPOCHS).max(2);
    let samples = per_epoch * batch_size as u64 - batch_size as u64 / 2;
    let loader = Loader::builder(source::from_fn(samples, Ok))
        .decode_with([Field::new::<u8>("bytes", &[row_bytes])], move |sample, row| {
            let (mut rng, first) = (sample.rng(), sample.index() * row_bytes as u64);
            if rng.chance(0.02) {
                std::thread::sleep(Duration::from_micros(rng.below(1000)));
            }
            fill::fill(row.slice("bytes")?, epoch_seed(seed, sample.epoch()), first);
            Ok(())
        })
        .batch_size(batch_size)
        .workers(shape.workers)
        .host_slots(shape.host_slots)
        .device_slots(shape.device_slots)
        .shuffle(seed)
        .epochs(EPOCHS)
        .on_all_held(AllHeld::Wait(HELD))
        .build(&device)?;

    let (checker, canary) = (Checker::new(rig, &streams[0])?, Checker::new(rig, &streams[0])?);
    let mut seen = Seen { batches: 0, bytes: 0, compared: 0, wrong: 0, first_wrong: None };
    std::thread::scope(|scope| -> anyhow::Result<()> {
        let (give, take) = std::sync::mpsc::sync_channel::<Batch>(1);
        let (checker, others) = (&checker, &streams[1..]);
        // Who keeps the only slot there is waits for the next batch for ever.
        let keeps = shape.device_slots > 1;
        let second = scope.spawn(move || second_consumer(rig, checker, others, (seed, keeps), take));
        let mut rng = SampleRng::new(seed, 1, 0);
        'epochs: for epoch in 0..EPOCHS {
            for batch in loader.epoch(&streams[0])? {
                let batch = batch?;
                if seen.batches == 0 {
                    canary.check(&batch, &streams[0], !epoch_seed(seed, epoch))?;
                }
                delay(rig, &streams[0], &mut rng)?;
                checker.check(&batch, &streams[0], epoch_seed(seed, epoch))?;
                seen.batches += 1;
                seen.bytes += (batch.len() * row_bytes) as u64;
                if give.send(batch).is_err() {
                    break 'epochs; // the other thread met an error
                }
            }
        }
        drop(give);
        match second.join() {
            Ok(outcome) => outcome,
            Err(_) => bail!("the second consumer panicked"),
        }
    })?;
    streams.iter().try_for_each(Stream::synchronize)?;

    let [planted, _] = canary.found(&streams[0])?;
    ensure!(planted > 0, "the check can't be trusted: it saw no difference to the bytes of another seed");
    let [wrong, first] = checker.found(&streams[0])?;
    (seen.wrong, seen.first_wrong) = (wrong, (wrong > 0).then_some(first));
    seen.compared = 2 * seen.bytes;
    let report = loader.close()?;
    let (alive, leaked) = (report.batches_alive, report.leaked);
    ensure!((alive, leaked) == (0, 0), "{alive} batches were still alive, and {leaked} slots leaked");
    Ok(seen)
}

/// Checks each batch once more, on one of its own streams, and drops it now, or later where it `keeps` some.
fn second_consumer(
    rig: &Rig,
    checker: &Checker<'_>,
    streams: &[Stream],
    (seed, keeps): (u64, bool),
    batches: std::sync::mpsc::Receiver<Batch>,
) -> anyhow::Result<()> {
    let (mut rng, mut kept) = (SampleRng::new(seed, 2, 0), None);
    for batch in batches {
        if rng.chance(0.5) {
            // What was kept until now goes before the new one is used, or after.
            drop(kept.take());
        }
        let Some(stream) = streams.get(rng.below(streams.len() as u64) as usize) else { continue };
        batch.record_stream(stream)?;
        delay(rig, stream, &mut rng)?;
        checker.check(&batch, stream, epoch_seed(seed, batch.epoch()))?;
        match rng.below(8) {
            0 => std::thread::sleep(Duration::from_micros(rng.below(500))),
            1..4 if keeps => kept = Some(batch),
            _ => drop(batch),
        }
    }
    Ok(())
}

/// Now and then, what is enqueued on `stream` from here on comes later.
fn delay(rig: &Rig, stream: &Stream, rng: &mut SampleRng) -> warpfeed::Result<()> {
    if rng.chance(0.2) {
        rig.compute(stream, Duration::from_micros(1 + rng.below(500)), false)?;
    }
    Ok(())
}

/// Compares batches where they lie, and keeps what is found: how many bytes differ, and the least position of one.
enum Checker<'r> {
    OnHost(Arc<Mutex<[u64; 2]>>, std::marker::PhantomData<&'r ()>),
    #[cfg(feature = "cuda")]
    OnDevice(&'r Kernels, Found),
}

impl<'r> Checker<'r> {
    fn new(rig: &'r Rig, stream: &Stream) -> warpfeed::Result<Self> {
        #[cfg(feature = "cuda")]
        if let Some(kernels) = rig.kernels() {
            return Ok(Self::OnDevice(kernels, kernels.new_found(stream)?));
        }
        let _ = (rig, stream);
        Ok(Self::OnHost(Arc::new(Mutex::new([0, u64::MAX])), std::marker::PhantomData))
    }

    /// Enqueues a check of all rows on `stream`.
    fn check(&self, batch: &Batch, stream: &Stream, seed: u64) -> warpfeed::Result<()> {
        match self {
            Self::OnHost(found, _) => {
                let (found, indices) = (found.clone(), batch.indices().to_vec());
                batch.enqueue(stream, move |batch: HostBatch<'_>| -> warpfeed::Result<()> {
                    let outcome = differences(batch.get("bytes")?, &indices, seed);
                    let mut found = found.lock().unwrap_or_else(PoisonError::into_inner);
                    *found = [found[0] + outcome[0], found[1].min(outcome[1])];
                    Ok(())
                })
            }
            #[cfg(feature = "cuda")]
            Self::OnDevice(kernels, found) => {
                let row_bytes = batch.view::<u8>("bytes")?.elements() / batch.len().max(1);
                for (row, index) in batch.indices().iter().enumerate() {
                    let first = index * row_bytes as u64;
                    kernels.check_row((batch, "bytes", row), [seed, first], stream, *found)?;
                }
                Ok(())
            }
        }
    }

    /// What was found by the checks that are over. All streams have been waited for.
    fn found(&self, stream: &Stream) -> warpfeed::Result<[u64; 2]> {
        let _ = stream;
        match self {
            Self::OnHost(found, _) => Ok(*found.lock().unwrap_or_else(PoisonError::into_inner)),
            #[cfg(feature = "cuda")]
            Self::OnDevice(kernels, found) => kernels.read(*found, stream),
        }
    }
}

/// As the kernel `fill_check` finds them, for rows that hold the samples `indices`.
fn differences(bytes: &[u8], indices: &[u64], seed: u64) -> [u64; 2] {
    let row_bytes = bytes.len() / indices.len().max(1);
    let mut expected = vec![0; row_bytes];
    let (mut wrong, mut least) = (0, u64::MAX);
    for (row, index) in bytes.chunks_exact(row_bytes.max(1)).zip(indices) {
        let first = index * row_bytes as u64;
        fill::fill(&mut expected, seed, first);
        if row == expected {
            continue;
        }
        for (at, _) in (first..).zip(row.iter().zip(&expected)).filter(|(_, (a, b))| a != b) {
            (wrong, least) = (wrong + 1, least.min(at));
        }
    }
    [wrong, least]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_byte_that_differs_is_found_with_its_position() {
        let (indices, seed) = ([5, 2, 9], 77);
        let mut bytes = vec![0; 3 * 11];
        for (row, index) in bytes.chunks_mut(11).zip(indices) {
            fill::fill(row, seed, index * 11);
        }
        assert_eq!(differences(&bytes, &indices, seed), [0, u64::MAX]);
        bytes[0] ^= 1; // of sample 5
        bytes[11 + 10] ^= 0x80; // of sample 2
        assert_eq!(differences(&bytes, &indices, seed), [2, 2 * 11 + 10]);
        assert!(differences(&bytes, &indices, seed + 1)[0] > 20);
        // Samples in another order.
        assert!(differences(&bytes, &[5, 9, 2], seed)[0] > 15);
    }
}

//! warpfeed: runs of rows into host slots, an upload to a device slot of the CPU device, in order. The consumer
//! reads the device slot.

use anyhow::Result;
use warpfeed::source::from_fn;
use warpfeed::{Device, Field, Loader};

use crate::{Candidate, Seen, Work};

fn candidate(work: &Work, workers: usize, slots: usize) -> Result<Candidate> {
    let device = Device::cpu();
    let stream = device.new_stream()?;
    let values = work.values.clone();
    let builder = Loader::builder(from_fn(work.values.len() as u64, Ok))
        .decode_runs([Field::scalar::<u32>("x")], move |samples, rows| {
            for (x, &index) in rows.column("x")?.iter_mut().zip(samples.indices()) {
                *x = values[index as usize];
            }
            Ok(())
        })
        .batch_size(work.batch_size)
        .workers(workers)
        .host_slots(slots)
        .device_slots(slots / 2);
    let builder = if work.shuffle { builder.shuffle(work.seed) } else { builder };
    let loader = builder.build(&device)?;
    let epoch = move || {
        let mut seen = Seen::default();
        for batch in loader.epoch(&stream)? {
            seen = seen.batch(&batch?.host::<u32>("x")?);
        }
        Ok(seen)
    };
    let setting = format!("decode_runs, {slots} host slots, {} device slots", slots / 2);
    Ok(Candidate { rival: "warpfeed", workers, setting, epoch: Box::new(epoch) })
}

/// With workers: how many batches may be under way, and so how many are handed over at once.
pub fn candidates(work: &Work, workers: usize) -> Result<Vec<Candidate>> {
    let slots: &[usize] = if workers == 0 { &[4] } else { &[32, 64, 128] };
    slots.iter().map(|&n| candidate(work, workers, n)).collect()
}

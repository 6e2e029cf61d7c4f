//! Captures a step into one CUDA graph for each device slot, and replays it for every batch after that.
//!
//! ```sh
//! cargo run --release --example graphs
//! ```
//! A slot's addresses never change, so a graph that was captured over a batch fits every later batch of the same
//! [`Batch::slot`]. `padded_view` has the same shape in each of them; the mask `valid` says which rows count: not the holes
//! that failed samples left, and not the end of a batch that is not full. Without a GPU the same step runs as work on the
//! CPU device, which has no graphs.

#![allow(clippy::print_stdout, reason = "an example talks to people")]

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result, anyhow, ensure};
use cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use cudarc::driver::{CudaFunction, CudaGraph, CudaSlice, LaunchConfig, PushKernelArg};
use cudarc::nvrtc::Ptx;
use warpfeed::{Batch, Device, Field, Loader, OnError, Stream, VALID, source};

/// `sums[c]` += column c of the rows of `x` that `valid` marks; `sums[WIDTH]` += how many there are.
const MASKED_SUM: &str = include_str!("../kernels/masked_sum.ptx");

/// Bytes of a sample.
const WIDTH: usize = 96;
/// Samples; the last batch of an epoch is not full.
const SAMPLES: u64 = 1000;
const BATCH: usize = 64;

/// What the epochs came to.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Outcome {
    /// Each column's sum over all samples, and their number.
    pub(crate) sums: Vec<u64>,
    /// Graphs that were captured.
    pub(crate) graphs: usize,
    /// Batches that a graph captured over another batch was replayed for.
    pub(crate) replays: usize,
}

fn main() -> Result<()> {
    let (device, epochs) = (Device::auto()?, 3);
    let outcome = sum(&device, epochs)?;
    ensure!(outcome.sums == expected(epochs), "the device's sums are not those of the host");
    match outcome {
        Outcome { graphs: 0, sums, .. } => {
            println!(
                "no graphs: they need an NVIDIA GPU and its driver; on the CPU device {} samples were summed",
                sums[WIDTH]
            );
        }
        Outcome { graphs, replays, sums } => {
            println!(
                "{graphs} graphs, replayed {replays} times, summed {} samples on {}",
                sums[WIDTH],
                device.name()
            );
        }
    }
    Ok(())
}

/// Every 50th sample can't be read.
fn sample(index: u64) -> Result<[u8; WIDTH]> {
    ensure!(index % 50 != 17, "sample {index} is broken");
    Ok(std::array::from_fn(|column| (index * 31 + column as u64 * 7) as u8))
}

/// The sums, by a plain loop.
pub(crate) fn expected(epochs: u64) -> Vec<u64> {
    let mut sums = vec![0; WIDTH + 1];
    for sample in (0..SAMPLES).filter_map(|index| sample(index).ok()) {
        sums.iter_mut().zip(sample).for_each(|(sum, x)| *sum += epochs * u64::from(x));
        sums[WIDTH] += epochs;
    }
    sums
}

/// Sums the samples of some epochs on `device`.
pub(crate) fn sum(device: &Device, epochs: u64) -> Result<Outcome> {
    let compute = device.new_stream()?;
    let loader = Loader::builder(source::from_fn(SAMPLES, sample))
        .decode_with([Field::new::<u8>("x", &[WIDTH])], |sample, row| Ok(row.copy("x", sample.read()?)?))
        .batch_size(BATCH)
        .shuffle(7)
        .on_error(OnError::Skip { limit: SAMPLES })
        .build(device)?;
    let mut step = match compute.cudarc() {
        Some(_) => Step::OnGpu(Graphs::new(&compute)?),
        None => Step::OnCpu(Arc::new(Mutex::new(vec![0; WIDTH + 1]))),
    };
    for _ in 0..epochs {
        for batch in loader.epoch(&compute)? {
            step.run(&batch?, &compute)?;
        }
    }
    compute.synchronize()?;
    step.outcome()
}

enum Step {
    OnGpu(Graphs),
    OnCpu(Arc<Mutex<Vec<u64>>>),
}

impl Step {
    fn run(&mut self, batch: &Batch, compute: &Stream) -> Result<()> {
        match self {
            Self::OnGpu(graphs) => graphs.run(batch),
            Self::OnCpu(sums) => {
                let sums = sums.clone();
                Ok(batch.enqueue(compute, move |batch| {
                    let mut sums = sums.lock().unwrap_or_else(PoisonError::into_inner);
                    let rows = batch.padded::<u8>("x")?.chunks(WIDTH).zip(batch.padded::<bool>(VALID)?);
                    for row in rows.filter_map(|(row, valid)| valid.then_some(row)) {
                        sums.iter_mut().zip(row).for_each(|(sum, x)| *sum += u64::from(*x));
                        sums[WIDTH] += 1;
                    }
                    anyhow::Ok(())
                })?)
            }
        }
    }

    fn outcome(self) -> Result<Outcome> {
        match self {
            Self::OnGpu(graphs) => graphs.outcome(),
            Self::OnCpu(sums) => {
                let sums = std::mem::take(&mut *sums.lock().unwrap_or_else(PoisonError::into_inner));
                Ok(Outcome { sums, graphs: 0, replays: 0 })
            }
        }
    }
}

/// The step as graphs, by the number of the slot that each was captured over.
struct Graphs {
    compute: Stream,
    kernel: CudaFunction,
    sums: CudaSlice<u64>,
    by_slot: HashMap<usize, CudaGraph>,
    replays: usize,
}

impl Graphs {
    fn new(compute: &Stream) -> Result<Self> {
        let stream = compute.cudarc().context("a stream of a CUDA device")?;
        let module = stream.context().load_module(Ptx::from_src(MASKED_SUM))?;
        Ok(Self {
            compute: compute.clone(),
            kernel: module.load_function("masked_sum")?,
            sums: stream.alloc_zeros(WIDTH + 1)?,
            by_slot: HashMap::new(),
            replays: 0,
        })
    }

    /// On the epoch's own stream, which the batch is ordered on already.
    fn run(&mut self, batch: &Batch) -> Result<()> {
        if let Some(graph) = self.by_slot.get(&batch.slot()) {
            self.replays += 1;
            return Ok(graph.launch()?);
        }
        let graph = self.capture(batch)?;
        graph.launch()?; // captured is not done
        self.by_slot.insert(batch.slot(), graph);
        Ok(())
    }

    /// The batch is held while the capture lasts: dropped in it, its slot would be given back only after its end.
    fn capture(&mut self, batch: &Batch) -> Result<CudaGraph> {
        let stream = self.compute.cudarc().context("a stream of a CUDA device")?;
        let x = batch.padded_view::<u8>("x")?.cuda(&self.compute)?;
        let valid = batch.padded_view::<bool>(VALID)?.cuda(&self.compute)?;
        let (rows, width) = (batch.capacity() as u32, WIDTH as u32);
        // Global: the strictest mode. What the loader's threads do meanwhile is no part of it.
        stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL)?;
        let mut launch = stream.launch_builder(&self.kernel);
        launch.arg(&*x).arg(&*valid).arg(&rows).arg(&width).arg(&mut self.sums);
        // SAFETY: the kernel reads rows × width bytes of `x` and rows bytes of `valid`, which is what the padded views have,
        // and writes width + 1 sums. Launches follow each other on one stream.
        let launched = unsafe { launch.launch(LaunchConfig::for_num_elems(width + 1)) };
        // Ended whatever happened, so that the stream can be used again.
        let graph = stream.end_capture(CUgraphInstantiate_flags(0));
        launched?;
        graph?.ok_or_else(|| anyhow!("the capture gave no graph"))
    }

    fn outcome(self) -> Result<Outcome> {
        let stream = self.compute.cudarc().context("a stream of a CUDA device")?;
        Ok(Outcome {
            sums: stream.clone_dtoh(&self.sums)?,
            graphs: self.by_slot.len(),
            replays: self.replays,
        })
    }
}

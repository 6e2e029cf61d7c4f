//! In steady state nothing is allocated, pinned or started, and nothing grows. A binary of its own: it counts what
//! the process does.

#![allow(clippy::unwrap_used)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use warpfeed::{Batch, Device, Epoch, Field, Loader, Stream, source};

struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: every call is passed on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Relaxed);
        // SAFETY: the caller's contract is the system's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Relaxed);
        // SAFETY: as above.
        unsafe { System.realloc(memory, layout, size) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

const BATCH: usize = 32;

fn loader(device: &Device, workers: usize, epochs: u64) -> Loader {
    let fields = [
        Field::new::<u8>("image", &[12, 12, 3]),
        Field::scalar::<i64>("label"),
        Field::ragged::<u32>("ids", 9),
    ];
    Loader::builder(source::from_fn(1 << 40, Ok))
        .decode_with(fields, |sample, row| {
            let x = *sample.read()?;
            row.slice::<u8>("image")?.fill(x as u8);
            row.ragged::<u32>("ids", (x % 10) as usize)?.fill(x as u32);
            Ok(row.set("label", x as i64)?)
        })
        .batch_size(BATCH)
        .workers(workers)
        .epochs(epochs)
        .shuffle(1)
        .build(device)
        .unwrap()
}

fn take(epoch: &mut Epoch<'_>, stream: &Stream, batches: usize) {
    for _ in 0..batches {
        let batch: Batch = epoch.next().unwrap().unwrap();
        let view = batch.view::<u8>("image").unwrap();
        assert_eq!(view.shape(), [BATCH, 12, 12, 3]);
        stream.synchronize().unwrap();
    }
}

fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").map_or(0, Iterator::count)
}

fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    statm.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0) * 4096
}

/// One test: the counts are the process's.
#[test]
fn steady_state_allocates_pins_and_starts_nothing_and_does_not_grow() {
    for workers in [0, 2] {
        let device = Device::cpu();
        let stream = device.new_stream().unwrap();
        let loader = loader(&device, workers, 1);
        let mut epoch = loader.epoch(&stream).unwrap();
        take(&mut epoch, &stream, 200);
        let (pins, streams, events) = made(&device);
        let (started, memory) = (threads(), resident());
        let (allocations, tasks) = (ALLOCATIONS.load(Relaxed), loader.stats().tasks);
        take(&mut epoch, &stream, 10_000);
        let (allocations, tasks) = (ALLOCATIONS.load(Relaxed) - allocations, loader.stats().tasks - tasks);
        // The pool keeps each task in a box, and its queue in blocks of 63.
        let pools = tasks + tasks / 63 + 2;
        println!("{workers} workers: {allocations} allocations in 10,000 batches, {tasks} tasks");
        // A task that was counted may run a moment later: a few more or less at both ends.
        assert!(allocations <= pools + 64, "{allocations} allocations, the pool's are {pools}");
        assert!(workers > 0 || allocations == 0, "{allocations} allocations without a pool");
        assert_eq!(made(&device), (pins, streams, events));
        assert_eq!(threads(), started);
        let grown = resident().saturating_sub(memory);
        assert!(grown < 4 << 20, "resident memory grew by {grown} bytes");
    }
}

fn made(device: &Device) -> (u64, u64, u64) {
    let counters = device.counters();
    (counters.pins + counters.pin_failures, counters.streams, counters.events)
}

//! Images in steady state: no memory grows, and an image allocates no more than the resizer's weights. A binary of its own: it
//! counts what the process allocates.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use warpfeed::decode::Image;
use warpfeed::{Device, Loader, source};

struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);
static ALLOCATED: AtomicU64 = AtomicU64::new(0);
static FREED: AtomicU64 = AtomicU64::new(0);

fn allocated(size: usize) {
    ALLOCATIONS.fetch_add(1, Relaxed);
    ALLOCATED.fetch_add(size as u64, Relaxed);
}

// SAFETY: every call is passed on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        allocated(layout.size());
        // SAFETY: the caller's contract is the system's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        FREED.fetch_add(layout.size() as u64, Relaxed);
        // SAFETY: as above.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        allocated(size);
        FREED.fetch_add(layout.size() as u64, Relaxed);
        // SAFETY: as above.
        unsafe { System.realloc(memory, layout, size) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

const BATCH: usize = 8;
const SIDE: u32 = 24;

fn bmp(width: u32, height: u32) -> Vec<u8> {
    let rgb: Vec<u8> = (0..width * height * 3).map(|k| (k * 31 % 251) as u8).collect();
    let mut out = Vec::new();
    let mut encoder = image::codecs::bmp::BmpEncoder::new(&mut out);
    encoder.encode(&rgb, width, height, image::ExtendedColorType::Rgb8).unwrap();
    out
}

/// One test: the counts are the process's.
#[test]
fn memory_does_not_grow_with_the_images() {
    let images: Vec<Vec<u8>> = (0..32).map(|k| bmp(60 + 7 * (k % 5), 50 + 9 * (k % 7))).collect();
    let device = Device::cpu();
    let stream = device.new_stream().unwrap();
    let image = || Image::rgb8(SIDE as usize, SIDE as usize).flip(0.5);
    for (name, image) in [
        ("random resized crop", image().random_resized_crop(Image::SCALE, Image::RATIO)),
        ("letterbox", image().letterbox()),
        ("cover", image()),
    ] {
        for workers in [0, 2] {
            let loader = Loader::builder(source::from_vec(images.clone()))
                .decode(image.clone())
                .batch_size(BATCH)
                .workers(workers)
                .shuffle(1)
                .build(&device)
                .unwrap();
            let take = |batches: usize| {
                let mut left = batches;
                while left > 0 {
                    for batch in loader.epoch(&stream).unwrap().take(left) {
                        batch.unwrap();
                        left -= 1;
                    }
                    stream.synchronize().unwrap();
                }
            };
            let live = || ALLOCATED.load(Relaxed) as i64 - FREED.load(Relaxed) as i64;
            take(30);
            let (before, allocations) = (live(), ALLOCATIONS.load(Relaxed));
            take(100);
            let (grown, allocations) = (live() - before, ALLOCATIONS.load(Relaxed) - allocations);
            let each = allocations as f64 / (100 * BATCH) as f64;
            println!("{name}, {workers} workers: {grown} bytes more, {each:.1} allocations an image");
            // Batches in the making may hold what a decoder has for the moment: two images and the loader's own.
            assert!(grown < 64 << 10, "{name}: {grown} bytes more after 800 images");
            // The resizer keeps the weights of each row and each column in a vector of its own.
            assert!(each < f64::from(SIDE + SIDE + 30), "{name}: {each} allocations an image");
        }
    }
}

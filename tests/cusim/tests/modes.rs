//! How time passes: links, kernels, delays, and work that is done as late as can be.

mod support;

use cudarc::driver::{CudaContext, CudaStream, result, sys};
use std::sync::Arc;
use std::time::{Duration, Instant};
use support::sim;

/// A megabyte of page-locked memory and one of device memory.
struct Buffers {
    host: *mut u8,
    device: sys::CUdeviceptr,
}

const N: usize = 1_000_000;

impl Buffers {
    fn new() -> Buffers {
        // SAFETY: used within `N` bytes; freed by the end of the context.
        unsafe {
            Buffers {
                host: result::malloc_host(N, 0).unwrap().cast(),
                device: result::malloc_sync(N).unwrap(),
            }
        }
    }

    fn up(&self, stream: &CudaStream) {
        // SAFETY: inside both buffers.
        unsafe { sys::cuMemcpyHtoDAsync_v2(self.device, self.host.cast(), N, stream.cu_stream()) }
            .result()
            .unwrap();
    }

    fn down(&self, stream: &CudaStream) {
        // SAFETY: inside both buffers.
        unsafe { sys::cuMemcpyDtoHAsync_v2(self.host.cast(), self.device, N, stream.cu_stream()) }
            .result()
            .unwrap();
    }
}

fn context(device: usize) -> (Arc<CudaContext>, Arc<CudaStream>, Arc<CudaStream>) {
    let context = CudaContext::new(device).unwrap();
    let (a, b) = (context.new_stream().unwrap(), context.new_stream().unwrap());
    (context, a, b)
}

/// Milliseconds until both streams are done with what `work` gives them.
fn time(a: &CudaStream, b: &CudaStream, work: impl FnOnce()) -> u128 {
    let begun = Instant::now();
    work();
    a.synchronize().unwrap();
    b.synchronize().unwrap();
    begun.elapsed().as_millis()
}

/// The least of several tries: what else the machine does can only add.
fn least(mut time: impl FnMut() -> u128) -> u128 {
    (0..6).map(|_| time()).min().unwrap()
}

#[test]
fn copies_of_one_direction_share_the_link_and_directions_do_not() {
    let sim = sim();
    sim.change(|config| config.gbps = 0.02); // 1 MB takes 50 ms
    let (_context, a, b) = context(0);
    let (x, y) = (Buffers::new(), Buffers::new());
    let one = least(|| time(&a, &b, || x.up(&a)));
    assert!((50..90).contains(&one), "{one} ms");
    let same = time(&a, &b, || {
        x.up(&a);
        y.up(&b);
    });
    assert!(same >= 100, "{same} ms");
    let both = least(|| {
        time(&a, &b, || {
            x.up(&a);
            y.down(&b);
        })
    });
    assert!((50..95).contains(&both), "{both} ms");
}

#[test]
fn devices_have_links_of_their_own() {
    let sim = sim();
    sim.change(|config| config.gbps = 0.02);
    let (first, a, _) = context(0);
    let x = Buffers::new();
    let (second, b, _) = context(1);
    let y = Buffers::new();
    let took = least(|| {
        time(&a, &b, || {
            first.bind_to_thread().unwrap();
            x.up(&a);
            second.bind_to_thread().unwrap();
            y.up(&b);
        })
    });
    assert!((50..95).contains(&took), "{took} ms");
}

#[test]
fn a_copy_may_have_a_fixed_time() {
    let sim = sim();
    sim.change(|config| config.copy_us = 20_000);
    let (_context, a, b) = context(0);
    let x = Buffers::new();
    let took = time(&a, &b, || (0..3).for_each(|_| x.up(&a)));
    assert!(took >= 60, "{took} ms");
}

#[test]
fn delays_come_from_the_seed() {
    let sim = sim();
    let (_context, a, b) = context(0);
    let x = Buffers::new();
    sim.change(|config| config.delay_us = 30_000);
    let took = least(|| time(&a, &b, || (0..8).for_each(|_| x.up(&a))));
    assert!((20..=240).contains(&took), "{took} ms"); // 120 on average
}

#[test]
fn lazy_work_is_done_when_somebody_needs_it() {
    let sim = sim();
    sim.change(|config| {
        config.lazy = true;
        config.lazy_ms = 60_000;
    });
    let (_context, a, b) = context(0);
    let x = Buffers::new();
    // SAFETY: inside the buffers; too early, which is the mistake to be seen.
    unsafe {
        x.host.write(1);
        x.up(&a);
        std::thread::sleep(Duration::from_millis(50));
        x.host.write(2); // an early write is seen by the copy
        a.synchronize().unwrap();
        x.host.write(0);
        x.down(&a);
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(x.host.read(), 0); // an early read sees what was there before
        b.synchronize().unwrap(); // nobody needs `a` for this
        assert_eq!(x.host.read(), 0);
        a.synchronize().unwrap();
        assert_eq!(x.host.read(), 2);
    }
}

#[test]
fn lazy_work_is_done_for_another_streams_wait_and_for_a_query() {
    let sim = sim();
    sim.change(|config| {
        config.lazy = true;
        config.lazy_ms = 60_000;
    });
    let (_context, a, b) = context(0);
    let x = Buffers::new();
    x.up(&a);
    b.join(&a).unwrap();
    x.down(&b);
    b.synchronize().unwrap();
    x.up(&a);
    let event = a.record_event(None).unwrap();
    let begun = Instant::now();
    while !event.is_complete() {
        assert!(begun.elapsed() < Duration::from_secs(10));
        std::thread::yield_now();
    }
}

#[test]
fn lazy_work_is_done_after_a_while_all_the_same() {
    let sim = sim();
    sim.change(|config| {
        config.lazy = true;
        config.lazy_ms = 30;
    });
    let (_context, a, _b) = context(0);
    let x = Buffers::new();
    // SAFETY: inside the buffer.
    unsafe { x.host.write_bytes(0, N) };
    x.down(&a);
    std::thread::sleep(Duration::from_millis(500));
    // SAFETY: as above; fresh device memory is 0xCD.
    assert_eq!(unsafe { x.host.read_volatile() }, 0xCD);
    a.synchronize().unwrap();
}

#[test]
fn a_pageable_upload_may_wait_for_the_stream() {
    let sim = sim();
    sim.change(|config| config.copy_us = 40_000);
    let (_context, a, b) = context(0);
    let x = Buffers::new();
    let pageable = vec![0u8; N];
    for waits in [false, true] {
        sim.change(|config| config.pageable_waits = waits);
        let took = least(|| {
            x.up(&a);
            let begun = Instant::now();
            // SAFETY: inside both buffers; the source is staged by the call.
            unsafe { sys::cuMemcpyHtoDAsync_v2(x.device, pageable.as_ptr().cast(), N, a.cu_stream()) }
                .result()
                .unwrap();
            let took = begun.elapsed().as_millis();
            time(&a, &b, || {});
            took
        });
        assert_eq!(took >= 30, waits, "{took} ms");
    }
    // The driver waited; the program still knows nothing.
    let c = _context.new_stream().unwrap();
    x.up(&a);
    // SAFETY: as above.
    unsafe { sys::cuMemcpyHtoDAsync_v2(x.device, pageable.as_ptr().cast(), N, a.cu_stream()) }
        .result()
        .unwrap();
    x.down(&c);
    assert_eq!(sim.report().races.len(), 2); // with both copies
    time(&a, &c, || {});
}

//! Host slots in memory of the caller's.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test stops at the first surprise")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use memmap2::MmapMut;
use warpfeed::{CpuOptions, ErrorKind};

#[path = "support/watch.rs"]
mod watch;
use watch::{LONG, device, device_with, eventually, numbers, samples, within};

#[test]
fn slots_lie_in_the_maps_that_were_given_and_deliver_the_same() {
    within(LONG, || {
        for workers in [0, 2] {
            let device = device();
            let stream = device.new_stream().unwrap();
            let asked = Arc::new(AtomicUsize::new(0));
            let seen = asked.clone();
            let memory = move |bytes: usize| {
                seen.fetch_add(1, Ordering::Relaxed);
                // Longer than need be, and not zero.
                let mut map = MmapMut::map_anon(bytes + 5000)?;
                map.fill(0xAB);
                Ok(map)
            };
            // 41 in batches of 4: the rows behind the last are zero all the same.
            let loader = numbers(41)
                .batch_size(4)
                .workers(workers)
                .host_slots(4)
                .host_memory(memory)
                .build(&device)
                .unwrap();
            assert_eq!(asked.load(Ordering::Relaxed), 4);
            assert_eq!(samples(&loader, &stream), (0..41).collect::<Vec<_>>());
            let last = loader.epoch(&stream).unwrap().last().unwrap().unwrap();
            assert_eq!((last.len(), last.host::<u64>("x").unwrap()[0]), (1, 40));
            let c = device.counters();
            assert_eq!(c.host_bytes, 4 * loader.spec().bytes() as u64);
            assert_eq!((c.pins + c.pin_failures > 0, loader.stats().pinned), (true, c.pins >= 4));
            drop((last, loader));
            eventually("the maps are given back", || {
                let c = device.counters();
                (c.host_bytes, c.pinned_bytes) == (0, 0)
            });
            assert_eq!(asked.load(Ordering::Relaxed), 4);
        }
    });
}

#[test]
fn a_map_that_is_too_short_and_memory_that_is_not_had_are_named() {
    within(LONG, || {
        let device = device();
        let build = |memory: fn(usize) -> anyhow::Result<MmapMut>| {
            numbers(40).batch_size(4).workers(0).host_memory(memory).build(&device)
        };
        let slot = build(|bytes| Ok(MmapMut::map_anon(bytes)?)).unwrap().spec().bytes();
        let error = build(|bytes| Ok(MmapMut::map_anon(bytes - 1)?)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig);
        for part in [format!("{} bytes", slot - 1), format!("of {slot}")] {
            assert!(error.to_string().contains(&part), "{part}: {error}");
        }
        let error = build(|_| anyhow::bail!("no huge page is left")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig);
        for part in ["host_memory", "host slot 0", "no huge page is left"] {
            assert!(error.to_string().contains(part), "{part}: {error}");
        }
        eventually("what was made before is freed", || device.counters().host_bytes == 0);
    });
}

#[test]
fn maps_that_can_not_be_locked_are_pageable() {
    within(LONG, || {
        let device = device_with(CpuOptions::default().pin_limit(0));
        let stream = device.new_stream().unwrap();
        let memory = |bytes| Ok(MmapMut::map_anon(bytes)?);
        let loader = numbers(40).batch_size(4).host_memory(memory).build(&device).unwrap();
        assert!(!loader.stats().pinned);
        assert_eq!(samples(&loader, &stream), (0..40).collect::<Vec<_>>());
        let c = device.counters();
        assert_eq!((c.pins, c.pin_failures, c.pageable_copies), (0, 1, c.h2d_copies));
    });
}

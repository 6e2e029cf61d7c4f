//! What only the CPU device does: work on streams, modelled time, injected faults.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::*;
use crate::device::CpuOptions;
use crate::error::ErrorKind;

const MS: Duration = Duration::from_millis(1);

#[test]
fn work_of_many_threads_runs_in_the_order_of_each() {
    let device = Device::cpu();
    let stream = device.new_stream().unwrap();
    let ran = Arc::new(Mutex::new(Vec::new()));
    let count = if cfg!(miri) { 20 } else { 1000 };
    std::thread::scope(|scope| {
        for thread in 0..3 {
            let (stream, ran) = (stream.clone(), &ran);
            scope.spawn(move || {
                for i in 0..count {
                    let ran = ran.clone();
                    stream.enqueue(move || ran.lock().unwrap().push((thread, i))).unwrap();
                }
            });
        }
    });
    drain(&stream);
    let ran = ran.lock().unwrap();
    for thread in 0..3 {
        let of_thread: Vec<i32> = ran.iter().filter(|r| r.0 == thread).map(|r| r.1).collect();
        assert_eq!(of_thread, (0..count).collect::<Vec<_>>());
    }
}

#[test]
fn a_panic_lets_what_follows_pass_and_is_returned_once() {
    let device = Device::cpu();
    let stream = device.new_stream().unwrap();
    let (hold, ran) = (Hold::new(&stream), Arc::new(AtomicUsize::new(0)));
    stream.enqueue(|| panic!("first {}", 1)).unwrap();
    stream.enqueue(|| panic!("second")).unwrap();
    let behind = mark(&stream);
    let count = ran.clone();
    stream
        .enqueue(move || {
            count.fetch_add(1, Ordering::SeqCst);
        })
        .unwrap();
    hold.release();
    passes(&behind);
    let error = stream.synchronize().unwrap_err();
    assert_eq!((error.kind(), error.message()), (ErrorKind::Panic, "user code panicked: first 1"));
    assert_eq!(ran.load(Ordering::SeqCst), 1);
    stream.synchronize().unwrap();
    // The call that returns it does nothing else.
    stream.enqueue(|| std::panic::panic_any(7)).unwrap();
    passes(&behind);
    soon("the panic surfaces", || stream.record(&behind).is_err());
    stream.record(&behind).unwrap();
    passes(&behind);
}

#[test]
#[cfg_attr(miri, ignore = "leaks on purpose")]
fn a_payload_that_panics_when_dropped_does_not_end_the_stream() {
    struct Mine;
    impl Drop for Mine {
        fn drop(&mut self) {
            panic!("again");
        }
    }
    let stream = Device::cpu().new_stream().unwrap();
    stream.enqueue(|| std::panic::panic_any(Mine)).unwrap();
    assert_eq!(stream.synchronize().unwrap_err().kind(), ErrorKind::Panic);
    drain(&stream);
}

#[test]
fn the_thread_ends_with_its_last_handle() {
    let device = Device::cpu();
    /// Reports from the destructor of a thread-local: the thread is at its end.
    struct Report(mpsc::Sender<String>);
    impl Drop for Report {
        fn drop(&mut self) {
            self.0.send(std::thread::current().name().unwrap_or_default().to_string()).ok();
        }
    }
    thread_local! { static REPORT: std::cell::RefCell<Option<Report>> = const { std::cell::RefCell::new(None) } }
    let (ended, end) = mpsc::channel();
    let stream = device.new_stream().unwrap();
    let (name, clone) = (format!("warpfeed-stream-{}", stream.id()), stream.clone());
    assert_ne!(stream.id(), 0);
    // The last handle may go on the stream's own thread.
    stream
        .enqueue(move || {
            REPORT.with(|r| *r.borrow_mut() = Some(Report(ended)));
            drop(clone);
        })
        .unwrap();
    drain(&stream);
    assert!(end.try_recv().is_err());
    drop(stream);
    assert_eq!(end.recv_timeout(HANG).unwrap(), name);
    soon("not counted any more", || device.counters().live_streams == 0);
}

#[test]
fn the_host_never_waits_for_a_copy() {
    let device = Device::cpu_with(CpuOptions::default().copy_time(200 * MS));
    let stream = device.new_stream().unwrap();
    let len = if cfg!(miri) { 1 << 10 } else { 64 << 20 };
    let (src, on_device) = (filled(&device, len, 1), device.device_buffer(len).unwrap());
    up(&stream, &on_device, &src);
    let copied = mark(&stream);
    assert!(!copied.query().unwrap());
    passes(&copied);
    assert!(device.counters().copy_busy >= 200 * MS);
}

#[test]
fn a_copy_takes_the_time_of_the_link_and_streams_share_it() {
    // 1 MB at 0.05 GB/s: 20 ms.
    let device = Device::cpu_with(CpuOptions::default().link_gbps(0.05).lock(false));
    let streams = [(); 3].map(|()| device.new_stream().unwrap());
    let (src, on_device) = (filled(&device, 1_000_000, 1), [(); 3].map(|()| device.device_buffer(1_000_000)));
    let start = Instant::now();
    up(&streams[0], on_device[0].as_ref().unwrap(), &src);
    drain(&streams[0]);
    assert!(start.elapsed() >= 20 * MS, "{:?} for a copy of 20 ms", start.elapsed());
    let start = Instant::now();
    for (stream, dst) in streams.iter().zip(&on_device) {
        up(stream, dst.as_ref().unwrap(), &src);
    }
    streams.iter().for_each(drain);
    assert!(start.elapsed() >= 60 * MS, "{:?} for 3 copies of 20 ms over one link", start.elapsed());
}

#[test]
fn delays_depend_on_the_seed_and_the_number_alone() {
    let delays = |seed| {
        let options = CpuOptions::default().copy_delay(seed, 10 * MS);
        (0..200).map(|n| options.delay_of(n)).collect::<Vec<_>>()
    };
    assert_eq!(delays(1), delays(1));
    assert_ne!(delays(1), delays(2));
    let mean = delays(1).iter().sum::<Duration>() / 200;
    assert!((4 * MS..6 * MS).contains(&mean), "{mean:?}");
    assert!(delays(1).iter().all(|d| *d < 10 * MS));
    assert_eq!(CpuOptions::default().delay_of(3), Duration::ZERO);
}

#[test]
fn options_that_make_no_sense_do_no_harm() {
    for gbps in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        assert_eq!(CpuOptions::default().link_gbps(gbps).time_of(1 << 20), Duration::ZERO);
    }
    let endless = CpuOptions::default().link_gbps(f64::MIN_POSITIVE).copy_time(Duration::MAX);
    assert!(Instant::now().checked_add(endless.time_of(usize::MAX)).is_some());
    let endless = CpuOptions::default().copy_delay(1, Duration::MAX);
    assert!(Instant::now().checked_add(endless.delay_of(1)).is_some());
}

#[test]
#[cfg_attr(miri, ignore = "a data race on purpose")]
fn bytes_move_late_so_that_reading_too_early_shows() {
    let device = Device::cpu_with(CpuOptions::default().copy_time(300 * MS));
    let stream = device.new_stream().unwrap();
    let (src, on_device) = (filled(&device, 64, 1), device.device_buffer(64).unwrap());
    up(&stream, &on_device, &src);
    let copied = mark(&stream);
    let other = device.new_stream().unwrap();
    let seen = Arc::new(AtomicU64::new(0));
    let (first, result) = (AddressOf(on_device.as_ptr()), seen.clone());
    other
        .enqueue(move || {
            // SAFETY: the buffer outlives `drain` below, and the copy that writes it is 300 ms away. That
            // this reads unordered is the fault that the test is about.
            let early = unsafe { first.get().read_volatile() };
            result.store(early.into(), Ordering::SeqCst);
        })
        .unwrap();
    drain(&other);
    if !copied.query().unwrap() {
        assert_eq!(seen.load(Ordering::SeqCst), 0xCD, "the copy was early");
    }
    passes(&copied);
}

/// An address that a test takes to a stream's thread.
struct AddressOf(*mut u8);

// SAFETY: a number; whoever follows it keeps to the order of the streams.
unsafe impl Send for AddressOf {}

impl AddressOf {
    fn get(&self) -> *mut u8 {
        self.0
    }
}

#[test]
#[cfg_attr(miri, ignore = "real time")]
fn copies_overlap_work_on_another_stream() {
    // 20 batches of a 10 ms copy and 10 ms of work, in two device buffers as a loader has them.
    let device = Device::cpu_with(CpuOptions::default().copy_time(10 * MS));
    let run = |copies: &Stream, compute: &Stream| {
        let (src, on_device) = (filled(&device, 64, 1), [(); 2].map(|()| device.device_buffer(64).unwrap()));
        let events = [(); 4].map(|()| device.new_event().unwrap());
        let start = Instant::now();
        for i in 0..20 {
            let (copied, used) = (&events[i % 2], &events[2 + i % 2]);
            copies.wait(used).unwrap();
            up(copies, &on_device[i % 2], &src);
            copies.record(copied).unwrap();
            compute.wait(copied).unwrap();
            compute.enqueue(|| std::thread::sleep(10 * MS)).unwrap();
            compute.record(used).unwrap();
        }
        drain(compute);
        start.elapsed()
    };
    let (one, two) = (device.new_stream().unwrap(), device.new_stream().unwrap());
    let mut tries = Vec::new();
    for _ in 0..4 {
        let (serial, overlapped) = (run(&one, &one), run(&one, &two));
        assert!(serial >= 395 * MS, "{serial:?}");
        // A busy machine can hide it once, but not make up an overlap that is not there.
        if overlapped < serial.mul_f64(0.85) {
            return;
        }
        tries.push((serial, overlapped));
    }
    panic!("no overlap: {tries:?}");
}

#[test]
fn work_that_would_wait_for_its_own_stream_is_refused() {
    let device = Device::cpu();
    let stream = device.new_stream().unwrap();
    let (kinds, mine) = (Arc::new(Mutex::new(Vec::new())), stream.clone());
    let (event, seen) = (device.new_event().unwrap(), kinds.clone());
    let own = event.clone();
    stream
        .enqueue(move || {
            let mut kinds = seen.lock().unwrap();
            kinds.push(mine.synchronize().map_err(|e| e.kind()));
            mine.record(&own).unwrap();
            kinds.push(own.synchronize().map_err(|e| e.kind()));
        })
        .unwrap();
    drain(&stream);
    passes(&event);
    assert_eq!(*kinds.lock().unwrap(), [Err(ErrorKind::InvalidArgument); 2]);
}

#[test]
fn the_first_refusal_of_page_locking_is_the_last_call() {
    let device = Device::cpu_with(CpuOptions::default().pin_limit(0));
    let buffers: Vec<_> = (0..4).map(|_| filled(&device, 4096, 1)).collect();
    assert!(buffers.iter().all(|b| !b.is_locked()));
    let stream = device.new_stream().unwrap();
    let on_device = device.device_buffer(4096).unwrap();
    up(&stream, &on_device, &buffers[3]);
    drain(&stream);
    let counters = device.counters();
    assert_eq!((counters.pins, counters.pin_failures, counters.pageable_copies), (0, 1, 1));
    assert_eq!((counters.pinned_bytes, counters.pinned_peak, counters.host_bytes), (0, 0, 4 * 4096));
}

#[test]
fn page_locking_is_not_tried_where_it_is_switched_off() {
    let device = Device::cpu_with(CpuOptions::default().lock(false).pin_limit(0));
    assert!(!device.host_buffer(4096).unwrap().is_locked());
    assert_eq!((device.counters().pins, device.counters().pin_failures), (0, 0));
}

#[test]
#[cfg_attr(miri, ignore = "miri locks no pages")]
fn pages_are_locked_up_to_the_limit() {
    let device = Device::cpu_with(CpuOptions::default().pin_limit(8192));
    let buffers: Vec<_> = (0..4).map(|_| device.host_buffer(4096).unwrap()).collect();
    if device.counters().pins == 0 {
        println!("skipped: the system refuses to lock pages");
        return;
    }
    let locked: Vec<bool> = buffers.iter().map(HostBuffer::is_locked).collect();
    assert_eq!(locked, [true, true, false, false]);
    let counters = device.counters();
    assert_eq!((counters.pins, counters.pin_failures, counters.unpins), (2, 1, 0));
    assert_eq!((counters.pinned_bytes, counters.pinned_peak), (8192, 8192));
    drop(buffers);
    let counters = device.counters();
    assert_eq!((counters.unpins, counters.pinned_bytes, counters.pinned_peak), (2, 0, 8192));
}

#[test]
#[cfg(target_os = "linux")]
#[cfg_attr(miri, ignore = "miri locks no pages")]
fn a_locked_buffer_is_locked_to_the_kernel() {
    let device = Device::cpu();
    let buffer = device.host_buffer(1 << 16).unwrap();
    if !buffer.is_locked() {
        println!("skipped: the system refuses to lock pages");
        return;
    }
    // The mapping that holds the buffer, in /proc/self/smaps: its flags name `lo`.
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let (at, mut inside) = (buffer.as_ptr() as usize, false);
    for line in maps.lines() {
        let range = line.split(' ').next().and_then(|r| r.split_once('-'));
        if let Some((Ok(from), Ok(to))) =
            range.map(|(a, b)| (usize::from_str_radix(a, 16), usize::from_str_radix(b, 16)))
        {
            inside = (from..to).contains(&at);
        } else if inside && line.starts_with("VmFlags:") {
            assert!(line.split(' ').any(|flag| flag == "lo"), "{line}");
            return;
        }
    }
    panic!("the buffer is in no mapping");
}

#[test]
fn device_memory_has_a_limit() {
    let device = Device::cpu_with(CpuOptions::default().memory(10_000));
    let first = device.device_buffer(6_000).unwrap();
    let error = device.device_buffer(6_000).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Device);
    assert!(error.message().contains("6000 of 10000"), "{error}");
    drop(first);
    assert_eq!(device.device_buffer(10_000).unwrap().len(), 10_000);
    assert_eq!(device.counters().device_bytes, 0);
}

#[test]
fn names_and_debug_output_say_what_it_is() {
    let device = Device::cpu();
    assert!(device.is_cpu());
    assert_eq!(format!("{device:?}"), "Device(\"CPU\")");
    let stream = device.new_stream().unwrap();
    assert!(format!("{stream:?}").contains(&stream.id().to_string()));
}

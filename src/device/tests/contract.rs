//! The stream-ordered semantics, as functions of a device. They use copies and events only, so that any
//! flavour can run them.

use std::time::Duration;

use super::*;
use crate::device::CpuOptions;
use crate::error::ErrorKind;

/// Makes a test of each function, run on every device there is.
macro_rules! on_every_device {
    ($($name:ident)*) => { $(#[test] fn $name() { for device in devices() { super::$name(&device); } })* };
}

fn devices() -> Vec<Device> {
    let late = CpuOptions::default().copy_delay(7, Duration::from_millis(4));
    let slow = CpuOptions::default().link_gbps(0.01).copy_time(Duration::from_millis(1)).lock(false);
    let mut devices = vec![Device::cpu(), Device::cpu_with(late), Device::cpu_with(slow)];
    #[cfg(feature = "cuda")]
    match Device::cuda(0) {
        Ok(device) => {
            println!("also on {device:?}");
            devices.push(device);
        }
        // The package that is there to test it brings a driver along.
        Err(error) => assert_ne!(env!("CARGO_PKG_NAME"), "warpfeed-cuda", "{error}"),
    }
    devices
}

mod every {
    use super::devices;
    on_every_device! {
        a_stream_runs_in_order
        a_wait_orders_two_streams
        a_wait_means_the_record_at_the_time_of_the_call
        an_event_never_recorded_has_passed
        an_event_refers_to_its_latest_record
        an_event_recorded_on_a_second_stream_leaves_earlier_waits_alone
        a_host_wait_can_time_out
        events_tell_the_time_between_them
        what_is_enqueued_outlives_the_handle
        objects_and_calls_are_counted
        wrong_arguments_are_refused_and_enqueue_nothing
        buffers_are_aligned_and_start_as_they_should
    }
}

const LEN: usize = 5000;

fn a_stream_runs_in_order(device: &Device) {
    let stream = device.new_stream().unwrap();
    let on_device = device.device_buffer(LEN).unwrap();
    let sources: Vec<_> = (0..8).map(|i| filled(device, LEN, i)).collect();
    let results: Vec<_> = (0..8).map(|_| filled(device, LEN, 0xFF)).collect();
    let hold = Hold::new(&stream);
    for (src, dst) in sources.iter().zip(&results) {
        up(&stream, &on_device, src);
        down(&stream, dst, &on_device);
    }
    assert!(!stream.query().unwrap());
    hold.release();
    stream.synchronize().unwrap();
    assert!(stream.query().unwrap());
    for (i, dst) in results.iter().enumerate() {
        assert!(bytes(dst).iter().all(|&b| b == i as u8), "copy {i}");
    }
}

fn a_wait_orders_two_streams(device: &Device) {
    let (first, second) = (device.new_stream().unwrap(), device.new_stream().unwrap());
    let on_device = device.device_buffer(LEN).unwrap();
    let (src, dst) = (filled(device, LEN, 3), filled(device, LEN, 0));
    let hold = Hold::new(&first);
    up(&first, &on_device, &src);
    let copied = mark(&first);
    second.wait(&copied).unwrap();
    down(&second, &dst, &on_device);
    let back = mark(&second);
    assert!(!back.synchronize_for(Duration::from_millis(20)).unwrap(), "it did not wait");
    hold.release();
    passes(&back);
    assert!(bytes(&dst).iter().all(|&b| b == 3));
}

fn a_wait_means_the_record_at_the_time_of_the_call(device: &Device) {
    let (first, second) = (device.new_stream().unwrap(), device.new_stream().unwrap());
    let before = Hold::new(&first);
    let event = mark(&first);
    second.wait(&event).unwrap();
    let behind = mark(&second);
    // The second record lies behind something that does not end; the wait must not refer to it.
    let after = Hold::new(&first);
    first.record(&event).unwrap();
    assert!(!behind.query().unwrap());
    before.release();
    passes(&behind);
    assert!(!event.query().unwrap());
    after.release();
    passes(&event);
}

fn an_event_never_recorded_has_passed(device: &Device) {
    let stream = device.new_stream().unwrap();
    let event = device.new_event().unwrap();
    assert!(event.query().unwrap());
    event.synchronize().unwrap();
    assert!(event.synchronize_for(Duration::ZERO).unwrap());
    stream.wait(&event).unwrap();
    // A record that comes later is not what was waited for.
    let other = device.new_stream().unwrap();
    let hold = Hold::new(&other);
    other.record(&event).unwrap();
    drain(&stream);
    hold.release();
    drain(&other);
}

fn an_event_refers_to_its_latest_record(device: &Device) {
    let stream = device.new_stream().unwrap();
    let event = mark(&stream);
    passes(&event);
    for _ in 0..3 {
        let hold = Hold::new(&stream);
        assert!(event.query().unwrap(), "what lies behind a record is not part of it");
        stream.record(&event).unwrap();
        assert!(!event.query().unwrap());
        assert!(!event.synchronize_for(Duration::from_millis(1)).unwrap());
        hold.release();
        event.synchronize().unwrap();
        assert!(event.query().unwrap());
    }
}

fn an_event_recorded_on_a_second_stream_leaves_earlier_waits_alone(device: &Device) {
    let [first, second, waiter] = [(); 3].map(|()| device.new_stream().unwrap());
    let hold = Hold::new(&first);
    let event = mark(&first);
    waiter.wait(&event).unwrap();
    let behind = mark(&waiter);
    second.record(&event).unwrap();
    passes(&event);
    assert!(!behind.synchronize_for(Duration::from_millis(20)).unwrap(), "it took the later record");
    hold.release();
    passes(&behind);
}

fn a_host_wait_can_time_out(device: &Device) {
    let stream = device.new_stream().unwrap();
    let hold = Hold::new(&stream);
    let event = mark(&stream);
    let start = Instant::now();
    assert!(!event.synchronize_for(Duration::from_millis(30)).unwrap());
    assert!(start.elapsed() >= Duration::from_millis(30));
    assert!(!event.synchronize_for(Duration::ZERO).unwrap());
    hold.release();
    assert!(event.synchronize_for(Duration::MAX).unwrap());
}

fn events_tell_the_time_between_them(device: &Device) {
    let stream = device.new_stream().unwrap();
    let (start, end) = (mark(&stream), device.new_event().unwrap());
    assert_eq!(end.elapsed_since(&start).unwrap_err().kind(), ErrorKind::InvalidArgument);
    let hold = Hold::new(&stream);
    passes(&start);
    std::thread::sleep(Duration::from_millis(20));
    stream.record(&end).unwrap();
    hold.release();
    passes(&end);
    let elapsed = end.elapsed_since(&start).unwrap();
    assert!((Duration::from_millis(20)..HANG).contains(&elapsed), "{elapsed:?}");
    assert_eq!(start.elapsed_since(&end).unwrap(), Duration::ZERO);
    let hold = Hold::new(&stream);
    stream.record(&end).unwrap();
    match end.elapsed_since(&start) {
        // A record under way leaves the last one that has passed in force; CUDA has forgotten it.
        Ok(before) => assert!(device.is_cpu() && before == elapsed),
        Err(error) => assert!(!device.is_cpu() && error.kind() == ErrorKind::InvalidArgument),
    }
    hold.release();
    passes(&end);
    assert!(end.elapsed_since(&start).unwrap() > elapsed);
}

fn what_is_enqueued_outlives_the_handle(device: &Device) {
    let live = device.counters().live_streams;
    let stream = device.new_stream().unwrap();
    let hold = Hold::new(&stream);
    let (src, on_device) = (filled(device, LEN, 9), device.device_buffer(LEN).unwrap());
    up(&stream, &on_device, &src);
    let copied = mark(&stream);
    drop(stream);
    assert!(!copied.query().unwrap());
    hold.release();
    passes(&copied);
    soon("the stream goes away", || device.counters().live_streams == live);
}

fn objects_and_calls_are_counted(device: &Device) {
    let before = device.counters();
    let (stream, other) = (device.new_stream().unwrap(), device.new_stream().unwrap());
    let (src, on_device) = (filled(device, LEN, 9), device.device_buffer(LEN).unwrap());
    for _ in 0..3 {
        up(&stream, &on_device, &src);
    }
    let copied = mark(&stream);
    other.wait(&copied).unwrap();
    down(&other, &src, &on_device);
    passes(&mark(&other));
    assert!(copied.query().unwrap());
    let now = device.counters();
    assert_eq!((now.streams - before.streams, now.live_streams - before.live_streams), (2, 2));
    assert_eq!((now.events - before.events, now.live_events - before.live_events), (2, 1));
    assert_eq!((now.h2d_copies - before.h2d_copies, now.h2d_bytes - before.h2d_bytes), (3, 3 * LEN as u64));
    assert_eq!((now.d2h_copies - before.d2h_copies, now.d2h_bytes - before.d2h_bytes), (1, LEN as u64));
    assert_eq!((now.records - before.records, now.waits - before.waits), (2, 1));
    assert_eq!((now.queries - before.queries, now.host_waits - before.host_waits), (1, 1));
    assert_eq!(now.pageable_copies - before.pageable_copies, if src.is_locked() { 0 } else { 3 });
    assert!(now.copy_busy > before.copy_busy);
    let held = (now.host_bytes - before.host_bytes, now.device_bytes - before.device_bytes);
    assert_eq!(held, (LEN as u64, LEN as u64));
    drop((src, on_device, copied));
    soon("the buffers are freed", || device.counters().host_bytes == before.host_bytes);
    soon("the buffers are freed", || device.counters().device_bytes == before.device_bytes);
    let end = device.counters();
    assert_eq!((end.host_bytes, end.device_bytes), (before.host_bytes, before.device_bytes));
    assert_eq!((end.pinned_bytes, end.pins), (before.pinned_bytes, end.unpins));
    assert_eq!(end.live_events, before.live_events);
}

fn wrong_arguments_are_refused_and_enqueue_nothing(device: &Device) {
    let stream = device.new_stream().unwrap();
    let (host, on_device) = (filled(device, 8, 0), device.device_buffer(16).unwrap());
    let large = filled(device, 32, 0);
    let refused =
        |outcome: crate::error::Result<()>| outcome.unwrap_err().kind() == ErrorKind::InvalidArgument;
    // SAFETY: all are refused before anything is enqueued.
    unsafe {
        assert!(refused(stream.copy_to_device(&on_device, &host, 9)));
        assert!(refused(stream.copy_to_device(&on_device, &large, 17)));
        assert!(refused(stream.copy_to_host(large.as_ptr(), &on_device, 8..17)));
        #[allow(clippy::reversed_empty_ranges)]
        let reversed = 9..8;
        assert!(refused(stream.copy_to_host(large.as_ptr(), &on_device, reversed)));
    }
    let before = device.counters();
    let other = Device::cpu();
    assert!(refused(stream.record(&other.new_event().unwrap())));
    let counters = device.counters();
    assert_eq!(
        (counters.h2d_copies, counters.d2h_copies, counters.records),
        (before.h2d_copies, before.d2h_copies, before.records)
    );
    assert!(stream.query().unwrap());
    assert!(*device != other && stream.device() == *device && !stream.is_capturing().unwrap());
}

fn buffers_are_aligned_and_start_as_they_should(device: &Device) {
    let stream = device.new_stream().unwrap();
    for len in [0, 1, 4095, 4097, 3 << 20] {
        let len = if cfg!(miri) { len.min(4097) } else { len };
        let (host, on_device) = (device.host_buffer(len).unwrap(), device.device_buffer(len).unwrap());
        assert_eq!((host.len(), on_device.len()), (len, len));
        assert_eq!((host.as_ptr() as usize % 4096, on_device.as_ptr() as usize % 256), (0, 0));
        assert!(bytes(&host).iter().all(|&b| b == 0));
        down(&stream, &host, &on_device);
        drain(&stream);
        if device.is_cpu() {
            assert!(bytes(&host).iter().all(|&b| b == 0xCD));
        }
    }
}

//! What every flavour of device must do ([`contract`]), and what the CPU device does besides ([`cpu`]).

mod contract;
mod cpu;

use std::sync::mpsc;
use std::time::{Duration, Instant};

use super::{Device, DeviceBuffer, Event, HostBuffer, Stream};

/// Longer than anything takes on a loaded machine: a hang is a failed test.
const HANG: Duration = Duration::from_secs(30);

/// Keeps a stream from going on until released or dropped.
struct Hold(mpsc::Sender<()>);

impl Hold {
    fn new(stream: &Stream) -> Self {
        let (release, released) = mpsc::channel();
        let work = move || {
            let _ = released.recv();
        };
        stream.enqueue(work).unwrap();
        Self(release)
    }

    fn release(self) {
        drop(self.0);
    }
}

/// Waits until `event` has passed.
fn passes(event: &Event) {
    assert!(event.synchronize_for(HANG).unwrap(), "the event never passed");
}

/// Records a new event on `stream`.
fn mark(stream: &Stream) -> Event {
    let event = stream.device().new_event().unwrap();
    stream.record(&event).unwrap();
    event
}

/// Waits until all that is enqueued on `stream` is over.
fn drain(stream: &Stream) {
    passes(&mark(stream));
}

fn soon(what: &str, mut met: impl FnMut() -> bool) {
    let deadline = Instant::now() + HANG;
    while !met() {
        assert!(Instant::now() < deadline, "timed out: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A host buffer full of `value`.
fn filled(device: &Device, bytes: usize, value: u8) -> HostBuffer {
    let buffer = device.host_buffer(bytes).unwrap();
    // SAFETY: `bytes` bytes that nobody else knows of yet.
    unsafe { buffer.as_ptr().write_bytes(value, bytes) };
    buffer
}

fn up(stream: &Stream, dst: &DeviceBuffer, src: &HostBuffer) {
    // SAFETY: the tests keep both buffers until an event behind the copy has passed or the stream is drained.
    unsafe { stream.copy_to_device(dst, src, src.len()) }.unwrap();
}

fn down(stream: &Stream, dst: &HostBuffer, src: &DeviceBuffer) {
    // SAFETY: as above.
    unsafe { stream.copy_to_host(dst.as_ptr(), src, 0..src.len().min(dst.len())) }.unwrap();
}

/// The bytes of a buffer that nothing enqueued refers to any more.
fn bytes(buffer: &HostBuffer) -> Vec<u8> {
    // SAFETY: all bytes were initialised when the buffer was made; the tests have drained what writes them.
    unsafe { std::slice::from_raw_parts(buffer.as_ptr(), buffer.len()) }.to_vec()
}

//! Guard pages: a thread that touches page-locked memory in flight is named, and goes on.

mod support;

use cudarc::driver::{CudaContext, CudaStream, result, sys};
use std::sync::Arc;
use support::{Locked, sim};

const N: usize = 16384;

struct Rig {
    _context: Arc<CudaContext>,
    stream: Arc<CudaStream>,
    host: *mut u8,
    device: sys::CUdeviceptr,
    sim: Locked, // last: the next test begins when it is dropped
}

fn rig() -> Rig {
    let sim = sim();
    sim.change(|config| {
        config.guard = true;
        config.copy_us = 20_000;
    });
    let context = CudaContext::new(0).unwrap();
    let stream = context.new_stream().unwrap();
    // SAFETY: used within `N` bytes.
    let (host, device) =
        unsafe { (result::malloc_host(N, 0).unwrap().cast(), result::malloc_sync(N).unwrap()) };
    Rig { sim, _context: context, stream, host, device }
}

impl Rig {
    fn upload(&self, n: usize) {
        // SAFETY: inside both buffers.
        unsafe { sys::cuMemcpyHtoDAsync_v2(self.device, self.host.cast(), n, self.stream.cu_stream()) }
            .result()
            .unwrap();
    }

    fn download(&self, n: usize) {
        // SAFETY: inside both buffers.
        unsafe { sys::cuMemcpyDtoHAsync_v2(self.host.cast(), self.device, n, self.stream.cu_stream()) }
            .result()
            .unwrap();
    }

    /// Runs `f` on the byte at `at`, on a thread with a name.
    fn on_thread(&self, at: usize, f: impl Fn(*mut u8) + Send) {
        let p = self.host as usize + at;
        std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().name("decode-3".into());
            thread.spawn_scoped(scope, move || f(p as *mut u8)).unwrap();
        });
    }

    fn found(&self) -> Vec<String> {
        let report = self.sim.take();
        assert!(report.races.is_empty(), "{report:#?}");
        report.host_races
    }
}

fn write(p: *mut u8) {
    // SAFETY: inside the page-locked buffer.
    unsafe { p.write_volatile(1) }
}

fn read(p: *mut u8) {
    // SAFETY: as above.
    unsafe { p.read_volatile() };
}

#[test]
fn a_write_during_an_upload_is_named() {
    let rig = rig();
    rig.upload(N);
    rig.on_thread(5000, read); // the upload only reads
    rig.on_thread(5000, write);
    let found = rig.found();
    assert_eq!(found.len(), 1, "{found:?}");
    for word in ["\"decode-3\"", "WRITES byte 0x1388", "cuMemcpyHtoDAsync 16384 B"] {
        assert!(found[0].contains(word), "{found:?}");
    }
    rig.stream.synchronize().unwrap();
    rig.on_thread(5000, write);
    rig.on_thread(9000, write);
    assert!(rig.found().is_empty());
}

#[test]
fn a_read_during_a_download_is_named() {
    let rig = rig();
    rig.download(N);
    rig.on_thread(0, read);
    let found = rig.found();
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].contains("READS byte 0x0"), "{found:?}");
    rig.stream.synchronize().unwrap();
    rig.on_thread(100, read);
    assert!(rig.found().is_empty());
}

#[test]
fn a_query_that_succeeds_opens_the_pages() {
    let rig = rig();
    rig.upload(N);
    let event = rig.stream.record_event(None).unwrap();
    while !event.is_complete() {
        std::thread::yield_now();
    }
    rig.on_thread(0, write);
    assert!(rig.found().is_empty());
}

#[test]
fn a_copy_that_is_done_but_not_seen_so_is_still_guarded() {
    let rig = rig();
    rig.upload(N);
    std::thread::sleep(std::time::Duration::from_millis(60));
    rig.on_thread(0, write);
    assert_eq!(rig.found().len(), 1);
    rig.stream.synchronize().unwrap();
}

#[test]
fn a_system_call_fails_on_pages_in_flight_and_only_there() {
    let rig = rig();
    let zeros = std::fs::File::open("/dev/zero").unwrap();
    use std::os::fd::AsRawFd;
    // SAFETY: inside the buffer.
    let fill = || unsafe { libc::read(zeros.as_raw_fd(), rig.host.cast(), 100) };
    assert_eq!(fill(), 100);
    rig.upload(N);
    assert_eq!(fill(), -1);
    assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::EFAULT));
    rig.stream.synchronize().unwrap();
    assert_eq!(fill(), 100);
}

#[test]
fn bytes_next_to_those_in_flight_are_free() {
    let rig = rig();
    rig.upload(100);
    rig.on_thread(100, write); // the same page, not the same bytes
    rig.on_thread(8192, write);
    assert!(rig.found().is_empty());
    rig.stream.synchronize().unwrap();
}

#[test]
fn the_data_is_right_all_the_same() {
    let rig = rig();
    for i in 0..N {
        // SAFETY: inside the buffer, and nothing is in flight.
        unsafe { rig.host.add(i).write(i as u8) };
    }
    rig.upload(N);
    rig.stream.synchronize().unwrap();
    // SAFETY: as above.
    unsafe { rig.host.write_bytes(0, N) };
    rig.download(N);
    rig.stream.synchronize().unwrap();
    // SAFETY: as above.
    assert!((0..N).all(|i| unsafe { rig.host.add(i).read() } == i as u8));
    assert!(rig.found().is_empty());
}

#[test]
fn without_the_guard_nothing_is_protected() {
    let rig = rig();
    rig.sim.change(|config| config.guard = false);
    rig.upload(N);
    rig.on_thread(0, write);
    assert!(rig.found().is_empty());
    rig.stream.synchronize().unwrap();
}

#[test]
fn a_fault_that_is_nobodys_copy_is_the_programs_own() {
    const CHILD: &str = "CHILD_OF_THE_FAULT_TEST";
    if std::env::var_os(CHILD).is_some() {
        let rig = rig();
        rig.upload(N); // the handler is there now
        // SAFETY: none: the fault is what is tested.
        unsafe { std::ptr::without_provenance_mut::<u8>(64).write_volatile(1) };
    }
    let mut run = std::process::Command::new(std::env::current_exe().unwrap());
    run.args(["--exact", "a_fault_that_is_nobodys_copy_is_the_programs_own"]).env(CHILD, "1");
    use std::os::unix::process::ExitStatusExt;
    assert_eq!(run.output().unwrap().status.signal(), Some(libc::SIGSEGV));
}

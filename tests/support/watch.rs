//! For tests of what a whole process does: a watchdog, a process of the test's own, and what it uses.

#![allow(dead_code, reason = "each test binary uses a part of it")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test stops at the first surprise")]

use std::io::Read;
use std::process::{Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use warpfeed::decode::{Decode, Sample};
use warpfeed::source::{Function, Source, from_fn};
use warpfeed::{Batch, Builder, CpuOptions, Device, Field, Loader, Row, Stream};

/// Far longer than any test takes on a busy machine.
pub(crate) const LONG: Duration = Duration::from_secs(100);

/// Runs `code` on a thread of its own. A hang is a failed test: after `limit` this panics, and the thread is left.
pub(crate) fn within<T: Send + 'static>(limit: Duration, code: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, outcome) = channel();
    let name = std::thread::current().name().unwrap_or("test").to_string();
    let thread = std::thread::Builder::new().name(name).spawn(move || {
        let _ = done.send(code());
    });
    let thread = thread.unwrap();
    match outcome.recv_timeout(limit) {
        Ok(value) => {
            #[cfg(feature = "simulated")]
            crate::simulated::assert_nothing_wrong();
            value
        }
        Err(RecvTimeoutError::Timeout) => panic!("still not over after {limit:?}: a hang"),
        Err(RecvTimeoutError::Disconnected) => match thread.join() {
            Err(payload) => std::panic::resume_unwind(payload),
            Ok(()) => unreachable!("it sends before it ends"),
        },
    }
}

/// Waits until `condition` holds.
pub(crate) fn eventually(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !condition() {
        assert!(Instant::now() < deadline, "not within 20 s: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

const CHILD: &str = "WARPFEED_TEST_CHILD";

/// This test, started again in a process of its own; there `is_child` holds.
pub(crate) fn again(test: &str) -> Command {
    // The test may lie in a module of the binary: its thread has the whole name.
    let thread = std::thread::current();
    let test = thread.name().filter(|name| name.ends_with(test)).unwrap_or(test);
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([test, "--exact", "--nocapture", "--test-threads=1"]).env(CHILD, test);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

pub(crate) fn is_child(test: &str) -> bool {
    std::env::var(CHILD).is_ok_and(|name| name.ends_with(test))
}

/// Runs `code` in a process where no other test disturbs what is measured. `test` is the caller's own name.
pub(crate) fn alone(test: &str, code: impl FnOnce()) {
    if is_child(test) {
        return code();
    }
    let mut child = again(test).spawn().unwrap();
    // Read while it runs, so that a full pipe can't stop it.
    let (mut out, mut err) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
    let reader = std::thread::spawn(move || {
        let mut text = String::new();
        out.read_to_string(&mut text).unwrap();
        text
    });
    let errors = std::thread::spawn(move || {
        let mut text = String::new();
        err.read_to_string(&mut text).unwrap();
        text
    });
    let deadline = Instant::now() + LONG;
    let status = loop {
        match child.try_wait().unwrap() {
            Some(status) => break Some(status),
            None if Instant::now() > deadline => {
                child.kill().unwrap();
                break None;
            }
            None => std::thread::sleep(Duration::from_millis(2)),
        }
    };
    let text = reader.join().unwrap() + &errors.join().unwrap();
    assert!(status.is_some_and(|s| s.success()), "{test} by itself: {status:?}\n{text}");
    assert!(text.contains("1 passed"), "no test has the name {test}:\n{text}");
}

/// The names of this process's threads, those of a simulated driver aside.
pub(crate) fn threads() -> Vec<String> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    // A thread that ends meanwhile has no name any more.
    let names = tasks.filter_map(|t| std::fs::read_to_string(t.ok()?.path().join("comm")).ok());
    names.filter(|name| !name.starts_with("cusim-")).collect()
}

/// Bytes of this process that are in memory.
pub(crate) fn resident() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    text.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

/// Files that this process has open.
pub(crate) fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// A record that is a number becomes the scalar `x`.
pub(crate) struct Number;

impl<S: Source<Record = u64>> Decode<S> for Number {
    type Scratch = ();

    fn fields(&self, _: &S) -> warpfeed::Result<Vec<Field>> {
        Ok(vec![Field::scalar::<u64>("x")])
    }

    fn decode(&self, sample: &mut Sample<'_, S>, (): &mut (), row: &mut Row<'_>) -> anyhow::Result<()> {
        let x = *sample.read()?;
        Ok(row.set("x", x)?)
    }
}

pub(crate) type Range = Function<fn(u64) -> anyhow::Result<u64>>;

/// The records 0, 1, … n-1.
pub(crate) fn range(n: u64) -> Range {
    from_fn(n, Ok)
}

/// A loader of the numbers 0, 1, … n-1.
pub(crate) fn numbers(n: u64) -> Builder<Range, Number> {
    Loader::builder(range(n)).decode(Number)
}

/// A new device: the CPU device, or where the simulated driver stands by, CUDA.
pub(crate) fn device() -> Device {
    device_with(CpuOptions::default())
}

/// As [`device`], that behaves as `options` say.
/// `WARPFEED_TEST_DEVICE=cuda:0` takes that GPU instead, whose times are its own.
#[cfg(not(feature = "simulated"))]
pub(crate) fn device_with(options: CpuOptions) -> Device {
    #[cfg(feature = "cuda")]
    if let Ok(name) = std::env::var("WARPFEED_TEST_DEVICE") {
        let number = name.strip_prefix("cuda:").and_then(|n| n.parse().ok());
        let on_gpu = warpfeed::CudaOptions::default().lock(options.lock);
        return Device::cuda_with(number.unwrap(), on_gpu).unwrap();
    }
    Device::cpu_with(options)
}

#[cfg(feature = "simulated")]
pub(crate) use crate::simulated::device_with;

/// A device and a stream of it.
pub(crate) fn device_and_stream() -> (Device, Stream) {
    let device = device();
    let stream = device.new_stream().unwrap();
    (device, stream)
}

pub(crate) fn values(batch: &Batch) -> Vec<u64> {
    batch.host::<u64>("x").unwrap().to_vec()
}

/// One epoch, batch by batch. Its end must be a clean one.
pub(crate) fn epoch(loader: &Loader, stream: &Stream) -> Vec<Vec<u64>> {
    loader.epoch(stream).unwrap().map(|batch| values(&batch.unwrap())).collect()
}

/// One epoch, sample by sample.
pub(crate) fn samples(loader: &Loader, stream: &Stream) -> Vec<u64> {
    epoch(loader, stream).concat()
}

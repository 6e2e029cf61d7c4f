//! Ends at which the driver is not there any more: a process that exits, and a forked child.

#![cfg(target_os = "linux")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "a test stops at the first surprise"
)]

extern crate warpfeed_cuda as warpfeed;

#[path = "support/apart.rs"]
mod apart;
#[path = "support/simulated.rs"]
mod simulated;
#[path = "../../support/mod.rs"]
mod support;

use std::io::Read;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use apart::{apart, hold, leaked};
use simulated::{fresh, sim};
use support::watch::{Number, Range, again, is_child, numbers, threads, values};
use support::{eventually, log_of_the_process};
use warpfeed::{Batch, Builder, Device, Epoch, ErrorKind, Event, Loader, Stream};

fn device() -> Device {
    Device::cuda(fresh(|_| {})).unwrap()
}

fn loader() -> Builder<Range, Number> {
    numbers(40).batch_size(4)
}

/// All that a process may have of a device when it ends, at work.
struct All {
    batches: Vec<Batch>,
    loader: Loader,
    stream: Stream,
    event: Event,
    _device: Device,
}

fn all(workers: usize) -> All {
    let device = device();
    let (stream, event) = (device.new_stream().unwrap(), device.new_event().unwrap());
    let loader = loader().workers(workers).build(&device).unwrap();
    let batches = loader.epoch(&stream).unwrap().take(2).map(Result::unwrap).collect::<Vec<_>>();
    assert_eq!(batches.iter().map(|b| values(b)[0]).collect::<Vec<_>>(), [0, 4]);
    stream.record(&event).unwrap();
    All { batches, loader, stream, event, _device: device }
}

/// Runs `code` in a process of its own, which must end well and say nothing that a user would see; what it says.
fn ends_quietly(test: &str, code: impl FnOnce()) -> Option<String> {
    if is_child(test) {
        log_of_the_process();
        code();
        return None;
    }
    let mut child = again(test).spawn().unwrap();
    let mut err = child.stderr.take().unwrap();
    let reader = std::thread::spawn(move || {
        let mut text = String::new();
        err.read_to_string(&mut text).unwrap();
        text
    });
    let deadline = Instant::now() + Duration::from_secs(60);
    while child.try_wait().unwrap().is_none() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(2));
    }
    let _ = child.kill();
    let status = child.wait().unwrap();
    let text = reader.join().unwrap();
    assert!(status.success(), "{status:?}\n{text}");
    for word in ["panicked", "LOG ERROR", "LOG WARN", "leaked", "overflow"] {
        assert!(!text.contains(word), "{text}");
    }
    Some(text)
}

/// The driver is gone, and everything is dropped after it.
fn drop_all_after_the_driver(workers: usize) {
    let All { mut batches, loader, stream, event, _device } = all(workers);
    let closed = all(workers);
    // Held up, so that nothing has passed when the driver goes.
    let (held, last) = (hold(&stream), batches.pop().unwrap());
    let mut epoch = loader.epoch(&stream).unwrap();
    sim().shut_down();
    drop(batches);
    let error = epoch.next().unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Closed, "{error}");
    assert!(error.to_string().contains("the driver is shutting down"), "{error}");
    drop(epoch);
    drop((loader, last, held));
    drop((stream, event, _device));
    // What a drop met is told, and there is nothing else to tell.
    drop(closed.batches);
    assert_eq!(closed.loader.close().unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(leaked(), (0, 0));
    // The threads end too, and the reaper's.
    eventually("the threads end", || threads().iter().all(|name| !name.starts_with("warpfeed-")));
}

#[test]
fn what_is_dropped_after_the_driver_is_no_error() {
    ends_quietly("what_is_dropped_after_the_driver_is_no_error", || drop_all_after_the_driver(2));
}

#[test]
fn without_workers_what_is_dropped_after_the_driver_is_no_error() {
    ends_quietly("without_workers_what_is_dropped_after_the_driver_is_no_error", || {
        drop_all_after_the_driver(0)
    });
}

static AT_EXIT: Mutex<Vec<All>> = Mutex::new(Vec::new());

/// Drops what a static holds; registered before the driver's own handler, it runs after it.
extern "C" fn drop_at_exit() {
    let all = std::mem::take(&mut *AT_EXIT.lock().unwrap());
    eprintln!("dropped {} at exit", all.len());
    drop(all);
    eprintln!("all dropped");
}

#[test]
fn statics_that_an_exit_handler_drops_are_no_error() {
    let text = ends_quietly("statics_that_an_exit_handler_drops_are_no_error", || {
        // SAFETY: the handler is a function of this program, which is there until the process ends.
        assert_eq!(unsafe { libc::atexit(drop_at_exit) }, 0);
        *AT_EXIT.lock().unwrap() = vec![all(0), all(2)];
    });
    if let Some(text) = text {
        assert!(text.contains("dropped 2 at exit") && text.contains("all dropped"), "{text}");
    }
}

#[test]
fn statics_that_are_never_dropped_are_no_error() {
    static NEVER: Mutex<Vec<All>> = Mutex::new(Vec::new());
    ends_quietly("statics_that_are_never_dropped_are_no_error", || {
        // One of them in the middle of its work: copies and calls go on while the process ends.
        *NEVER.lock().unwrap() = vec![all(0), all(2)];
        let busy = all(2);
        std::thread::spawn(move || {
            let All { batches, loader, stream, .. } = busy;
            drop(batches);
            loop {
                let Ok(epoch) = loader.epoch(&stream) else { break };
                epoch.for_each(drop);
            }
        });
        std::thread::sleep(Duration::from_millis(50));
    });
}

/// What the child does; its exit status says how far it came. Nothing of the driver's may be called.
fn child(all: All, mut epoch: Epoch<'_>, orphans: Vec<Batch>, device: &Device) -> i32 {
    let forked = |outcome: warpfeed::Result<()>| matches!(outcome, Err(e) if e.kind() == ErrorKind::Forked);
    let All { mut batches, loader, stream, event, _device } = all;
    let batch = batches.remove(0);
    let refused = [
        epoch.next().is_some_and(|next| forked(next.map(drop))),
        forked(loader.epoch(&stream).map(drop)),
        forked(batch.host::<u64>("x").map(drop)),
        forked(batch.synchronize()),
        forked(batch.record_stream(&stream)),
        forked(batch.enqueue(&stream, |_| ())),
        forked(batch.cuda_view::<u64>("x", &stream).map(drop)),
        forked(stream.record(&event)),
        forked(stream.wait(&event)),
        forked(stream.enqueue(|| ())),
        forked(stream.synchronize()),
        forked(stream.query().map(drop)),
        forked(stream.is_capturing().map(drop)),
        forked(event.query().map(drop)),
        forked(event.synchronize()),
        forked(event.synchronize_for(Duration::from_secs(1)).map(drop)),
        forked(event.elapsed_since(&event).map(drop)),
        forked(device.new_stream().map(drop)),
        forked(device.new_event().map(drop)),
        forked(self::loader().workers(0).build(device).map(drop)),
        forked(Device::cuda(0).map(drop)),
        Device::auto().is_ok_and(|device| device.is_cpu()),
    ];
    if let Some(at) = refused.iter().position(|refused| !refused) {
        return 10 + at as i32;
    }
    drop((epoch, batch, batches, loader, stream, event, _device, orphans));
    // No thread is started here: the standard library's own lock for that may be held by a thread of the parent's.
    if sim().calls_in_child() == 0 { 0 } else { 1 }
}

#[test]
fn row_28_a_forked_child_makes_no_call_of_the_driver() {
    apart("row_28_a_forked_child_makes_no_call_of_the_driver", || {
        for round in 0..20 {
            let workers = if round % 2 == 0 { 2 } else { 0 };
            let device = device();
            let mut all = all(workers);
            let running = self::all(workers);
            let mut epoch = running.loader.epoch(&running.stream).unwrap();
            // Batches that outlive their loaders, whose threads are just about to end: in the child they are the last that
            // know of them, and a lock may be held for ever.
            let (orphans, gone): (Vec<_>, Vec<_>) =
                (0..6).map(|_| self::all(workers)).map(|mut all| (all.batches.remove(0), all)).unzip();
            drop(gone);
            // SAFETY: the child calls only this crate and `_exit`; glibc makes its allocator usable after a fork.
            let pid = unsafe { libc::fork() };
            assert!(pid >= 0);
            if pid == 0 {
                let status = child(all, epoch, orphans, &device);
                // SAFETY: ends the child without running what belongs to the parent.
                unsafe { libc::_exit(status) };
            }
            let deadline = Instant::now() + Duration::from_secs(20);
            let mut status = 0;
            // SAFETY: `pid` is a child of ours that was not waited for yet; `status` is a valid place.
            while unsafe { libc::waitpid(pid, &mut status, libc::WNOHANG) } == 0 {
                if Instant::now() > deadline {
                    // SAFETY: as above.
                    unsafe { libc::kill(pid, libc::SIGKILL) };
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            assert!(libc::WIFEXITED(status), "round {round}: the child hung or crashed");
            assert_eq!(libc::WEXITSTATUS(status), 0, "round {round}");
            // The parent goes on.
            assert_eq!(values(&all.batches[1]), [4, 5, 6, 7]);
            all.batches.clear();
            assert!(orphans.iter().all(|batch| values(batch) == [0, 1, 2, 3]));
            drop(orphans);
            drop(running.batches);
            assert_eq!(values(&epoch.next().unwrap().unwrap()), [0, 1, 2, 3]);
            let report = all.loader.close().unwrap();
            assert_eq!((report.batches_alive, report.threads_left, report.leaked), (0, 0, 0));
        }
    });
}

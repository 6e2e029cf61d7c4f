//! A child forked from a process with a loader. Its own test binary with one test, since a fork copies only the
//! thread that calls it.
#![cfg(all(unix, not(miri)))]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test stops at the first surprise")]

mod support;

use std::time::{Duration, Instant};

use support::{Uniform, range, within};
use warpfeed::{Batch, Device, Epoch, ErrorKind, Loader, Stream};

fn forked<T>(outcome: warpfeed::Result<T>) -> bool {
    outcome.is_err_and(|e| e.kind() == ErrorKind::Forked)
}

/// What the child does; its exit status says how far it came.
fn child(loader: &Loader, mut epoch: Epoch<'_>, batch: Batch, stream: &Stream) -> i32 {
    let start = Instant::now();
    let Some(next) = epoch.next() else { return 1 };
    if !forked(next) {
        return 2;
    }
    if start.elapsed() > Duration::from_secs(1) {
        return 3;
    }
    let refused = [
        forked(loader.epoch(stream)),
        forked(batch.host::<u8>("x")),
        forked(batch.synchronize()),
        forked(batch.record_stream(stream)),
        forked(batch.enqueue(stream, |_| ())),
    ];
    if let Some(at) = refused.iter().position(|refused| !refused) {
        return 10 + at as i32;
    }
    // What belongs to the parent is dropped without an effect.
    drop(batch);
    drop(epoch);
    // A loader made here works.
    let device = Device::cpu();
    let Ok(stream) = device.new_stream() else { return 20 };
    let Ok(fresh) = Loader::builder(range(3)).decode(Uniform(8)).workers(1).build(&device) else { return 21 };
    let Ok(epoch) = fresh.epoch(&stream) else { return 22 };
    if epoch.filter(|b| b.is_ok()).count() == 3 { 0 } else { 23 }
}

#[test]
fn row_28_a_forked_child_is_told_so_at_once() {
    within(Duration::from_secs(100), || [0, 2].into_iter().for_each(fork_and_go_on));
}

fn fork_and_go_on(workers: usize) {
    let device = Device::cpu();
    let stream = device.new_stream().unwrap();
    let loader = Loader::builder(range(50)).decode(Uniform(64)).workers(workers).build(&device).unwrap();
    for round in 0..20 {
        let mut epoch = loader.epoch(&stream).unwrap();
        let batch = epoch.next().unwrap().unwrap();
        // SAFETY: the child calls only this crate and `_exit`; glibc makes its allocator usable after a fork.
        let pid = unsafe { libc::fork() };
        assert!(pid >= 0);
        if pid == 0 {
            let status = child(&loader, epoch, batch, &stream);
            drop((loader, stream, device));
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
        assert_eq!(libc::WEXITSTATUS(status), 0, "round {round}, {workers} workers");
        // The parent's epoch goes on.
        drop(batch);
        assert_eq!(epoch.map(|b| drop(b.unwrap())).count(), 49);
    }
    let report = loader.close().unwrap();
    assert_eq!((report.batches_alive, report.threads_left, report.leaked), (0, 0, 0));
}

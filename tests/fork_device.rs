//! A child forked from a process with a device: calls are refused, drops do nothing, nothing hangs.
//! Its own test binary with one test, since a fork copies only the thread that calls it.
#![cfg(all(unix, not(miri)))]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use warpfeed::{Device, ErrorKind};

/// What the child does; its exit status says how far it came.
fn child(device: Device, stream: warpfeed::Stream, event: warpfeed::Event) -> i32 {
    let forked = |outcome: warpfeed::Result<()>| matches!(outcome, Err(e) if e.kind() == ErrorKind::Forked);
    let refused = [
        forked(stream.record(&event)),
        forked(stream.wait(&event)),
        forked(stream.enqueue(|| ())),
        forked(stream.synchronize()),
        forked(stream.query().map(drop)),
        forked(event.query().map(drop)),
        forked(event.synchronize()),
        forked(event.synchronize_for(Duration::from_secs(1)).map(drop)),
        forked(event.elapsed_since(&event).map(drop)),
        forked(device.new_stream().map(drop)),
        forked(device.new_event().map(drop)),
    ];
    if let Some(at) = refused.iter().position(|refused| !refused) {
        return 10 + at as i32;
    }
    drop((stream, event, device));
    // A device made here works.
    let fresh = Device::cpu();
    let outcome = fresh.new_stream().and_then(|stream| {
        let event = fresh.new_event()?;
        stream.record(&event)?;
        event.synchronize_for(Duration::from_secs(10))
    });
    if matches!(outcome, Ok(true)) { 0 } else { 1 }
}

#[test]
fn a_forked_child_is_refused_and_its_drops_do_nothing() {
    let device = Device::cpu();
    let (stream, event) = (device.new_stream().unwrap(), device.new_event().unwrap());
    stream.record(&event).unwrap();
    // Keep the stream's lock busy, so that some forks happen while it is held. Through an event: the handle
    // is this thread's alone, so that the child drops the last one.
    let (busy, stop) = (event.clone(), Arc::new(AtomicBool::new(false)));
    let stopped = stop.clone();
    let noise = std::thread::spawn(move || {
        while !stopped.load(Ordering::Relaxed) {
            busy.query().unwrap();
        }
    });
    for round in 0..100 {
        // SAFETY: the child calls only this crate and `_exit`; glibc makes its allocator usable after a fork.
        let pid = unsafe { libc::fork() };
        assert!(pid >= 0);
        if pid == 0 {
            let status = child(device, stream, event);
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
    }
    stop.store(true, Ordering::Relaxed);
    noise.join().unwrap();
    stream.record(&event).unwrap();
    assert!(event.synchronize_for(Duration::from_secs(30)).unwrap());
}

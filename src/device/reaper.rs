//! Frees memory whose owner is gone while a device may still touch it.
//!
//! Freed at once, the memory could be handed out again under a copy that is still running. So an owner that
//! ends gives such memory here:
//! ```text
//! owner ends ──► reap ── passed ──────────────────────────────► freed by the caller
//!                  └──── not yet ──► thread polls ── passed ──► freed
//!                  └──── can't be proven ─────────────────────► leaked, counted, one line in the log
//! ```
//! There is one reaper a process. Its thread starts when there is something to watch and ends with it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::time::Duration;

use crate::error::{Error, ErrorKind, Result};
use crate::sync::{Process, lock};

const SHORTEST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(20);

/// Memory that may be freed once the device is through with it. Dropping it frees it.
pub(crate) trait Reapable: Send {
    /// Whether all that may touch the memory has passed. Must not block; an error says that it can't be
    /// proven any more.
    fn passed(&self) -> Result<bool>;

    /// How many bytes wait.
    fn bytes(&self) -> usize;
}

/// Frees `item` as soon as it has passed: here and now, or on the reaper's thread. Never blocks.
pub(crate) fn reap(item: Box<dyn Reapable>) {
    current().reap(item, spawn);
}

/// Leaks `memory`, which `error` keeps from being freed; counted as what [`reap`] has to leak.
pub(crate) fn leak<T: 'static>(memory: T, bytes: usize, error: &Error) {
    Box::leak(Box::new(memory));
    current().note(bytes, error);
}

/// Items and bytes that wait.
pub(crate) fn pending() -> (usize, usize) {
    current().pending()
}

/// Items and bytes that were leaked because it could not be proven that the device is through with them, or
/// because there was no thread to watch them.
pub(crate) fn leaked() -> (usize, usize) {
    current().leaked()
}

/// Whether the caller is the reaper's thread, which alone may block.
#[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "the CPU device frees without waiting"))]
pub(crate) fn is_here() -> bool {
    HERE.get()
}

thread_local! { static HERE: std::cell::Cell<bool> = const { std::cell::Cell::new(false) } }

/// This process's reaper. A forked child gets its own: the parent's lock may be held by a thread that is not
/// there, and what waits in it is the parent's.
fn current() -> &'static Reaper {
    static CURRENT: AtomicPtr<Reaper> = AtomicPtr::new(std::ptr::null_mut());
    let known = CURRENT.load(Ordering::Acquire);
    // SAFETY: the pointer is null or comes from `Box::leak` below; release and acquire publish what it
    // points to, and nothing ever frees it.
    if let Some(reaper) = unsafe { known.as_ref() }
        && !reaper.process.is_forked()
    {
        return reaper;
    }
    let fresh = Box::into_raw(Box::new(Reaper::new()));
    match CURRENT.compare_exchange(known, fresh, Ordering::AcqRel, Ordering::Acquire) {
        // SAFETY: as above; it is published and never freed from here on.
        Ok(_) => unsafe { &*fresh },
        Err(other) => {
            // SAFETY: `fresh` was made above and not published; `other` was, by a thread of this process,
            // and is never freed.
            unsafe {
                drop(Box::from_raw(fresh));
                &*other
            }
        }
    }
}

fn spawn(reaper: &'static Reaper) -> std::io::Result<()> {
    std::thread::Builder::new().name("warpfeed-reaper".to_string()).spawn(|| reaper.run()).map(drop)
}

#[derive(Default)]
struct Total {
    items: AtomicUsize,
    bytes: AtomicUsize,
}

impl Total {
    fn add(&self, bytes: usize) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.items.fetch_add(1, Ordering::Release);
    }

    fn sub(&self, bytes: usize) {
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.items.fetch_sub(1, Ordering::Release);
    }

    fn get(&self) -> (usize, usize) {
        let items = self.items.load(Ordering::Acquire);
        (items, self.bytes.load(Ordering::Relaxed))
    }
}

struct Reaper {
    process: Process,
    inbox: Mutex<Inbox>,
    pending: Total,
    leaked: Total,
}

/// What the thread has not taken over yet, and whether there is a thread.
#[derive(Default)]
struct Inbox {
    items: Vec<Entry>,
    running: bool,
}

struct Entry {
    item: Box<dyn Reapable>,
    /// Asked once, so that what is added to a total is what comes off.
    bytes: usize,
}

impl Reaper {
    fn new() -> Self {
        Self {
            process: Process::current(),
            inbox: Mutex::default(),
            pending: Total::default(),
            leaked: Total::default(),
        }
    }

    fn pending(&self) -> (usize, usize) {
        self.pending.get()
    }

    fn leaked(&self) -> (usize, usize) {
        self.leaked.get()
    }

    fn reap(
        &'static self,
        item: Box<dyn Reapable>,
        spawn: impl FnOnce(&'static Self) -> std::io::Result<()>,
    ) {
        let entry = Entry { bytes: item.bytes(), item };
        match passed(&entry) {
            Ok(true) => return drop(entry),
            Ok(false) => {}
            Err(error) => return self.leak(entry, &error),
        }
        self.pending.add(entry.bytes);
        let start = {
            let mut inbox = lock(&self.inbox);
            inbox.items.push(entry);
            !std::mem::replace(&mut inbox.running, true)
        };
        if start && let Err(error) = spawn(self) {
            let items = {
                let mut inbox = lock(&self.inbox);
                inbox.running = false;
                std::mem::take(&mut inbox.items)
            };
            let error = Error::new(ErrorKind::Io, format!("no thread for the reaper: {error}"));
            for entry in items {
                let bytes = entry.bytes;
                self.leak(entry, &error);
                self.pending.sub(bytes);
            }
        }
    }

    /// What the thread runs: watches all there is, under no lock, until there is nothing.
    fn run(&self) {
        HERE.set(true);
        let mut watched: Vec<Entry> = Vec::new();
        let mut pause = SHORTEST_PAUSE;
        loop {
            {
                let mut inbox = lock(&self.inbox);
                watched.append(&mut inbox.items);
                if watched.is_empty() {
                    inbox.running = false;
                    return;
                }
            }
            let before = watched.len();
            for entry in std::mem::take(&mut watched) {
                let bytes = entry.bytes;
                match passed(&entry) {
                    Ok(false) => {
                        watched.push(entry);
                        continue;
                    }
                    Ok(true) => free(entry),
                    Err(error) => self.leak(entry, &error),
                }
                self.pending.sub(bytes);
            }
            if !watched.is_empty() {
                pause = if watched.len() < before { SHORTEST_PAUSE } else { (pause * 2).min(LONGEST_PAUSE) };
                std::thread::sleep(pause);
            }
        }
    }

    fn leak(&self, entry: Entry, error: &Error) {
        Box::leak(entry.item);
        self.note(entry.bytes, error);
    }

    /// Counts what is leaked, and says so.
    fn note(&self, bytes: usize, error: &Error) {
        match error.kind() {
            // A forked child owns nothing of it, and is silent: a lock of the log may be held by a thread that is not
            // there.
            ErrorKind::Forked => {}
            // A driver that is shutting down has taken everything back.
            ErrorKind::Closed => tracing::debug!("{bytes} bytes went with the driver: {error}"),
            _ => {
                self.leaked.add(bytes);
                tracing::warn!("{bytes} bytes are leaked, as the device may still touch them: {error}");
            }
        }
    }
}

/// Asks the item; one that panics can't be proven.
fn passed(entry: &Entry) -> Result<bool> {
    catch_unwind(AssertUnwindSafe(|| entry.item.passed()))
        .unwrap_or_else(|payload| Err(Error::from_panic(payload)))
}

/// Drops the item; a panic of its drop must not end the thread that watches the others.
fn free(entry: Entry) {
    if let Err(payload) = catch_unwind(AssertUnwindSafe(|| drop(entry))) {
        tracing::warn!("while memory was freed: {}", Error::from_panic(payload));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;
    use std::time::Instant;

    /// What a test decides about an item, and sees of it.
    #[derive(Default)]
    struct Gate {
        open: AtomicBool,
        broken: AtomicBool,
        asked: AtomicUsize,
        freed_by: Mutex<Option<std::thread::ThreadId>>,
        freed_closed: AtomicBool,
    }

    struct Item(Arc<Gate>, usize);

    impl Reapable for Item {
        fn passed(&self) -> Result<bool> {
            self.0.asked.fetch_add(1, Ordering::SeqCst);
            if self.0.broken.load(Ordering::SeqCst) {
                return Err(Error::new(ErrorKind::Device, "lost"));
            }
            Ok(self.0.open.load(Ordering::SeqCst))
        }

        fn bytes(&self) -> usize {
            self.1
        }
    }

    impl Drop for Item {
        fn drop(&mut self) {
            self.0.freed_closed.store(!self.0.open.load(Ordering::SeqCst), Ordering::SeqCst);
            *lock(&self.0.freed_by) = Some(std::thread::current().id());
        }
    }

    /// A reaper of the test's own; kept reachable, so that a leak checker sees only what the reaper leaks.
    fn reaper() -> &'static Reaper {
        static ALL: Mutex<Vec<&'static Reaper>> = Mutex::new(Vec::new());
        let fresh = Box::leak(Box::new(Reaper::new()));
        lock(&ALL).push(fresh);
        fresh
    }

    fn soon(what: &str, mut met: impl FnMut() -> bool) {
        let deadline = Instant::now() + Duration::from_secs(20);
        while !met() {
            assert!(Instant::now() < deadline, "timed out: {what}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn what_has_passed_is_freed_by_the_caller_without_a_thread() {
        let (reaper, gate) = (reaper(), Arc::new(Gate::default()));
        gate.open.store(true, Ordering::SeqCst);
        reaper.reap(Box::new(Item(gate.clone(), 7)), |_| panic!("a thread for nothing"));
        assert_eq!(*lock(&gate.freed_by), Some(std::thread::current().id()));
        assert_eq!((reaper.pending(), reaper.leaked()), ((0, 0), (0, 0)));
    }

    #[test]
    fn what_waits_is_freed_behind_its_gate_and_the_thread_ends_and_starts_again() {
        let reaper = reaper();
        for _ in 0..2 {
            let gates: Vec<_> = (0..3).map(|_| Arc::new(Gate::default())).collect();
            let starts = AtomicUsize::new(0);
            for (gate, bytes) in gates.iter().zip([1, 20, 300]) {
                reaper.reap(Box::new(Item(gate.clone(), bytes)), |r| {
                    starts.fetch_add(1, Ordering::SeqCst);
                    spawn(r)
                });
            }
            assert_eq!((starts.load(Ordering::SeqCst), reaper.pending()), (1, (3, 321)));
            soon("polled", || gates.iter().all(|g| g.asked.load(Ordering::SeqCst) > 3));
            assert!(gates.iter().all(|g| lock(&g.freed_by).is_none()));
            gates[1].open.store(true, Ordering::SeqCst);
            soon("the second is freed", || lock(&gates[1].freed_by).is_some());
            soon("it is off the count", || reaper.pending() == (2, 301));
            gates[0].open.store(true, Ordering::SeqCst);
            gates[2].open.store(true, Ordering::SeqCst);
            soon("all are freed", || reaper.pending() == (0, 0));
            for gate in &gates {
                assert!(!gate.freed_closed.load(Ordering::SeqCst));
                assert_ne!(*lock(&gate.freed_by), Some(std::thread::current().id()));
            }
            soon("the thread ends", || !lock(&reaper.inbox).running);
        }
        assert_eq!(reaper.leaked(), (0, 0));
    }

    #[test]
    #[cfg_attr(miri, ignore = "leaks on purpose")]
    fn what_can_not_be_proven_is_leaked_and_counted() {
        let (reaper, at_once, later) = (reaper(), Arc::new(Gate::default()), Arc::new(Gate::default()));
        at_once.broken.store(true, Ordering::SeqCst);
        reaper.reap(Box::new(Item(at_once.clone(), 5)), |_| panic!("a thread for nothing"));
        assert_eq!((reaper.pending(), reaper.leaked()), ((0, 0), (1, 5)));
        reaper.reap(Box::new(Item(later.clone(), 6)), spawn);
        assert_eq!(reaper.pending(), (1, 6));
        later.broken.store(true, Ordering::SeqCst);
        soon("given up", || reaper.pending() == (0, 0));
        assert_eq!(reaper.leaked(), (2, 11));
        soon("the thread ends", || !lock(&reaper.inbox).running);
        assert!(lock(&at_once.freed_by).is_none() && lock(&later.freed_by).is_none());
    }

    #[test]
    #[cfg_attr(miri, ignore = "leaks on purpose")]
    fn without_a_thread_what_waits_is_leaked_and_the_next_one_tries_again() {
        let (reaper, gate) = (reaper(), Arc::new(Gate::default()));
        reaper.reap(Box::new(Item(gate.clone(), 9)), |_| Err(std::io::Error::other("none left")));
        assert_eq!((reaper.pending(), reaper.leaked()), ((0, 0), (1, 9)));
        let next = Arc::new(Gate::default());
        reaper.reap(Box::new(Item(next.clone(), 1)), spawn);
        next.open.store(true, Ordering::SeqCst);
        soon("freed", || lock(&next.freed_by).is_some());
        assert!(lock(&gate.freed_by).is_none());
    }

    #[test]
    fn the_process_has_one_reaper() {
        let gate = Arc::new(Gate::default());
        reap(Box::new(Item(gate.clone(), 1 << 20)));
        assert!(pending().1 >= 1 << 20);
        gate.open.store(true, Ordering::SeqCst);
        soon("freed", || lock(&gate.freed_by).is_some());
        assert_eq!(leaked(), (0, 0));
    }
}

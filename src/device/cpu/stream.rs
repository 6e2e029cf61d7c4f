//! A stream of the CPU device: a thread that works off a queue in order.
//!
//! Each operation has a place in its stream's timeline: the number of operations enqueued up to and with it.
//! To record an event is to note the (timeline, place) of the record; a wait takes that note when it is
//! *enqueued*, so that it means the same however often the event is recorded again. A timeline's count only
//! grows and a wait refers to what is already enqueued, so waits can't form a circle.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use super::event::Recorded;
use super::{Direction, Shared};
use crate::device::counters::{add, sub};
use crate::device::next_stream_id;
use crate::error::{Error, ErrorKind, Result};
use crate::sync::{lock, wait};

/// Operations that fit without an allocation: more than a loader ever has under way.
const QUEUE: usize = 256;
/// Up to this size a copy that takes no modelled time is made by the caller, where nothing lies before it on the
/// stream: waking the stream's thread would take longer. Asynchronous means "may be late", not "is".
const AT_ONCE: usize = 64 << 10;
/// How fast a copy usually runs, for statistics where it is not worth measuring.
const USUAL_BYTES_PER_SEC: f64 = 8e9;
/// How fast a copy surely runs, to tell when one must begin to end in time.
const SURE_BYTES_PER_SEC: f64 = 2e9;

/// One operation of a stream.
enum Op {
    Copy(Copy),
    Work(Box<dyn FnOnce() -> Result<()> + Send>),
    Record { event: Arc<Recorded>, generation: u64 },
    Wait { timeline: Arc<Timeline>, place: u64 },
}

/// A copy that has been enqueued.
struct Copy {
    dst: *mut u8,
    src: *const u8,
    bytes: usize,
    direction: Direction,
    number: u64,
    enqueued: Instant,
}

// SAFETY: the two pointers are read and written by the stream's thread only while the caller of the unsafe
// `Stream::copy` keeps both sides alive and untouched; they are tied to no thread.
unsafe impl Send for Copy {}

/// What a stream's handles, its thread and the events recorded on it share.
pub(super) struct Timeline {
    id: u64,
    state: Mutex<State>,
    /// Signalled to the stream's thread: there is an operation, or the last handle is gone.
    work: Condvar,
    /// Signalled to those who wait for a place.
    progress: Condvar,
    thread: OnceLock<ThreadId>,
}

struct State {
    queue: VecDeque<Op>,
    /// Operations enqueued, and operations that are over.
    enqueued: u64,
    done: u64,
    /// Threads that wait for progress, and whether the stream's thread waits for work: no signal unless.
    waiting: usize,
    idle: bool,
    closed: bool,
    /// The first panic that no call has returned yet.
    failure: Option<Error>,
}

impl Timeline {
    /// Puts `op` at the end and returns its place.
    fn push(&self, op: Op) -> u64 {
        let mut state = lock(&self.state);
        state.queue.push_back(op);
        state.enqueued += 1;
        let (place, idle) = (state.enqueued, state.idle);
        drop(state);
        if idle {
            self.work.notify_one();
        }
        place
    }

    /// Counts an operation that is over as it is enqueued; `None` where something lies before it. `run` does it, under
    /// the lock, so that the stream's order holds.
    fn at_once(&self, run: impl FnOnce()) -> Option<u64> {
        let mut state = lock(&self.state);
        if state.done < state.enqueued {
            return None;
        }
        run();
        state.enqueued += 1;
        state.done += 1;
        Some(state.done)
    }

    pub(super) fn has_passed(&self, place: u64) -> bool {
        lock(&self.state).done >= place
    }

    /// Blocks the calling thread until `place` has passed, or the deadline has: `false`.
    fn block(&self, place: u64, deadline: Option<Instant>) -> bool {
        let mut state = lock(&self.state);
        state.waiting += 1;
        while state.done < place {
            state = match deadline {
                None => wait(&self.progress, state),
                Some(deadline) => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        break;
                    }
                    self.progress.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
        state.waiting -= 1;
        state.done >= place
    }

    /// As [`Timeline::block`], for user code, which may be running on this very stream.
    pub(super) fn block_host(&self, place: u64, deadline: Option<Instant>) -> Result<bool> {
        if self.thread.get() == Some(&std::thread::current().id()) && !self.has_passed(place) {
            let text = "work on a stream can't wait for what lies behind it on the same stream";
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        }
        Ok(self.block(place, deadline))
    }
}

/// The handle of a stream. When the last one goes the thread works off its queue and ends; nobody waits.
#[derive(Clone)]
pub(crate) struct Stream(Arc<Handle>);

struct Handle {
    timeline: Arc<Timeline>,
    device: Arc<Shared>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        if self.device.process.is_forked() {
            return;
        }
        lock(&self.timeline.state).closed = true;
        self.timeline.work.notify_one();
    }
}

impl Stream {
    pub(super) fn new(device: &Arc<Shared>) -> Result<Self> {
        device.check()?;
        let timeline = Arc::new(Timeline {
            id: next_stream_id(),
            state: Mutex::new(State {
                queue: VecDeque::with_capacity(QUEUE),
                enqueued: 0,
                done: 0,
                waiting: 0,
                idle: false,
                closed: false,
                failure: None,
            }),
            work: Condvar::new(),
            progress: Condvar::new(),
            thread: OnceLock::new(),
        });
        let runner = Runner { timeline: timeline.clone(), device: device.clone(), clock: Instant::now() };
        add(&device.tally.streams, 1);
        add(&device.tally.live_streams, 1);
        std::thread::Builder::new()
            .name(format!("warpfeed-stream-{}", timeline.id))
            .spawn(move || runner.run())
            .map_err(|e| {
                sub(&device.tally.live_streams, 1);
                Error::new(ErrorKind::Io, format!("no thread for a stream: {e}")).caused_by(e)
            })?;
        Ok(Self(Arc::new(Handle { timeline, device: device.clone() })))
    }

    pub(crate) fn id(&self) -> u64 {
        self.0.timeline.id
    }

    pub(crate) fn is_running_here(&self) -> bool {
        self.0.timeline.thread.get() == Some(&std::thread::current().id())
    }

    pub(crate) fn device(&self) -> super::Device {
        super::Device(self.0.device.clone())
    }

    /// Hands out a panic that no call has returned yet.
    pub(crate) fn surface(&self) -> Result<()> {
        self.0.device.check()?;
        match lock(&self.0.timeline.state).failure.take() {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    pub(crate) fn record(&self, event: &super::Event) -> Result<()> {
        self.0.device.check()?;
        if !Arc::ptr_eq(&self.0.device, event.device()) {
            let text = "an event is recorded on streams of its own device only";
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        }
        let timeline = &self.0.timeline;
        event.record(timeline, |event, generation| match timeline.at_once(|| ()) {
            Some(place) => (place, true),
            None => (timeline.push(Op::Record { event: event.clone(), generation }), false),
        });
        add(&self.0.device.tally.records, 1);
        Ok(())
    }

    pub(crate) fn wait(&self, event: &super::Event) -> Result<()> {
        self.0.device.check()?;
        add(&self.0.device.tally.waits, 1);
        if let Some((timeline, place)) = event.latest() {
            // What lies earlier on the same stream has passed by then anyway.
            if !Arc::ptr_eq(&timeline, &self.0.timeline) && !timeline.has_passed(place) {
                self.0.timeline.push(Op::Wait { timeline, place });
            }
        }
        Ok(())
    }

    pub(crate) fn enqueue(&self, work: Box<dyn FnOnce() -> Result<()> + Send>) -> Result<()> {
        self.0.device.check()?;
        self.0.timeline.push(Op::Work(work));
        Ok(())
    }

    pub(crate) fn synchronize(&self) -> Result<()> {
        self.0.device.check()?;
        add(&self.0.device.tally.host_waits, 1);
        let place = lock(&self.0.timeline.state).enqueued;
        self.0.timeline.block_host(place, None).map(drop)
    }

    pub(crate) fn query(&self) -> Result<bool> {
        self.0.device.check()?;
        add(&self.0.device.tally.queries, 1);
        let state = lock(&self.0.timeline.state);
        Ok(state.done == state.enqueued)
    }

    /// Enqueues a host-to-device copy of `bytes` bytes; `locked` says what kind of memory `src` is.
    ///
    /// # Safety
    /// `src` is readable and `dst` writable for `bytes` bytes, without overlap, and until an event recorded
    /// behind this copy has passed, both stay alive, nobody writes `src` and nobody touches `dst`.
    pub(crate) unsafe fn copy_to_device(
        &self,
        dst: *mut u8,
        src: *const u8,
        bytes: usize,
        locked: bool,
    ) -> Result<()> {
        self.0.device.check()?;
        let tally = &self.0.device.tally;
        add(&tally.h2d_copies, 1);
        add(&tally.h2d_bytes, bytes);
        add(&tally.pageable_copies, usize::from(!locked));
        self.copy(dst, src, bytes, Direction::ToDevice);
        Ok(())
    }

    /// Enqueues a device-to-host copy of `bytes` bytes.
    ///
    /// # Safety
    /// As [`Stream::copy_to_device`].
    pub(crate) unsafe fn copy_to_host(&self, dst: *mut u8, src: *const u8, bytes: usize) -> Result<()> {
        self.0.device.check()?;
        add(&self.0.device.tally.d2h_copies, 1);
        add(&self.0.device.tally.d2h_bytes, bytes);
        self.copy(dst, src, bytes, Direction::ToHost);
        Ok(())
    }

    fn copy(&self, dst: *mut u8, src: *const u8, bytes: usize, direction: Direction) {
        let device = &self.0.device;
        let at_once = || {
            // SAFETY: both sides are alive and untouched until an event behind this has passed, which is later than
            // this call; it is the stream's turn (`at_once`); the fence follows.
            unsafe { crate::copy::copy(dst, src, bytes) };
            crate::copy::fence();
            // Reading the clock would take longer than a copy this small.
            let about = bytes as f64 / USUAL_BYTES_PER_SEC * 1e9;
            device.tally.copy_busy_ns.fetch_add(about as u64, Relaxed);
        };
        if bytes <= AT_ONCE && device.options.is_unlimited() && self.0.timeline.at_once(at_once).is_some() {
            return;
        }
        // Numbered here, so that the delays depend on the order of the calls and not on the threads.
        let number = self.0.device.copies.fetch_add(1, Relaxed);
        let enqueued = Instant::now();
        self.0.timeline.push(Op::Copy(Copy { dst, src, bytes, direction, number, enqueued }));
    }
}

/// What a stream's thread runs.
struct Runner {
    timeline: Arc<Timeline>,
    device: Arc<Shared>,
    /// When the stream was through with its last operation, in modelled time. A copy that was enqueued by
    /// then starts there, however late the thread woke up, so that errors of sleeping don't add up.
    clock: Instant,
}

impl Runner {
    fn run(mut self) {
        let _ = self.timeline.thread.set(std::thread::current().id());
        sharpen_sleep();
        let timeline = self.timeline.clone();
        let mut state = lock(&timeline.state);
        loop {
            if let Some(op) = state.queue.pop_front() {
                drop(state);
                let failure = self.step(op);
                state = lock(&timeline.state);
                state.done += 1;
                if state.failure.is_none() {
                    state.failure = failure;
                }
                if state.waiting > 0 {
                    timeline.progress.notify_all();
                }
            } else if state.closed {
                break;
            } else {
                state.idle = true;
                state = wait(&timeline.work, state);
                state.idle = false;
            }
        }
        let lost = state.failure.take();
        drop(state);
        if let Some(error) = lost {
            tracing::warn!("stream {} ended with an error that no call returned: {error}", timeline.id);
        }
        sub(&self.device.tally.live_streams, 1);
    }

    /// Runs one operation. A panic of user code is returned; what lies behind it goes on.
    fn step(&mut self, op: Op) -> Option<Error> {
        match op {
            Op::Copy(copy) => self.copy(&copy),
            Op::Work(work) => {
                let outcome = catch_unwind(AssertUnwindSafe(work));
                self.clock = Instant::now();
                let payload = match outcome {
                    Ok(result) => return result.err(),
                    Err(payload) => payload,
                };
                return Some(Error::from_panic(payload));
            }
            Op::Record { event, generation } => event.pass(generation),
            Op::Wait { timeline, place } => {
                if !timeline.has_passed(place) {
                    timeline.block(place, None);
                    self.clock = Instant::now();
                }
            }
        }
        None
    }

    fn copy(&mut self, copy: &Copy) {
        let options = &self.device.options;
        let time = options.time_of(copy.bytes);
        let ready = self.clock.max(copy.enqueued) + options.delay_of(copy.number);
        sleep_until(ready);
        let (start, end) = self.device.take_link(copy.direction, ready, time);
        // The bytes move as late as the deadline allows: who reads or writes too early meets wrong ones.
        let need = Duration::from_secs_f64(copy.bytes as f64 / SURE_BYTES_PER_SEC).min(time);
        sleep_until((end - need).max(start));
        let began = Instant::now();
        // SAFETY: whoever enqueued this copy keeps both sides alive and untouched until an event behind it
        // has passed, which happens after this operation; the fence follows at once.
        unsafe { crate::copy::copy(copy.dst, copy.src, copy.bytes) };
        crate::copy::fence();
        let busy = began.elapsed().max(time);
        self.clock = start + busy;
        sleep_until(end);
        self.device.tally.copy_busy_ns.fetch_add(nanos(busy), Relaxed);
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn sleep_until(deadline: Instant) {
    let left = deadline.saturating_duration_since(Instant::now());
    if !left.is_zero() {
        std::thread::sleep(left);
    }
}

/// Makes this thread's sleeps end within some microseconds of their deadline, where 50 are usual.
fn sharpen_sleep() {
    #[cfg(all(target_os = "linux", not(miri)))]
    // SAFETY: PR_SET_TIMERSLACK takes one number of nanoseconds and concerns the calling thread only.
    unsafe {
        libc::prctl(libc::PR_SET_TIMERSLACK, 1_000 as libc::c_ulong);
    }
}

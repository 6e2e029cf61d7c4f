//! The CPU device: threads as streams, memory copies that take a link's time. It defines what the
//! stream-ordered semantics mean, and every test runs on it.

mod event;
mod memory;
mod stream;

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::counters::Tally;
use crate::error::{Error, ErrorKind, Result};
use crate::random::{key, mix};
use crate::sync::{Process, lock};
pub(crate) use event::Event;
pub(crate) use memory::{DeviceMemory, HostMemory};
pub(crate) use stream::Stream;

/// How the CPU device behaves: plain data, set before [`Device::cpu_with`](super::Device::cpu_with).
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct CpuOptions {
    /// Bandwidth of the modelled link in GB/s (10⁹ bytes a second), for each direction; streams share it.
    /// `None`, or what is not a positive number: as fast as memory is.
    pub link_gbps: Option<f64>,
    /// A seed and the longest delay: each copy starts late by a random time below it, which depends on the
    /// seed and the copy's number alone.
    pub copy_delay: Option<(u64, Duration)>,
    /// What each copy takes on the link besides its bytes.
    pub copy_time: Option<Duration>,
    /// Whether host buffers are page-locked (on by default).
    pub lock: bool,
    /// An injected fault: page-locking is refused once it would hold more than this many bytes. `Some(0)`
    /// refuses all.
    pub pin_limit: Option<usize>,
    /// Device memory in bytes; `None` is no limit.
    pub memory: Option<usize>,
}

impl Default for CpuOptions {
    fn default() -> Self {
        Self { link_gbps: None, copy_delay: None, copy_time: None, lock: true, pin_limit: None, memory: None }
    }
}

impl CpuOptions {
    /// Sets [`CpuOptions::link_gbps`].
    #[must_use]
    pub fn link_gbps(mut self, gbps: f64) -> Self {
        self.link_gbps = Some(gbps);
        self
    }

    /// Sets [`CpuOptions::copy_delay`].
    #[must_use]
    pub fn copy_delay(mut self, seed: u64, max: Duration) -> Self {
        self.copy_delay = Some((seed, max));
        self
    }

    /// Sets [`CpuOptions::copy_time`].
    #[must_use]
    pub fn copy_time(mut self, time: Duration) -> Self {
        self.copy_time = Some(time);
        self
    }

    /// Sets [`CpuOptions::lock`].
    #[must_use]
    pub fn lock(mut self, lock: bool) -> Self {
        self.lock = lock;
        self
    }

    /// Sets [`CpuOptions::pin_limit`].
    #[must_use]
    pub fn pin_limit(mut self, bytes: usize) -> Self {
        self.pin_limit = Some(bytes);
        self
    }

    /// Sets [`CpuOptions::memory`].
    #[must_use]
    pub fn memory(mut self, bytes: usize) -> Self {
        self.memory = Some(bytes);
        self
    }

    /// The time that a copy of `bytes` keeps the link busy.
    pub(in crate::device) fn time_of(&self, bytes: usize) -> Duration {
        let wire = match self.link_gbps {
            Some(gbps) if gbps > 0.0 => {
                Duration::try_from_secs_f64(bytes as f64 / (gbps * 1e9)).unwrap_or(LONGEST)
            }
            _ => Duration::ZERO,
        };
        wire.saturating_add(self.copy_time.unwrap_or_default()).min(LONGEST)
    }

    /// Whether a copy takes no longer than its bytes take to move.
    pub(in crate::device) fn is_unlimited(&self) -> bool {
        self.link_gbps.is_none() && self.copy_time.is_none() && self.copy_delay.is_none()
    }

    /// How late copy `number` starts.
    pub(in crate::device) fn delay_of(&self, number: u64) -> Duration {
        let Some((seed, max)) = self.copy_delay else { return Duration::ZERO };
        let share = (mix(key(&[seed, number])) >> 11) as f64 / (1u64 << 53) as f64;
        max.min(LONGEST).mul_f64(share)
    }
}

/// No modelled time is longer, so that adding to an instant can't overflow.
const LONGEST: Duration = Duration::from_secs(24 * 3600);

/// Which way a copy goes.
#[derive(Debug, Clone, Copy)]
enum Direction {
    ToDevice,
    ToHost,
}

/// What the handles of one device share.
#[derive(Debug)]
pub(crate) struct Shared {
    options: CpuOptions,
    tally: Tally,
    locking: memory::Locking,
    /// When each direction of the link is free again.
    links: [Mutex<Option<Instant>>; 2],
    /// Copies enqueued: the next one's number.
    copies: AtomicU64,
    process: Process,
}

impl Shared {
    /// Refuses to go on in a forked child: the stream threads are not there, and a lock may be held forever.
    fn check(&self) -> Result<()> {
        if self.process.is_forked() {
            let text = "this process was forked from the one that made the device: make a device here, or \
                        spawn instead of forking";
            return Err(Error::new(ErrorKind::Forked, text));
        }
        Ok(())
    }

    /// Takes the link in `direction` for `time`, from `ready` on at the earliest; returns from when to when.
    fn take_link(&self, direction: Direction, ready: Instant, time: Duration) -> (Instant, Instant) {
        let mut free_at = lock(&self.links[direction as usize]);
        let start = free_at.map_or(ready, |free| free.max(ready));
        let end = start + time;
        *free_at = Some(end);
        (start, end)
    }
}

/// A handle of a CPU device.
#[derive(Debug, Clone)]
pub(crate) struct Device(Arc<Shared>);

impl Device {
    pub(crate) fn new(options: CpuOptions) -> Self {
        Self(Arc::new(Shared {
            options,
            tally: Tally::default(),
            locking: memory::Locking::default(),
            links: Default::default(),
            copies: AtomicU64::new(0),
            process: Process::current(),
        }))
    }

    pub(crate) fn new_stream(&self) -> Result<Stream> {
        Stream::new(&self.0)
    }

    pub(crate) fn new_event(&self) -> Result<Event> {
        Event::new(&self.0, true)
    }

    pub(crate) fn new_untimed_event(&self) -> Result<Event> {
        Event::new(&self.0, false)
    }

    pub(crate) fn tally(&self) -> &Tally {
        &self.0.tally
    }

    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    pub(crate) fn host_buffer(&self, bytes: usize) -> Result<HostMemory> {
        self.0.check()?;
        HostMemory::new(&self.0, bytes)
    }

    pub(crate) fn registered(&self, map: memmap2::MmapMut, bytes: usize) -> Result<HostMemory> {
        self.0.check()?;
        HostMemory::over(&self.0, map, bytes)
    }

    pub(crate) fn device_buffer(&self, bytes: usize) -> Result<DeviceMemory> {
        self.0.check()?;
        DeviceMemory::new(&self.0, bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "real time")]
    fn errors_of_sleeping_do_not_add_up() {
        // 500 copies of 100 us, all enqueued before the first starts: the link must be free 50 ms after that,
        // however late each sleep ends. One late moment between the two clock readings is forgiven.
        let (count, time) = (500, Duration::from_micros(100));
        let mut drifts = Vec::new();
        for _ in 0..5 {
            let device = Device::new(CpuOptions::default().copy_time(time).lock(false));
            let stream = device.new_stream().unwrap();
            let (release, released) = std::sync::mpsc::channel::<()>();
            let (started, start) = std::sync::mpsc::channel();
            let work = move || {
                released.recv().ok();
                started.send(Instant::now()).unwrap();
                Ok(())
            };
            stream.enqueue(Box::new(work)).unwrap();
            let (src, dst) = (device.host_buffer(64).unwrap(), device.device_buffer(64).unwrap());
            for _ in 0..count {
                // SAFETY: both buffers live until the stream is synchronised.
                unsafe { stream.copy_to_device(dst.as_ptr(), src.as_ptr(), 64, true) }.unwrap();
            }
            drop(release);
            stream.synchronize().unwrap();
            let free_at = lock(&device.0.links[Direction::ToDevice as usize]).unwrap();
            assert!(Instant::now() >= free_at, "it ended early");
            let took = free_at - start.recv().unwrap();
            assert!(took >= time * count);
            drifts.push(took - time * count);
            if drifts[drifts.len() - 1] < Duration::from_millis(1) {
                return;
            }
        }
        panic!("{drifts:?}");
    }
}

//! What this process has used.

#![cfg_attr(not(feature = "image"), allow(dead_code, reason = "told of images alone"))]

use std::time::{Duration, Instant};

/// The processors' time, and the clock's at the same moment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Usage {
    pub(crate) at: Instant,
    /// User and system time of all threads of the process.
    pub(crate) cpu: Duration,
}

impl Usage {
    pub(crate) fn now() -> Self {
        let mut usage = std::mem::MaybeUninit::<libc::rusage>::uninit();
        // SAFETY: the kernel writes a whole `rusage` there, or says that it did not.
        let written = unsafe { libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr()) } == 0;
        // SAFETY: written, as the call said.
        let usage = written.then(|| unsafe { usage.assume_init() });
        let time = |t: libc::timeval| {
            let (seconds, micros) = (u64::try_from(t.tv_sec), u64::try_from(t.tv_usec));
            Duration::from_secs(seconds.unwrap_or(0)) + Duration::from_micros(micros.unwrap_or(0))
        };
        let cpu = usage.map_or(Duration::ZERO, |usage| time(usage.ru_utime) + time(usage.ru_stime));
        Self { at: Instant::now(), cpu }
    }
}

/// What the process used for its samples, from the end of the warm-up to the last batch.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Used {
    /// Samples that were decoded, those in flight counted.
    pub(crate) samples: u64,
    pub(crate) wall: Duration,
    /// User and system time of all threads.
    pub(crate) cpu: Duration,
}

impl Used {
    pub(crate) fn samples_per_s(&self) -> f64 {
        self.samples as f64 / self.wall.as_secs_f64().max(1e-9)
    }

    pub(crate) fn cpu_s_per_1000(&self) -> f64 {
        self.cpu.as_secs_f64() * 1e3 / self.samples.max(1) as f64
    }
}

/// Resident memory in bytes, mapped files counted: proc_pid_status(5).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Resident {
    pub(crate) now: u64,
    /// The most since the process began, or since [`Resident::forget_peak`].
    pub(crate) peak: u64,
    /// Pages of mapped files, the program's own among them.
    pub(crate) files: u64,
}

impl Resident {
    /// `None` where the system doesn't say.
    pub(crate) fn now() -> Option<Self> {
        Self::parse(&std::fs::read_to_string("/proc/self/status").ok()?)
    }

    fn parse(status: &str) -> Option<Self> {
        let bytes = |name: &str| {
            let rest = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
            Some(rest.trim().strip_suffix(" kB")?.parse::<u64>().ok()? << 10)
        };
        Some(Self { now: bytes("VmRSS")?, peak: bytes("VmHWM")?, files: bytes("RssFile")? })
    }

    /// Starts the peak anew. Where the system refuses that, the peak is that of the whole process.
    pub(crate) fn forget_peak() {
        let _ = std::fs::write("/proc/self/clear_refs", "5");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_shows_in_the_time_of_the_process() {
        let before = Usage::now();
        while before.at.elapsed() < Duration::from_millis(300) {
            std::hint::spin_loop();
        }
        let cpu = Usage::now().cpu.saturating_sub(before.cpu);
        assert!(cpu > Duration::from_millis(5), "{cpu:?}");
    }

    #[test]
    fn sizes_are_read_in_bytes() {
        let status = "Name:\tVmRSS: 1\nVmHWM:\t  2048 kB\nVmRSS:\t    12 kB\nRssFile:\t3 kB\n";
        assert_eq!(Resident::parse(status), Some(Resident { now: 12 << 10, peak: 2 << 20, files: 3 << 10 }));
        assert_eq!(Resident::parse("VmRSS:\t12 kB\n"), None);
        let own = Resident::now().unwrap();
        assert!(own.now > 1 << 20 && own.peak >= own.files, "{own:?}");
    }
}

//! Workers and budgets that several loaders share.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::error::{Error, ErrorKind, Result};
use crate::pool::Budget;

/// One pool of workers and one budget for several loaders: for training and validation, say. Each loader
/// takes its slots from the budget when it is built and gives them back when it is dropped; slots are never shared.
#[derive(Clone)]
pub struct Runtime {
    pub(crate) pool: Option<Arc<rayon::ThreadPool>>,
    pub(crate) workers: usize,
    pub(crate) host: Budget,
    pub(crate) device: Budget,
    pub(crate) live: Arc<AtomicUsize>,
}

impl Runtime {
    /// `workers` threads (0: each loader's caller decodes), and the most bytes of host and device memory that the
    /// slots of all its loaders may have together.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] where the system has no more threads.
    pub fn new(workers: usize, host_budget: usize, device_budget: usize) -> Result<Self> {
        Self::start(workers, host_budget, device_budget, None)
    }

    /// As [`Runtime::new`], with the budgets that a loader has by default.
    ///
    /// # Errors
    /// As [`Runtime::new`].
    pub fn with_workers(workers: usize) -> Result<Self> {
        Self::new(workers, default_host_budget(), DEVICE_BUDGET)
    }

    pub(crate) fn start(
        workers: usize,
        host_budget: usize,
        device_budget: usize,
        init: Option<Arc<dyn Fn(usize) + Send + Sync>>,
    ) -> Result<Self> {
        let live = Arc::new(AtomicUsize::new(0));
        let pool = match workers {
            0 => None,
            _ => {
                let (up, down) = (live.clone(), live.clone());
                let pool = rayon::ThreadPoolBuilder::new()
                    .num_threads(workers)
                    .thread_name(|k| format!("warpfeed-{k}"))
                    .start_handler(move |k| {
                        up.fetch_add(1, Ordering::AcqRel);
                        if let Some(init) = &init {
                            init(k);
                        }
                    })
                    .exit_handler(move |_| {
                        down.fetch_sub(1, Ordering::AcqRel);
                    })
                    .build();
                let refused = |e| {
                    let text = format!("can't start {workers} workers: {e}");
                    Error::new(ErrorKind::Io, text).caused_by(anyhow::Error::new(e))
                };
                Some(Arc::new(pool.map_err(refused)?))
            }
        };
        let (host, device) =
            (Budget::new("host_budget", host_budget), Budget::new("device_budget", device_budget));
        Ok(Self { pool, workers, host, device, live })
    }
}

impl std::fmt::Debug for Runtime {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Runtime")
            .field("workers", &self.workers)
            .field("host_budget", &self.host.limit())
            .field("device_budget", &self.device.limit())
            .finish()
    }
}

/// The default `device_budget`: 1 GiB.
pub(crate) const DEVICE_BUDGET: usize = 1 << 30;

/// The CPUs that this process may use: affinity and cgroup quota count.
pub(crate) fn default_workers() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// The default `host_budget`: 1 GiB, or a quarter of the memory that is available now where that is less.
pub(crate) fn default_host_budget() -> usize {
    let quarter = available_memory().map_or(usize::MAX, |bytes| bytes / 4);
    quarter.min(1 << 30)
}

/// Bytes that can be had without swapping, within the cgroup's limit. `None` where the system does not tell.
fn available_memory() -> Option<usize> {
    let meminfo = std::fs::read_to_string("/proc/meminfo").ok();
    let kib = meminfo.as_deref().and_then(|text| {
        let line = text.lines().find_map(|l| l.strip_prefix("MemAvailable:"))?;
        line.trim().trim_end_matches("kB").trim().parse::<usize>().ok()
    });
    let number = |path: &str| std::fs::read_to_string(path).ok()?.trim().parse::<usize>().ok();
    let v2 = || {
        Some(number("/sys/fs/cgroup/memory.max")?.saturating_sub(number("/sys/fs/cgroup/memory.current")?))
    };
    let v1 = || {
        let limit = number("/sys/fs/cgroup/memory/memory.limit_in_bytes")?;
        Some(limit.saturating_sub(number("/sys/fs/cgroup/memory/memory.usage_in_bytes")?))
    };
    [kib.map(|k| k * 1024), v2().or_else(v1)].into_iter().flatten().min()
}

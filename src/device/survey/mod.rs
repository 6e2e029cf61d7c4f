//! What this machine has for a loader: the driver, its GPUs and how they are attached, and what the host allows. Plain
//! data; what it means for a loader is in its [findings](Survey::findings).

#[cfg(feature = "cuda")]
mod cuda;
mod finding;
mod host;
mod pci;
mod system;
#[cfg(test)]
mod tests;

use std::path::PathBuf;

pub use finding::{Finding, Level};
pub use pci::Link;
use system::System;

/// The facts of one moment: [`Survey::take`] looks, and prints as a report.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Survey {
    /// The CUDA driver.
    pub driver: Driver,
    /// The GPUs that the driver shows to this process, by ordinal. Empty where it can't be used.
    pub gpus: Vec<Gpu>,
    /// The rest of the machine.
    pub host: Host,
}

/// What is known of the CUDA driver.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Driver {
    /// The library that loads under the driver's name.
    pub library: Option<PathBuf>,
    /// The version of the driver's API, major and minor: (12, 4).
    pub api_version: Option<(u32, u32)>,
    /// The version of the kernel's module, like 550.54.15.
    pub kernel_module: Option<String>,
    /// NVIDIA GPUs on the PCI bus, whether or not the driver knows them.
    pub gpus_on_bus: usize,
    /// Whether CUDA_VISIBLE_DEVICES hides every GPU.
    pub hidden: bool,
    /// Why it can't be used, in one line; `None` where it can.
    pub unusable: Option<String>,
}

/// A GPU.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Gpu {
    /// Its number among those that this process sees.
    pub ordinal: u32,
    /// The product's name.
    pub name: String,
    /// Compute capability, major and minor: (9, 0).
    pub compute_capability: (u32, u32),
    /// Device memory in bytes.
    pub memory: u64,
    /// Device memory in bytes that nobody has now; `None` where the device could not be opened.
    pub memory_free: Option<u64>,
    /// Copy engines: how many copies run beside kernels.
    pub copy_engines: u32,
    /// Domain, bus, device and function, as sysfs names it: 0000:3b:00.0.
    pub pci_address: String,
    /// The PCIe link as it is now. An idle GPU lowers its generation.
    pub link: Option<Link>,
    /// The most that the GPU and its slot can do.
    pub link_max: Option<Link>,
    /// The NUMA node that it is attached to.
    pub numa_node: Option<u32>,
    /// The CPUs of that node, as the system lists them: 0-15,32-47.
    pub numa_cpus: Option<String>,
    /// Why the driver gave no [`LOCK_TRIED`] bytes of page-locked memory; `None` where it did.
    pub lock_refused: Option<String>,
}

/// What the host has and allows this process.
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct Host {
    /// CPUs that this process may use: affinity and quota count.
    pub cpus: usize,
    /// The cgroup's quota, in CPUs.
    pub cpu_quota: Option<f64>,
    /// Memory in bytes.
    pub memory: Option<u64>,
    /// Bytes that can be had without swapping, within the cgroup's limit.
    pub memory_available: Option<u64>,
    /// The cgroup's limit in bytes.
    pub memory_limit: Option<u64>,
    /// RLIMIT_MEMLOCK; `None` where the system does not tell.
    pub memlock: Option<Memlock>,
    /// How many bytes could be page-locked by the system's own call: [`LOCK_TRIED`], 1 MiB, or 0.
    pub lockable: u64,
    /// Nodes of memory; 0 where the system does not tell.
    pub numa_nodes: usize,
    /// When anonymous memory gets huge pages: `always`, `madvise` or `never`.
    pub huge_pages: Option<String>,
}

/// RLIMIT_MEMLOCK in bytes; `None` is no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Memlock {
    /// What holds now.
    pub soft: Option<u64>,
    /// How far this process may raise it.
    pub hard: Option<u64>,
}

/// Bytes that are locked, and unlocked again, to see whether they can be: 64 MiB.
pub const LOCK_TRIED: u64 = 64 << 20;

/// The oldest compute capability that the kernels are for.
const OLDEST: (u32, u32) = (7, 5);

impl Survey {
    /// Looks at the machine. It takes as long as the driver's start does, opens each GPU for a moment, and leaves
    /// neither memory nor a context behind. What can't be found out is `None`: it has no errors.
    pub fn take() -> Self {
        let system = System::new("/");
        let mut host = host::read(&system);
        host.lockable = host::lockable(host.memory_available);
        let driver = Driver {
            kernel_module: host::kernel_module(&system),
            gpus_on_bus: pci::nvidia_gpus(&system),
            ..Driver::default()
        };
        let (driver, gpus) = with_driver(&system, driver);
        Self { driver, gpus, host }
    }
}

#[cfg(feature = "cuda")]
fn with_driver(system: &System, mut driver: Driver) -> (Driver, Vec<Gpu>) {
    let gpus = cuda::look(system, &mut driver);
    (driver, gpus)
}

#[cfg(not(feature = "cuda"))]
fn with_driver(_: &System, mut driver: Driver) -> (Driver, Vec<Gpu>) {
    driver.unusable = Some("no CUDA support in this build: its feature `cuda` is off".to_string());
    (driver, Vec::new())
}

impl Gpu {
    /// Whether it is older than what the kernels are for, compute capability 7.5.
    pub fn is_too_old(&self) -> bool {
        self.compute_capability < OLDEST
    }
}

//! CPUs, memory, and the limits that a process or container has on them.

use super::system::System;
use super::{Host, LOCK_TRIED, Memlock};

/// A limit of cgroup v1 from here on is none: it is the largest multiple of the page size.
const NO_LIMIT: u64 = 1 << 60;

pub(super) fn read(system: &System) -> Host {
    let group = Group::read(system);
    let memory = |name: &str| kib(&system.text("proc/meminfo")?, name);
    let nodes = system.names("sys/devices/system/node");
    let is_node = |name: &&String| name.strip_prefix("node").is_some_and(|n| n.parse::<u32>().is_ok());
    Host {
        cpus: std::thread::available_parallelism().map_or(1, usize::from),
        cpu_quota: group.cpus,
        memory: memory("MemTotal:"),
        memory_available: [memory("MemAvailable:"), group.room].into_iter().flatten().min(),
        memory_limit: group.memory,
        memlock: memlock(system),
        lockable: 0,
        numa_nodes: nodes.iter().filter(is_node).count(),
        huge_pages: system.text("sys/kernel/mm/transparent_hugepage/enabled").and_then(|t| chosen(&t)),
    }
}

/// A line of meminfo, in bytes.
fn kib(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    Some(line.trim().trim_end_matches("kB").trim().parse::<u64>().ok()? << 10)
}

/// What a setting like `always [madvise] never` is set to.
fn chosen(text: &str) -> Option<String> {
    Some(text.split_once('[')?.1.split_once(']')?.0.to_string())
}

fn memlock(system: &System) -> Option<Memlock> {
    let text = system.text("proc/self/limits")?;
    let mut words = text.lines().find_map(|l| l.strip_prefix("Max locked memory"))?.split_whitespace();
    let mut limit = || match words.next()? {
        "unlimited" => Some(None),
        bytes => bytes.parse().ok().map(Some),
    };
    Some(Memlock { soft: limit()?, hard: limit()? })
}

/// The version of NVIDIA's kernel module. Its file's first line reads "NVRM version: NVIDIA UNIX x86_64 Kernel Module
/// 550.54.15  Tue Mar …", or has "Open Kernel Module for x86_64" there.
pub(super) fn kernel_module(system: &System) -> Option<String> {
    let text = system.text("proc/driver/nvidia/version")?;
    let is_version = |word: &&str| word.contains('.') && word.starts_with(|c: char| c.is_ascii_digit());
    text.lines().next()?.split_whitespace().find(is_version).map(str::to_string)
}

/// The limits of this process's control group: the tightest of the group and those above it, v1 or v2.
#[derive(Debug, Default, PartialEq)]
struct Group {
    memory: Option<u64>,
    /// Bytes left under a limit.
    room: Option<u64>,
    cpus: Option<f64>,
}

impl Group {
    fn read(system: &System) -> Self {
        let mut group = Self::default();
        let text = system.text("proc/self/cgroup").unwrap_or_default();
        for line in text.lines() {
            let mut parts = line.splitn(3, ':').skip(1);
            let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
            let has = |name| controllers.split(',').any(|c| c == name);
            for folder in folders(path) {
                if controllers.is_empty() {
                    let read = |file: &str| system.text(&format!("sys/fs/cgroup{folder}/{file}"));
                    let number = |file| read(file)?.parse().ok();
                    group.limit_memory(number("memory.max"), number("memory.current"));
                    group.limit_cpus(read("cpu.max").and_then(|text| {
                        let (quota, period) = text.split_once(' ')?;
                        Some((quota.parse().ok()?, period.parse().ok()?))
                    }));
                } else if has("memory") {
                    let number = |file| system.number(&format!("sys/fs/cgroup/memory{folder}/memory.{file}"));
                    let limit = number("limit_in_bytes").filter(|limit| *limit < NO_LIMIT);
                    group.limit_memory(limit, number("usage_in_bytes"));
                } else if has("cpu") {
                    // Mounted together with `cpuacct` or alone; the short name is a link.
                    for mount in ["cpu", controllers] {
                        let number = |file| {
                            let path = format!("sys/fs/cgroup/{mount}{folder}/cpu.cfs_{file}_us");
                            system.text(&path)?.parse().ok()
                        };
                        group.limit_cpus(number("quota").zip(number("period")));
                    }
                }
            }
        }
        group
    }

    fn limit_memory(&mut self, limit: Option<u64>, used: Option<u64>) {
        let Some(limit) = limit else { return };
        self.memory = Some(self.memory.map_or(limit, |m| m.min(limit)));
        let room = limit.saturating_sub(used.unwrap_or(0));
        self.room = Some(self.room.map_or(room, |r| r.min(room)));
    }

    /// A quota and its period, both in µs; a quota below 0 is none.
    fn limit_cpus(&mut self, limit: Option<(f64, f64)>) {
        let Some((quota, period)) = limit.filter(|(quota, period)| *quota > 0.0 && *period > 0.0) else {
            return;
        };
        let cpus = quota / period;
        self.cpus = Some(self.cpus.map_or(cpus, |c| c.min(cpus)));
    }
}

/// The group's path and those above it, each with a `/` in front; the root is empty. A container may see a path that
/// is the host's and not mounted: its own group is then the root.
fn folders(path: &str) -> Vec<String> {
    let mut folders = vec![String::new()];
    let parts: Vec<_> = path.split('/').filter(|part| !part.is_empty()).collect();
    if !parts.contains(&"..") {
        folders.extend((1..=parts.len()).map(|n| format!("/{}", parts[..n].join("/"))));
    }
    folders
}

/// How many bytes the system locks, of those tried: [`LOCK_TRIED`], else 1 MiB, else 0. What would need a good part
/// of the memory that is available is not tried.
pub(super) fn lockable(available: Option<u64>) -> u64 {
    let tried = [LOCK_TRIED, 1 << 20].into_iter();
    let fits = |bytes: &u64| available.is_none_or(|available| bytes * 4 <= available);
    tried.filter(fits).find(|bytes| can_lock(*bytes as usize)).unwrap_or(0)
}

#[cfg(all(unix, not(miri)))]
fn can_lock(bytes: usize) -> bool {
    // Unmapping unlocks.
    memmap2::MmapMut::map_anon(bytes).is_ok_and(|map| map.lock().is_ok())
}

#[cfg(any(not(unix), miri))]
fn can_lock(_: usize) -> bool {
    false
}

//! What the facts of a survey mean for a loader.

use std::fmt;

use super::{Driver, Gpu, Host, LOCK_TRIED, OLDEST, Survey};

/// How much a finding matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Level {
    /// As it should be.
    Ok,
    /// Worth knowing; nothing is wrong.
    Note,
    /// It costs speed or may end a run.
    Warning,
    /// A GPU that there is can't be used.
    Problem,
}

impl Level {
    /// The level's name in reports and in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Note => "note",
            Self::Warning => "warning",
            Self::Problem => "problem",
        }
    }
}

/// A fact, and what it means.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finding {
    /// How much it matters.
    pub level: Level,
    /// What it is about, in a word or two: `driver`, `cuda:0 link`.
    pub subject: String,
    /// What was found.
    pub text: String,
    /// What it means for a loader, or what to do.
    pub advice: String,
}

/// Bytes of 256 images of 224 × 224 pixels of three bytes, for an idea of a link's speed.
const BATCH: f64 = 256.0 * 224.0 * 224.0 * 3.0;
/// The default budgets, in bytes: of the device, and the most of the host.
const BUDGET: u64 = 1 << 30;

impl Survey {
    /// Each fact with what it means, in the order of a report: the driver, each GPU, the host.
    pub fn findings(&self) -> Vec<Finding> {
        let mut out = Findings(Vec::new());
        out.driver(&self.driver);
        for gpu in &self.gpus {
            out.gpu(gpu, &self.host);
        }
        out.host(&self.host, !self.gpus.is_empty());
        out.0
    }
}

/// The report: two lines a finding, without a newline at the end.
impl fmt::Display for Survey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let findings = self.findings();
        let width = findings.iter().map(|finding| finding.subject.len()).max().unwrap_or(0);
        for (i, finding) in findings.iter().enumerate() {
            let Finding { level, subject, text, advice } = finding;
            let end = if i == 0 { "" } else { "\n" };
            write!(f, "{end}{:<8} {subject:<width$}  {text}\n{:9}{:width$}  {advice}", level.name(), "", "")?;
        }
        Ok(())
    }
}

struct Findings(Vec<Finding>);

impl Findings {
    fn add(&mut self, level: Level, subject: &str, text: impl Into<String>, advice: impl Into<String>) {
        let (subject, text, advice) = (subject.to_string(), text.into(), advice.into());
        self.0.push(Finding { level, subject, text, advice });
    }

    fn driver(&mut self, driver: &Driver) {
        let Driver { library, api_version, kernel_module, gpus_on_bus, hidden, unusable } = driver;
        let mut facts = Vec::new();
        facts.extend(api_version.map(|(major, minor)| format!("for CUDA {major}.{minor}")));
        facts.extend(library.as_ref().map(|path| path.display().to_string()));
        facts.extend(kernel_module.as_ref().map(|version| format!("kernel module {version}")));
        let Some(reason) = unusable else {
            return self.add(
                Level::Ok,
                "driver",
                facts.join(", "),
                "any driver for CUDA 12.0 or newer will do",
            );
        };
        // Without a driver's library and without a GPU nothing is broken, nor where they are hidden on purpose.
        let absent = library.is_none() && *gpus_on_bus == 0;
        let level = if absent || *hidden { Level::Note } else { Level::Problem };
        let text = match (gpus_on_bus, kernel_module) {
            (0, None) => reason.clone(),
            (0, Some(version)) => format!("{reason} [kernel module {version}]"),
            (n, version) => {
                let version =
                    version.as_ref().map_or("no kernel module".to_string(), |v| format!("kernel module {v}"));
                format!("{reason} [NVIDIA GPUs on the PCI bus: {n}, {version}]")
            }
        };
        self.add(level, "driver", text, "until then everything runs on the CPU device, with the same bytes");
    }

    fn gpu(&mut self, gpu: &Gpu, host: &Host) {
        let name = format!("cuda:{}", gpu.ordinal);
        let ((major, minor), (least_major, least_minor)) = (gpu.compute_capability, OLDEST);
        let text = format!("{}, compute capability {major}.{minor}, {}", gpu.name, gpu.pci_address);
        if gpu.is_too_old() {
            let advice = format!(
                "too old: the kernels are for compute capability {least_major}.{least_minor} (Turing) and newer"
            );
            self.add(Level::Problem, &name, text, advice);
        } else {
            self.add(Level::Ok, &name, text, "the kernels run on it");
        }

        let subject = format!("{name} memory");
        match gpu.memory_free {
            None => {
                let why = gpu.lock_refused.as_deref().unwrap_or("it says no more");
                let advice = "`nvidia-smi`: is it in exclusive mode, full, or lost?";
                self.add(Level::Problem, &subject, format!("can't be opened: {why}"), advice);
                return;
            }
            Some(free) => {
                let text = format!("{} of {} free", bytes(free), bytes(gpu.memory));
                if free < BUDGET {
                    let advice =
                        "less than the default device_budget of 1 GiB: set a smaller one, or find who has it";
                    self.add(Level::Warning, &subject, text, advice);
                } else {
                    let advice = "device slots take at most device_budget of it, 1 GiB where not set";
                    self.add(Level::Ok, &subject, text, advice);
                }
            }
        }

        let subject = format!("{name} copies");
        let (level, meaning) = match gpu.copy_engines {
            0 => (Level::Warning, "no copy runs beside kernels: uploads can't be hidden"),
            1 => (Level::Ok, "uploads run beside kernels; a download waits for an upload"),
            _ => (Level::Ok, "uploads run beside kernels, and downloads beside both"),
        };
        let plural = if gpu.copy_engines == 1 { "" } else { "s" };
        self.add(level, &subject, format!("{} copy engine{plural}", gpu.copy_engines), meaning);

        self.link(&format!("{name} link"), gpu);
        self.numa(&format!("{name} node"), gpu, host);

        let subject = format!("{name} locking");
        match &gpu.lock_refused {
            None => {
                let text = format!("the driver locked {}", bytes(LOCK_TRIED));
                self.add(Level::Ok, &subject, text, "host slots can be page-locked, as fast uploads need");
            }
            Some(why) => {
                let text = format!("the driver locked no {}: {why}", bytes(LOCK_TRIED));
                let advice = "uploads become pageable, slower and in the host's time: free memory, or raise the \
                              container's limit";
                self.add(Level::Warning, &subject, text, advice);
            }
        }
    }

    fn link(&mut self, subject: &str, gpu: &Gpu) {
        let Some(now) = gpu.link else {
            let text = "PCIe link unknown: the system does not show it, as in a virtual machine";
            return self.add(Level::Note, subject, text, "measure it: `warpfeed bench --device cuda:N`");
        };
        let max = gpu.link_max.unwrap_or(now);
        let text = format!(
            "PCIe gen {} x{}, of gen {} x{}: {:.1} of {:.1} GB/s each way at most",
            now.generation,
            now.lanes,
            max.generation,
            max.lanes,
            now.gb_per_s(),
            max.gb_per_s()
        );
        if now.lanes < max.lanes {
            let advice = "lanes are missing, which no load brings back: look at the slot, the riser and the \
                          firmware's settings";
            return self.add(Level::Warning, subject, text, advice);
        }
        let least = BATCH / max.gb_per_s().max(f64::MIN_POSITIVE) / 1e6;
        let batch = format!("256 images of 224 × 224 take {least:.1} ms at best");
        if now.generation < max.generation {
            let advice = format!("an idle GPU saves power so; under load it should rise, and {batch}");
            return self.add(Level::Note, subject, text, advice);
        }
        self.add(Level::Ok, subject, text, batch);
    }

    fn numa(&mut self, subject: &str, gpu: &Gpu, host: &Host) {
        match (gpu.numa_node, &gpu.numa_cpus) {
            _ if host.numa_nodes == 1 => {
                self.add(Level::Ok, subject, "one NUMA node", "all memory is equally near to it");
            }
            (Some(node), cpus) => {
                let cpus = cpus.as_ref().map(|list| format!(", CPUs {list}")).unwrap_or_default();
                let text = format!("NUMA node {node} of {}{cpus}", host.numa_nodes);
                let advice = format!(
                    "uploads are fastest from there: `numactl --cpunodebind={node} --membind={node} …`"
                );
                self.add(Level::Note, subject, text, advice);
            }
            (None, _) => {
                let advice =
                    "nothing to do, unless uploads are slower than the link: then compare nodes with numactl";
                self.add(Level::Note, subject, "NUMA node unknown", advice);
            }
        }
    }

    fn host(&mut self, host: &Host, cuda: bool) {
        let quota =
            host.cpu_quota.map(|quota| format!(", the cgroup's quota is {quota:.1}")).unwrap_or_default();
        let text = format!("{} for this process{quota}", host.cpus);
        self.add(Level::Ok, "CPUs", text, "as many workers, where not set");

        let limit = host.memory_limit.map(|limit| format!(", the cgroup's limit is {}", bytes(limit)));
        let limit = limit.unwrap_or_default();
        match (host.memory, host.memory_available) {
            (Some(all), Some(available)) => {
                let text = format!("{} of {} available{limit}", bytes(available), bytes(all));
                let budget = BUDGET.min(available / 4);
                if budget < BUDGET {
                    let advice = format!(
                        "set host_budget to {} or less: over the limit a process is killed, and locked memory is not \
                         swapped",
                        bytes(budget)
                    );
                    self.add(Level::Warning, "memory", text, advice);
                } else {
                    self.add(Level::Ok, "memory", text, "the default host_budget is 1 GiB of it");
                }
            }
            _ => {
                let advice = "set host_budget: its default is a quarter of what is available, 1 GiB at most";
                self.add(Level::Note, "memory", "the system does not tell", advice);
            }
        }
        self.locking(host, cuda);
        self.huge_pages(host);
    }

    fn locking(&mut self, host: &Host, cuda: bool) {
        let size = |limit: Option<u64>| limit.map_or("unlimited".to_string(), bytes);
        let limit = host.memlock.map_or("RLIMIT_MEMLOCK unknown".to_string(), |limit| {
            format!("RLIMIT_MEMLOCK {} (hard {})", size(limit.soft), size(limit.hard))
        });
        let text = format!("{limit}; {} of {} could be locked", bytes(host.lockable), bytes(LOCK_TRIED));
        if host.lockable >= LOCK_TRIED {
            self.add(Level::Ok, "locking", text, "the CPU device's host slots are page-locked");
        } else if cuda {
            let advice =
                "it is for the CPU device alone: what the CUDA driver locks is not counted against it";
            self.add(Level::Note, "locking", text, advice);
        } else {
            let advice = "larger host slots will be pageable: `ulimit -l unlimited`, LimitMEMLOCK= of the service, \
                          --ulimit memlock=-1 of the container";
            self.add(Level::Warning, "locking", text, advice);
        }
    }

    fn huge_pages(&mut self, host: &Host) {
        let (level, text, advice) = match host.huge_pages.as_deref() {
            Some(set @ ("always" | "madvise")) => (Level::Ok, set, "slots of 2 MiB and more get huge pages"),
            Some(set) => (
                Level::Note,
                set,
                "slots are in 4 KiB pages: set /sys/kernel/mm/transparent_hugepage/enabled to madvise",
            ),
            None => {
                (Level::Note, "the system does not tell", "slots may be in 4 KiB pages, which work as well")
            }
        };
        self.add(level, "huge pages", text, advice);
    }
}

/// A size with a unit of 1024 and a digit behind the point, where it is not a whole number.
fn bytes(n: u64) -> String {
    let units = ["bytes", "KiB", "MiB", "GiB", "TiB"];
    let (mut value, mut unit) = (n as f64, 0);
    while value >= 1024.0 && unit + 1 < units.len() {
        (value, unit) = (value / 1024.0, unit + 1);
    }
    let digits = usize::from(value.fract() >= 0.05 && value.fract() < 0.95);
    format!("{value:.digits$} {}", units[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_read_well() {
        let sizes = [0, 1000, 1 << 10, 8 << 20, (64 << 20) - 1, 3 << 29, 140 << 30, 5 << 40];
        let read = ["0 bytes", "1000 bytes", "1 KiB", "8 MiB", "64 MiB", "1.5 GiB", "140 GiB", "5 TiB"];
        assert_eq!(sizes.map(bytes), read);
    }
}

//! Surveys of machines that are folders.

use super::*;
use tempfile::TempDir;

fn machine(files: &[(&str, &str)]) -> (TempDir, System) {
    let folder = tempfile::tempdir().unwrap();
    for (path, text) in files {
        let path = folder.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, format!("{text}\n")).unwrap();
    }
    let system = System::new(folder.path());
    (folder, system)
}

const MEMORY: (&str, &str) =
    ("proc/meminfo", "MemTotal:       16777216 kB\nMemFree:         1 kB\nMemAvailable:    8388608 kB");
const LIMITS: (&str, &str) = (
    "proc/self/limits",
    "Limit                     Soft Limit           Hard Limit           Units     \n\
     Max locked memory         8388608              unlimited            bytes     ",
);

fn gpu() -> Gpu {
    Gpu {
        ordinal: 1,
        name: "NVIDIA A100".to_string(),
        compute_capability: (8, 0),
        memory: 40 << 30,
        memory_free: Some(39 << 30),
        copy_engines: 3,
        pci_address: "0000:3b:00.0".to_string(),
        link: Some(Link { generation: 4, lanes: 16 }),
        link_max: Some(Link { generation: 4, lanes: 16 }),
        numa_node: Some(1),
        numa_cpus: Some("16-31".to_string()),
        lock_refused: None,
    }
}

fn survey(gpus: Vec<Gpu>) -> Survey {
    let host = Host {
        cpus: 8,
        memory: Some(64 << 30),
        memory_available: Some(32 << 30),
        memlock: Some(Memlock { soft: Some(8 << 20), hard: None }),
        lockable: LOCK_TRIED,
        numa_nodes: 2,
        huge_pages: Some("madvise".to_string()),
        ..Host::default()
    };
    let driver = Driver {
        library: Some("/usr/lib/libcuda.so.1".into()),
        api_version: Some((12, 4)),
        kernel_module: Some("550.54.15".to_string()),
        gpus_on_bus: gpus.len(),
        hidden: false,
        unusable: None,
    };
    Survey { driver, gpus, host }
}

#[track_caller]
fn expect(survey: &Survey, subject: &str, level: Level, parts: &[&str]) {
    let all = survey.findings();
    let mut found = all.iter().filter(|f| f.subject == subject);
    let finding = found.next().unwrap_or_else(|| panic!("no {subject}: {all:#?}"));
    assert!(found.next().is_none(), "{subject} twice: {all:#?}");
    assert_eq!(finding.level, level, "{finding:?}");
    for part in parts {
        assert!(format!("{} | {}", finding.text, finding.advice).contains(part), "no {part:?}: {finding:?}");
    }
}

#[test]
fn a_machine_without_limits_is_read() {
    let (_folder, system) = machine(&[
        MEMORY,
        LIMITS,
        ("proc/self/cgroup", "0::/"),
        ("sys/fs/cgroup/cgroup.controllers", "cpu memory"),
        ("sys/devices/system/node/node0/cpulist", "0-15"),
        ("sys/devices/system/node/node1/cpulist", "16-31"),
        ("sys/devices/system/node/online", "0-1"),
        ("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never"),
    ]);
    let host = host::read(&system);
    let known = Host {
        cpus: host.cpus,
        memory: Some(16 << 30),
        memory_available: Some(8 << 30),
        memlock: Some(Memlock { soft: Some(8 << 20), hard: None }),
        numa_nodes: 2,
        huge_pages: Some("madvise".to_string()),
        ..Host::default()
    };
    assert_eq!(host, known);
    assert!(host.cpus >= 1);
}

#[test]
fn nothing_is_made_up_where_the_system_says_nothing() {
    let (_folder, system) = machine(&[]);
    let host = host::read(&system);
    assert_eq!(host, Host { cpus: host.cpus, ..Host::default() });
    assert_eq!((host::kernel_module(&system), pci::nvidia_gpus(&system)), (None, 0));
    assert_eq!(pci::attachment(&system, "0000:01:00.0"), pci::Attachment::default());
    let s = Survey { host, ..survey(vec![Gpu { link: None, link_max: None, numa_node: None, ..gpu() }]) };
    expect(&s, "memory", Level::Note, &["does not tell", "host_budget"]);
    expect(&s, "huge pages", Level::Note, &["does not tell"]);
    expect(&s, "cuda:1 link", Level::Note, &["unknown", "bench"]);
    expect(&s, "cuda:1 node", Level::Note, &["unknown"]);
}

#[test]
fn the_tightest_limit_of_nested_groups_holds() {
    let (_folder, system) = machine(&[
        MEMORY,
        ("proc/self/cgroup", "0::/jobs/one"),
        ("sys/fs/cgroup/jobs/memory.max", "4294967296"),
        ("sys/fs/cgroup/jobs/memory.current", "3221225472"),
        ("sys/fs/cgroup/jobs/cpu.max", "250000 100000"),
        ("sys/fs/cgroup/jobs/one/memory.max", "2147483648"),
        ("sys/fs/cgroup/jobs/one/memory.current", "1048576"),
        ("sys/fs/cgroup/jobs/one/cpu.max", "max 100000"),
    ]);
    let host = host::read(&system);
    // The inner limit is the smaller one, the outer one has less left.
    assert_eq!(host.memory_limit, Some(2 << 30));
    assert_eq!(host.memory_available, Some(1 << 30));
    assert_eq!(host.cpu_quota, Some(2.5));
    let s = Survey { host, ..survey(Vec::new()) };
    expect(&s, "memory", Level::Warning, &["1 GiB of 16 GiB", "limit is 2 GiB", "host_budget to 256 MiB"]);
    expect(&s, "CPUs", Level::Ok, &["quota is 2.5"]);
}

#[test]
fn the_first_version_of_groups_is_read_too() {
    let group = "9:name=systemd:/\n4:memory:/docker/a\n2:cpu,cpuacct:/docker/a\n0::/";
    let (_folder, system) = machine(&[
        MEMORY,
        ("proc/self/cgroup", group),
        ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712"),
        ("sys/fs/cgroup/memory/docker/a/memory.limit_in_bytes", "1073741824"),
        ("sys/fs/cgroup/memory/docker/a/memory.usage_in_bytes", "73741824"),
        ("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1"),
        ("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000"),
        ("sys/fs/cgroup/cpu,cpuacct/docker/a/cpu.cfs_quota_us", "150000"),
        ("sys/fs/cgroup/cpu,cpuacct/docker/a/cpu.cfs_period_us", "100000"),
    ]);
    let host = host::read(&system);
    assert_eq!(host.memory_limit, Some(1 << 30));
    assert_eq!(host.memory_available, Some(1_000_000_000));
    assert_eq!(host.cpu_quota, Some(1.5));
}

#[test]
fn a_container_that_sees_the_hosts_path_has_its_own_group_at_the_root() {
    for path in ["/../../other", "/docker/0123"] {
        let (_folder, system) = machine(&[
            MEMORY,
            ("proc/self/cgroup", &format!("0::{path}")),
            ("sys/fs/cgroup/memory.max", "1073741824"),
            ("sys/fs/cgroup/memory.current", "0"),
        ]);
        assert_eq!(host::read(&system).memory_limit, Some(1 << 30), "{path}");
    }
}

#[test]
fn the_bus_says_how_a_gpu_is_attached() {
    let gpu = "sys/bus/pci/devices/0000:3b:00.0";
    let file = |name: &str| format!("{gpu}/{name}");
    let audio = "sys/bus/pci/devices/0000:3b:00.1";
    let files = [
        (file("vendor"), "0x10de"),
        (file("class"), "0x030200"),
        (file("current_link_speed"), "2.5 GT/s PCIe"),
        (file("current_link_width"), "8"),
        (file("max_link_speed"), "32.0 GT/s PCIe"),
        (file("max_link_width"), "16"),
        (file("numa_node"), "1"),
        (format!("{audio}/vendor"), "0x10de"),
        (format!("{audio}/class"), "0x040300"),
        ("sys/bus/pci/devices/0000:00:02.0/vendor".to_string(), "0x8086"),
        ("sys/bus/pci/devices/0000:00:02.0/class".to_string(), "0x030000"),
        ("sys/devices/system/node/node1/cpulist".to_string(), "16-31"),
        (
            "proc/driver/nvidia/version".to_string(),
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.54.15  Release Build\nGCC version: gcc 12.2.0",
        ),
    ];
    let files: Vec<_> = files.iter().map(|(path, text)| (path.as_str(), *text)).collect();
    let (folder, system) = machine(&files);
    let known = pci::Attachment {
        link: Some(Link { generation: 1, lanes: 8 }),
        link_max: Some(Link { generation: 5, lanes: 16 }),
        numa_node: Some(1),
        numa_cpus: Some("16-31".to_string()),
    };
    assert_eq!(pci::attachment(&system, "0000:3b:00.0"), known);
    assert_eq!(pci::nvidia_gpus(&system), 1);
    assert_eq!(host::kernel_module(&system).as_deref(), Some("550.54.15"));
    std::fs::write(folder.path().join(file("numa_node")), "-1\n").unwrap();
    let found = pci::attachment(&system, "0000:3b:00.0");
    assert_eq!((found.numa_node, found.numa_cpus), (None, None));
}

#[test]
fn a_machine_in_order_has_no_warning() {
    let s = survey(vec![gpu()]);
    expect(&s, "driver", Level::Ok, &["CUDA 12.4", "/usr/lib/libcuda.so.1", "550.54.15"]);
    expect(&s, "cuda:1", Level::Ok, &["NVIDIA A100", "8.0", "0000:3b:00.0"]);
    expect(&s, "cuda:1 memory", Level::Ok, &["39 GiB of 40 GiB"]);
    // 38.5 MB at 31.5 GB/s.
    expect(&s, "cuda:1 link", Level::Ok, &["gen 4 x16", "31.5 of 31.5 GB/s", "1.2 ms"]);
    expect(&s, "cuda:1 node", Level::Note, &["node 1 of 2", "CPUs 16-31", "--cpunodebind=1 --membind=1"]);
    expect(&s, "cuda:1 locking", Level::Ok, &["64 MiB"]);
    expect(&s, "locking", Level::Ok, &["8 MiB (hard unlimited)", "64 MiB of 64 MiB"]);
    assert!(s.findings().iter().all(|f| f.level <= Level::Note));
    let mut near = s.clone();
    near.host.numa_nodes = 1;
    expect(&near, "cuda:1 node", Level::Ok, &["one NUMA node"]);
}

#[test]
fn what_costs_speed_is_a_warning_and_what_can_not_be_used_a_problem() {
    let of = |gpu| survey(vec![gpu]);
    let old = Gpu { compute_capability: (7, 0), ..gpu() };
    assert!(old.is_too_old() && !gpu().is_too_old());
    assert!(!Gpu { compute_capability: (7, 5), ..gpu() }.is_too_old());
    expect(&of(old), "cuda:1", Level::Problem, &["7.0", "7.5"]);
    expect(
        &of(Gpu { memory_free: Some(1 << 29), ..gpu() }),
        "cuda:1 memory",
        Level::Warning,
        &["device_budget"],
    );
    expect(&of(Gpu { copy_engines: 0, ..gpu() }), "cuda:1 copies", Level::Warning, &["can't be hidden"]);
    let link = |generation, lanes| Gpu { link: Some(Link { generation, lanes }), ..gpu() };
    expect(&of(link(1, 16)), "cuda:1 link", Level::Note, &["gen 1 x16, of gen 4 x16", "idle", "1.2 ms"]);
    expect(&of(link(4, 8)), "cuda:1 link", Level::Warning, &["15.8 of 31.5", "slot"]);
    let refused = Gpu { lock_refused: Some("out of memory".to_string()), ..gpu() };
    expect(&of(refused.clone()), "cuda:1 locking", Level::Warning, &["out of memory", "pageable"]);
    let lost = of(Gpu { memory_free: None, ..refused });
    expect(&lost, "cuda:1 memory", Level::Problem, &["can't be opened: out of memory"]);
    assert!(lost.findings().iter().all(|f| f.subject != "cuda:1 locking"));
}

#[test]
fn a_limit_on_locked_memory_matters_to_the_cpu_device_alone() {
    let mut s = survey(vec![gpu()]);
    s.host.lockable = 1 << 20;
    expect(&s, "locking", Level::Note, &["1 MiB of 64 MiB", "not counted"]);
    s.gpus.clear();
    expect(&s, "locking", Level::Warning, &["ulimit -l unlimited"]);
    s.host.huge_pages = Some("never".to_string());
    expect(&s, "huge pages", Level::Note, &["never", "madvise"]);
}

#[test]
fn no_driver_is_a_problem_only_where_there_is_something_to_drive() {
    let mut s = survey(Vec::new());
    let reason = "no CUDA driver: none was found";
    s.driver = Driver { unusable: Some(reason.to_string()), ..Driver::default() };
    expect(&s, "driver", Level::Note, &[reason, "CPU device"]);
    s.driver.gpus_on_bus = 2;
    expect(&s, "driver", Level::Problem, &[reason, "on the PCI bus: 2", "no kernel module"]);
    let broken = Driver { gpus_on_bus: 0, library: Some("/x/libcuda.so".into()), ..s.driver.clone() };
    s.driver = Driver { kernel_module: Some("550.1".to_string()), ..broken };
    expect(&s, "driver", Level::Problem, &[reason, "kernel module 550.1"]);
    s.driver.hidden = true;
    expect(&s, "driver", Level::Note, &[reason]);
}

#[test]
fn a_report_is_aligned_and_names_each_level_in_words() {
    let mut s = survey(vec![gpu()]);
    s.host.huge_pages = None;
    let report = s.to_string();
    let lines: Vec<_> = report.lines().collect();
    assert_eq!(lines.len(), 2 * s.findings().len());
    for (pair, finding) in lines.chunks(2).zip(s.findings()) {
        let at = pair[0].find(&finding.text).unwrap();
        assert!(pair[0].starts_with(finding.level.name()) && pair[0].contains(&finding.subject), "{pair:?}");
        assert_eq!(pair[1], format!("{:at$}{}", "", finding.advice));
        assert_eq!(at, lines[0].find(&s.findings()[0].text).unwrap(), "{pair:?}");
    }
}

#[test]
#[cfg_attr(miri, ignore = "reads the system")]
fn a_survey_of_this_machine_finds_its_memory() {
    let s = Survey::take();
    assert!(s.host.cpus >= 1);
    assert_eq!(s.driver.unusable.is_none(), !s.gpus.is_empty(), "{s:?}");
    assert!([0, 1 << 20, LOCK_TRIED].contains(&s.host.lockable));
    if cfg!(target_os = "linux") {
        let (all, available) = (s.host.memory.unwrap(), s.host.memory_available.unwrap());
        assert!(available <= all && available > 0, "{s:?}");
        let unlimited = s.host.memlock.unwrap().soft.is_none_or(|soft| soft >= 2 * LOCK_TRIED);
        assert!(!unlimited || s.host.lockable == LOCK_TRIED || available < 4 * LOCK_TRIED, "{s:?}");
    }
}

#[test]
fn memory_that_is_scarce_is_not_locked_to_see_whether_it_can_be() {
    assert_eq!(host::lockable(Some(1 << 20)), 0);
    assert!(host::lockable(Some(8 << 20)) <= 1 << 20);
}

//! `warpfeed doctor`: what this machine has for a loader, and what each fact means.

use std::io::{self, Write};

use serde_json::{Value, json};
use warpfeed::Device;
use warpfeed::survey::{Finding, Gpu, Level, Link, Survey};

/// Says what this machine has for a loader, what that means, and what to change.
///
/// Looked at are the CUDA driver, each GPU with its link and its NUMA node, and what the host allows: CPUs, memory,
/// page-locking. Each is ok, a note, a warning (it costs speed, or may end a run), or a problem (a GPU that there is
/// can't be used). None of them is an error: the exit status is 0.
#[derive(Debug, clap::Args)]
#[command(args_override_self = true)]
pub(crate) struct Args {
    /// Prints one line of JSON
    #[arg(long)]
    json: bool,
}

/// Looks, and prints what was found.
///
/// # Errors
/// A stdout that is closed.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let survey = Survey::take();
    let device = Device::auto().map(|device| device.name());
    let mut out = io::stdout();
    if args.json {
        let (name, error) = (device.as_ref().ok(), device.as_ref().err().map(ToString::to_string));
        let mut line = describe(&survey);
        line["device_auto"] = json!(name);
        line["device_auto_error"] = json!(error);
        writeln!(out, "{line}")?;
        return Ok(());
    }
    writeln!(out, "{survey}\n\n{}", summary(&survey.findings()))?;
    match device {
        Ok(name) => writeln!(out, "Device::auto() takes: {name}")?,
        Err(error) => writeln!(out, "Device::auto() takes none: {error}")?,
    }
    Ok(())
}

/// How many findings of each level there are that ask for something.
fn summary(findings: &[Finding]) -> String {
    let count = |level, noun: &str| match findings.iter().filter(|f| f.level == level).count() {
        1 => format!("1 {noun}"),
        n => format!("{n} {noun}s"),
    };
    format!("{}, {}.", count(Level::Problem, "problem"), count(Level::Warning, "warning"))
}

/// All fields. Bytes, and CPUs, are numbers; what is not known is null.
fn describe(survey: &Survey) -> Value {
    let (driver, host) = (&survey.driver, &survey.host);
    let findings = survey.findings().into_iter().map(
        |f| json!({ "level": f.level.name(), "subject": f.subject, "text": f.text, "advice": f.advice }),
    );
    json!({
        "driver": {
            "usable": driver.unusable.is_none(),
            "unusable": driver.unusable,
            "library": driver.library.as_ref().map(|path| path.to_string_lossy()),
            "api_version": driver.api_version.map(version),
            "kernel_module": driver.kernel_module,
            "gpus_on_bus": driver.gpus_on_bus,
            "hidden": driver.hidden,
        },
        "gpus": survey.gpus.iter().map(describe_gpu).collect::<Vec<_>>(),
        "host": {
            "cpus": host.cpus,
            "cpu_quota": host.cpu_quota,
            "memory": host.memory,
            "memory_available": host.memory_available,
            "memory_limit": host.memory_limit,
            // A limit of null is none.
            "memlock": host.memlock.map(|limit| json!({ "soft": limit.soft, "hard": limit.hard })),
            "lockable": host.lockable,
            "numa_nodes": host.numa_nodes,
            "huge_pages": host.huge_pages,
        },
        "findings": findings.collect::<Vec<_>>(),
    })
}

fn describe_gpu(gpu: &Gpu) -> Value {
    json!({
        "ordinal": gpu.ordinal,
        "name": gpu.name,
        "compute_capability": version(gpu.compute_capability),
        "too_old": gpu.is_too_old(),
        "memory": gpu.memory,
        "memory_free": gpu.memory_free,
        "copy_engines": gpu.copy_engines,
        "pci_address": gpu.pci_address,
        "link": gpu.link.map(describe_link),
        "link_max": gpu.link_max.map(describe_link),
        "numa_node": gpu.numa_node,
        "numa_cpus": gpu.numa_cpus,
        "lock_refused": gpu.lock_refused,
    })
}

fn describe_link(link: Link) -> Value {
    json!({ "generation": link.generation, "lanes": link.lanes, "gb_per_s": link.gb_per_s() })
}

fn version((major, minor): (u32, u32)) -> String {
    format!("{major}.{minor}")
}

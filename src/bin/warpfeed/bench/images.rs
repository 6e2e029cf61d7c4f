//! A benchmark over real images.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{anyhow, ensure};
use clap::value_parser;
use serde_json::json;
use warpfeed::source::{Pictures, Source, open};

use super::{Args, print, progress_of, shape};
use crate::images::{Recipe, counted, line, lines, path_json};
use crate::pipeline::{Feed, Plan, Run};
use crate::report::{Report, figure};
use crate::rig::Rig;
use crate::usage::Resident;

/// Steps of the picture, and samples that are loaded alone, unless said otherwise.
const STEPS: u64 = 10;
const SAMPLES: u64 = 2048;
/// The order of the samples and what is random in them.
const SEED: u64 = 0;
/// What a loader may have resident beside its slots.
const BESIDE: u64 = 64 << 20;

#[derive(Debug, clap::Args)]
pub(super) struct Options {
    /// Loads the images at PATH: a folder of class folders, tar shards, a detection set
    ///
    /// Measured are loading alone, with the processors' time for 1,000 samples and the memory that it takes, and then the
    /// pipeline, in which a step computes for as long as a batch takes to load unless --compute-ms says otherwise.
    #[arg(
        long,
        value_name = "PATH",
        conflicts_with_all = ["source", "records", "record_bytes", "ratio", "decode_us"]
    )]
    images: Option<PathBuf>,
    /// How images become rows [default: yolo where there are boxes, else imagenet]
    #[arg(long, value_enum, requires = "images")]
    recipe: Option<Recipe>,
    /// Loads that many samples and leaves the picture of the overlap out; whole batches are timed, so that N is rounded up to them
    #[arg(
        long,
        value_name = "N",
        requires = "images",
        conflicts_with_all = ["steps", "compute_ms", "link_gbps"],
        value_parser = value_parser!(u64).range(1..=1_000_000_000)
    )]
    samples: Option<u64>,
    /// Lets the codec decode at a fraction of the size where that is enough
    #[arg(long, requires = "images")]
    scaled_decoding: bool,
}

impl Options {
    pub(super) fn path(&self) -> Option<&Path> {
        self.images.as_deref()
    }
}

/// # Errors
/// As [`super::run`].
pub(super) fn run(args: &Args, path: &Path, rig: &Rig) -> anyhow::Result<()> {
    let shown = line(&path.to_string_lossy());
    let set = open(path).map_err(|e| anyhow!(lines(&e.to_string())))?;
    let set = Arc::new(set);
    let opened = Resident::now();
    Resident::forget_peak();

    let options = &args.images;
    let recipe = options.recipe.unwrap_or_else(|| Recipe::of(set.labels()));
    let len = set.len().unwrap_or(0);
    let batch_size = args.batch_size.unwrap_or(recipe.batch_size().min(len));
    ensure!(
        (1..=len).contains(&batch_size),
        "{shown} has {}, fewer than a batch of {batch_size}: lower --batch-size",
        counted(len, "image")
    );
    let plan = Plan { batch_size, steps: args.steps.unwrap_or(STEPS), ..args.plan() };
    let decode = recipe.decoder().scaled_decoding(options.scaled_decoding);
    let feed = Feed { source: set, decode, shuffle: Some(SEED) };

    let samples = options.samples.unwrap_or(SAMPLES.min(4 * len)).max(batch_size);
    let loading = Plan { steps: samples.div_ceil(batch_size), ..plan };
    let picture = if options.samples.is_some() { 0 } else { plan.steps_after_loading() };
    let progress = progress_of(loading.steps_of_loading() + picture);
    let broken = |e: warpfeed::Error| {
        let e = lines(&e.to_string());
        anyhow!("{e}; `warpfeed verify {shown}` lists all samples that can't be loaded")
    };
    let loaded = loading.load_alone(rig, &feed, &progress).map_err(broken)?;
    let memory =
        opened.zip(Resident::now()).map(|(open, end)| Memory::new(open, end, &loading, rig, &loaded));

    let report = if options.samples.is_some() {
        None
    } else {
        let load = loaded.time_to_load(plan.workers);
        let as_long = args.compute_ms.is_none();
        let plan = Plan { compute: if as_long { load } else { plan.compute }, ..plan };
        let measured = plan.measure_after(load, rig, &feed, &progress).map_err(broken)?;
        Some(Report::new(&plan, &measured))
    };
    progress.finish_and_clear();

    let device = if rig.is_cpu() { "CPU device".to_string() } else { rig.name() };
    let steps = if report.is_some() { format!(", {} steps", plan.steps) } else { String::new() };
    let recipe = recipe.name();
    let title = format!("{shown}, {recipe}: batches of {batch_size}, {}{steps}, {device}", shape(&plan));
    let mut table = report.as_ref().map_or(title.clone(), |report| report.table(&title));
    table += "\n\n";
    table += &in_words(&loaded, memory.as_ref());
    if report.is_none() {
        table += &format!("\n{}", loaded.stats);
    }
    let json = args.json.then(|| {
        let used = &loaded.used;
        let mut json = match &report {
            Some(report) => report.json(&rig.name(), &plan),
            None => json!({
                "device": rig.name(),
                "batch_size": batch_size,
                "workers": plan.workers,
                "host_slots": plan.host_slots,
                "device_slots": plan.device_slots,
                "samples_per_s": used.samples_per_s(),
                "limit": loaded.stats.limiting().name(),
            }),
        };
        path_json(&mut json, "images", path);
        json["recipe"] = recipe.into();
        json["samples"] = used.samples.into();
        json["load_samples_per_s"] = used.samples_per_s().into();
        json["cpu_s_per_1000"] = used.cpu_s_per_1000().into();
        let mb = |bytes: u64| bytes as f64 / 1e6;
        json["rss_open_mb"] = memory.map(|memory| mb(memory.open)).into();
        json["rss_peak_mb"] = memory.map(|memory| mb(memory.peak)).into();
        json["budget_mb"] = memory.map(|memory| mb(memory.slots)).into();
        json["mapped_mb"] = memory.map(|memory| mb(memory.mapped)).into();
        json["rss_in_ceiling"] = memory.map(|memory| memory.keeps_ceiling()).into();
        json
    });
    print(&table, json)?;
    Ok(())
}

fn in_words(loaded: &Run, memory: Option<&Memory>) -> String {
    let used = &loaded.used;
    let mut text = format!(
        "loading      {} samples/s, {} CPU-seconds for 1,000 samples ({} samples timed)",
        figure(used.samples_per_s()),
        figure(used.cpu_s_per_1000()),
        used.samples
    );
    if let Some(memory) = memory {
        let mb = |bytes: u64| format!("{:.1} MB", bytes as f64 / 1e6);
        text += &format!(
            "\nmemory       {} resident after opening, at most {} more while loading; ",
            mb(memory.open),
            mb(memory.more())
        );
        text += &format!("slots have {}, mapped files {}", mb(memory.slots), mb(memory.mapped));
        text += match memory.keeps_ceiling() {
            true => ": within slots, mapped files and 64 MiB",
            false => ": OVER slots, mapped files and 64 MiB",
        };
    }
    text
}

/// Resident memory in bytes.
#[derive(Debug, Clone, Copy)]
struct Memory {
    /// Just after the set was opened.
    open: u64,
    /// The most while samples were loaded.
    peak: u64,
    /// Slots on the host, those of a CPU device among them.
    slots: u64,
    /// Pages of files that came to be mapped.
    mapped: u64,
}

impl Memory {
    fn new(open: Resident, end: Resident, plan: &Plan, rig: &Rig, loaded: &Run) -> Self {
        let slots = plan.host_slots + if rig.is_cpu() { plan.device_slots } else { 0 };
        Self {
            open: open.now,
            peak: end.peak,
            slots: slots as u64 * loaded.slot_bytes as u64,
            mapped: end.files.saturating_sub(open.files),
        }
    }

    fn more(&self) -> u64 {
        self.peak.saturating_sub(self.open)
    }

    fn keeps_ceiling(&self) -> bool {
        self.more() <= self.slots + self.mapped + BESIDE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_beside_slots_and_maps_has_a_ceiling() {
        let memory = Memory { open: 100, peak: 100 + 7 + 5 + BESIDE, slots: 7, mapped: 5 };
        assert!(memory.keeps_ceiling());
        assert!(!Memory { peak: memory.peak + 1, ..memory }.keeps_ceiling());
        assert!(Memory { peak: 50, ..memory }.keeps_ceiling());
    }
}

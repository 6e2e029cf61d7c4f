//! `warpfeed verify`: every sample read and decoded in full.

mod job;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashSet};
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::anyhow;
use clap::value_parser;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};
use warpfeed::Error;

use crate::images::{counted, error_json, line, sweep};
use job::{Good, Job};

/// A sample that takes longer is reported, and left to itself.
const PATIENCE: Duration = Duration::from_secs(60);
/// The exit status of a process that was interrupted.
const INTERRUPT: u8 = 130;
/// Without a terminal, how often it is said how far it is.
const EVERY: Duration = Duration::from_secs(5);

/// Reads and decodes every image of a data set in full, and names each that a loader could not use.
///
/// PATH is a folder of class folders or of images, tar shards (a file, a folder of them, a pattern; compressed too), or a detection set. Bad are
/// files that can't be read, are empty, corrupt, cut, of a format that is not read or larger than the limits, labels that are malformed
/// or missing where the others have one, and damaged shards. Of a detection set all splits are read. Nothing is written.
///
/// The exit status is 0 where all is good, 1 where something is bad (even if nobody reads what is printed), 2 where nothing could be read.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The data set
    path: PathBuf,
    /// Reads this split of a detection set (train, val, test) and no other
    #[arg(long, value_name = "NAME")]
    split: Option<String>,
    /// Threads that read and decode [default: the CPUs there are]
    #[arg(long, value_name = "N", value_parser = value_parser!(u64).range(1..=1024))]
    workers: Option<u64>,
    /// Prints a line of JSON for each bad sample, with its index in its split, and one for the summary, which has the key "samples"
    #[arg(long)]
    json: bool,
}

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

extern "C" fn interrupt(signal: libc::c_int) {
    INTERRUPTED.store(true, Relaxed);
    // SAFETY: `signal` may be called in a handler, and the default action is always there: it ends the process the second time.
    unsafe { libc::signal(signal, libc::SIG_DFL) };
}

/// What was seen so far.
#[derive(Default)]
struct Tally {
    seen: u64,
    bad_samples: u64,
    /// Bad samples and flaws by the name of their kind.
    kinds: BTreeMap<String, u64>,
    misnamed: u64,
    /// Its number, its index, and what it is.
    first_misnamed: Option<(u64, u64, String)>,
    /// Hashes of the keys of shards' samples.
    keys: HashSet<u64>,
    repeated: u64,
}

impl Tally {
    fn add(&mut self, number: u64, good: Good) {
        self.seen += 1;
        if let Some(text) = good.misnamed {
            self.misnamed += 1;
            if self.first_misnamed.as_ref().is_none_or(|(first, ..)| number < *first) {
                self.first_misnamed = Some((number, good.index, text));
            }
        }
        if good.key.is_some_and(|key| !self.keys.insert(key)) {
            self.repeated += 1;
        }
    }

    fn add_bad(&mut self) {
        self.seen += 1;
        self.bad_samples += 1;
    }

    /// The last line, for programs.
    fn json(&self, job: &Job, time: Duration) -> Value {
        let (text, facts) = job.found();
        let misnamed = self.first_misnamed.as_ref();
        json!({
            "samples": job.len().unwrap_or(self.seen),
            "verified": self.seen,
            "bad": self.bad_samples,
            "flaws": job.flaws.len(),
            "kinds": self.kinds,
            "misnamed": self.misnamed,
            "first_misnamed": misnamed.map(|(_, index, is)| json!({ "index": index, "is": is })),
            "repeated_keys": self.repeated,
            "seconds": time.as_secs_f64(),
            "found": text,
            "set": facts,
            "advice": job.advice(),
        })
    }

    /// The last lines, for people.
    fn table(&self, job: &Job, (workers, time): (usize, Duration)) -> String {
        let (seen, bad) = (self.seen, self.bad_samples);
        let mut text = format!("{}\n", job.found().0);
        if INTERRUPTED.load(Relaxed) {
            text += "interrupted; ";
        }
        let samples = match job.len().filter(|len| *len != seen) {
            Some(len) => format!("{seen} of {}", counted(len, "sample")),
            None => counted(seen, "sample"),
        };
        let time = time.as_secs_f64();
        text += &format!("{samples} read and decoded in {time:.1} s, {workers} at a time: ");
        let mut advice = job.advice();
        text += &match (bad, job.flaws.len() as u64) {
            (0, 0) => match advice.is_empty() {
                true => "all are good".to_string(),
                false => {
                    format!("all are good\nA loader takes what is here only if you {}", advice.join(" and "))
                }
            },
            (_, flaws) => {
                let flaws = match flaws {
                    0 => String::new(),
                    n => format!(", {} of labels, shards or splits", counted(n, "flaw")),
                };
                if bad > 0 {
                    advice.push("load with `OnError::Skip`".to_string());
                }
                let or = match advice.is_empty() {
                    true => String::new(),
                    false => format!("; else {}", advice.join(" and ")),
                };
                let (good, kinds) = (seen - bad, self.by_kind());
                format!("{good} good, {bad} bad{flaws} ({kinds})\nMend or remove what is named above{or}")
            }
        };
        if let Some((.., what)) = &self.first_misnamed {
            let (images, are) = match self.misnamed {
                1 => ("1 good image is".to_string(), "its name says"),
                n => (format!("{n} good images are"), "their names say"),
            };
            text += &format!("\n{images} of another format than {are}; the first is {}", line(what));
        }
        if self.repeated > 0 {
            let has = if self.repeated == 1 { "has" } else { "have" };
            text += &format!("\n{} {has} the key of another one", counted(self.repeated, "sample"));
        }
        text
    }

    /// In words: `2 Corrupt, 1 Truncated`.
    fn by_kind(&self) -> String {
        self.kinds.iter().map(|(kind, n)| format!("{n} {kind}")).collect::<Vec<_>>().join(", ")
    }
}

/// Verifies, and prints what is bad.
///
/// # Errors
/// A path at which nothing can be read, a stdout that can't be written to.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let begun = Instant::now();
    let job = Job::open(&args.path, args.split.as_deref()).map_err(|e| anyhow!(line(&e.to_string())))?;
    let cores = || std::thread::available_parallelism().map_or(1, usize::from);
    let workers = args.workers.map_or_else(cores, |n| n as usize);
    // SAFETY: the handler does nothing that a handler may not do.
    unsafe { libc::signal(libc::SIGINT, interrupt as *const () as libc::sighandler_t) };

    let (progress, style) = match job.len() {
        Some(len) => (ProgressBar::new(len), "{bar:40} {pos}/{len} samples, {eta} left  {msg}"),
        None => (ProgressBar::no_length(), "{spinner} {pos} samples  {msg}"),
    };
    if let Ok(style) = ProgressStyle::with_template(style) {
        progress.set_style(style);
    }
    let mut tally = Tally::default();
    let bad = Cell::new(0);
    let say = |tally: &mut Tally, split: Option<&str>, error: &Error| {
        *tally.kinds.entry(format!("{:?}", error.kind())).or_default() += 1;
        bad.set(bad.get() + 1);
        progress.set_message(format!("{} bad", bad.get()));
        let text = match args.json {
            true => {
                let mut json = error_json(error);
                json["split"] = split.into();
                json.to_string()
            }
            false => format!("{:?}: {}", error.kind(), line(&error.to_string())),
        };
        progress.suspend(|| writeln!(io::stdout(), "{text}"))
    };
    // What is printed to nobody is no reason to change the verdict, but one to end.
    let closed = RefCell::new(None);
    for (split, flaw) in &job.flaws {
        if let Err(e) = say(&mut tally, split.as_deref(), flaw) {
            closed.replace(Some(e));
            break;
        }
    }
    let seen = Cell::new(0);
    let mut said = Instant::now();
    sweep(
        job.len().unwrap_or(u64::MAX),
        (workers, PATIENCE),
        job.check(),
        |number, outcome| match outcome {
            Ok(None) => {}
            Ok(Some(good)) => {
                seen.set(seen.get() + 1);
                tally.add(number, good);
            }
            Err(error) => {
                seen.set(seen.get() + 1);
                tally.add_bad();
                if let Err(e) = say(&mut tally, job.split(number), &error.at(job.place(number))) {
                    closed.replace(Some(e));
                }
            }
        },
        |_| {
            progress.set_position(seen.get());
            if progress.is_hidden() && said.elapsed() >= EVERY {
                said = Instant::now();
                let of = job.len().map_or(String::new(), |len| format!(" of {len}"));
                let _ = writeln!(io::stderr(), "verified {}{of}, {} bad", seen.get(), bad.get());
            }
            closed.borrow().is_none() && !INTERRUPTED.load(Relaxed) && !job.is_over(seen.get())
        },
    )?;
    progress.finish_and_clear();
    let interrupted = INTERRUPTED.load(Relaxed);
    let written = match closed.into_inner() {
        Some(error) => Err(error),
        None if args.json => writeln!(io::stdout(), "{}", tally.json(&job, begun.elapsed())),
        None => writeln!(io::stdout(), "{}", tally.table(&job, (workers, begun.elapsed()))),
    };
    match written {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => return Err(error.into()),
        _ => {}
    }
    Ok(match (interrupted, bad.get()) {
        (true, _) => ExitCode::from(INTERRUPT),
        (false, 0) => ExitCode::SUCCESS,
        _ => ExitCode::from(1),
    })
}

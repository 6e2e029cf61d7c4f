//! Shards of which every sample can be read by its index.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use super::index::{self, Flaw, Indexed, Part, ShardIndex};
use super::report::{ShardReport, Tally};
use super::walk::Input;
use super::{OnDamage, Rules, ShardOptions, cache, check_list, duplicate, place_of, sparse};
use crate::error::{Error, ErrorKind, Place, Result};
use crate::random::{key, key_of_bytes};
use crate::source::files::{Files, Stamp};
use crate::source::picture::{Labels, Picture, Pictures};
use crate::source::read_ahead::{Advise, ReadAhead, Residence, residence_of_file, will_need_file};
use crate::source::{Bundle, Source, out_of_range};

/// Headers are read so many bytes at a time: with small members around one, several headers.
const WINDOW: usize = 4096;
/// Members of a sample that lie no further apart are read at once, with what lies between them: a header, an extended one.
const GAP: u64 = 8192;
/// Reading headers is waiting for a disk, more than work for a CPU.
const READERS: usize = 8;

/// WebDataset shards, uncompressed, as a source of samples that are read by index.
///
/// Neighbouring members `dir/0001.jpg`, `dir/0001.cls` of an archive are one sample, a [`Bundle`] with the key `dir/0001` and the members `jpg`
/// and `cls`. The key ends at the first dot of the base name ([`ShardOptions::last_dot`] splits at the last); extensions are in
/// lower case; a leading `./` is left out. Members without an extension, directories, links, what macOS leaves
/// (`._*`, `.DS_Store`, `__MACOSX/`) and WebDataset's `__name__` are skipped and counted.
///
/// ```no_run
/// use warpfeed::source::Shards;
/// let shards = Shards::open("train-{000..147}.tar")?;
/// println!("{}", shards.report());
/// # Ok::<(), warpfeed::Error>(())
/// ```
///
/// - **Images.** As [`Pictures`] a sample's image is its first member with the extension of one and no other (`jpg`, not `depth.png`); where there is
///   none, the first that ends in one (of `depth.png` and `seg.png` the one that comes first in the archive: better name it,
///   [`ShardOptions::image`]); an only member is the image unless it has a name like `cls`, `txt` or `json`. Where any sample has a `cls`, an integer in text,
///   that is the class, and one without is [`ErrorKind::MissingField`] when it is decoded: how many lack it is warned of.
///   [`ShardOptions::class`] takes another member.
/// - **Opening** reads the headers of all shards (ustar, GNU, PAX), several shards at a time, and builds an index in memory: 8 bytes a sample and 12 a
///   member beside the keys. [`ShardOptions`] can keep it on the disk for the next time. Nothing is ever written
///   unasked. Several archives in one file are all read.
/// - **A sample** is read with one `pread` where its members are neighbours. What will be read next is told by
///   [`Source::hint`]. Descriptors are bounded, as for [`RecordFile`](crate::source::RecordFile).
/// - **Errors of one sample**, which a fault policy can skip: the same member twice in it ([`ErrorKind::DuplicateKey`]; a key that comes again further on is a sample of its
///   own), a required member that is missing ([`ErrorKind::MissingField`]), a sparse member
///   ([`ErrorKind::Unsupported`]), too many bytes ([`ErrorKind::LimitExceeded`]).
///   A shard that has changed since is [`ErrorKind::Truncated`] or [`ErrorKind::Corrupt`]; bytes that were overwritten in place go unnoticed.
/// - **A damaged shard** is refused, or kept up to the damage: [`OnDamage`].
///
/// The fingerprint is made from the shards' names (without folders), sizes and numbers of samples, and the rule for keys.
#[derive(Debug)]
pub struct Shards {
    bytes: Tars,
    indices: Vec<ShardIndex>,
    /// The first sample of each shard; their total at the end.
    firsts: Vec<u64>,
    rules: Rules,
    labels: Labels,
    report: ShardReport,
    fingerprint: u64,
    ahead: ReadAhead,
}

/// The shards' files.
#[derive(Debug)]
struct Tars(Files);

impl Shards {
    /// Opens the shards that `path` means: one archive, the archives of a folder (those whose names end in `.tar`, in the order of their names; not of
    /// the folders in it; compressed ones beside them are left out, counted in the report and warned of), or a pattern: `train-{000..147}.tar`, `{a,b}/{0..9}.tar`, nested too, as WebDataset reads them; a backslash takes
    /// the meaning from a brace. What exists under a name is never read as a pattern.
    ///
    /// # Errors
    /// Naming the shard: [`ErrorKind::Io`] where one does not exist (and how many do) or can't be read; [`ErrorKind::Truncated`],
    /// [`ErrorKind::Corrupt`] and [`ErrorKind::Empty`] for a damaged one, with byte offset and how many whole samples come before;
    /// [`ErrorKind::Unsupported`] for a compressed one: that is for [`ShardStream`](crate::source::ShardStream). [`ErrorKind::Empty`] also where there is no sample in
    /// any, [`ErrorKind::InvalidArgument`] for a pattern whose braces don't match, [`ErrorKind::InvalidConfig`] for no shards.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Self::options().open(path)
    }

    /// Opens a list of shards, in this order.
    ///
    /// # Errors
    /// As [`Shards::open`].
    pub fn open_all(paths: impl IntoIterator<Item = impl AsRef<Path>>) -> Result<Self> {
        Self::options().open_all(paths)
    }

    /// How shards are read, to be opened with other options than the defaults.
    pub fn options() -> ShardOptions {
        ShardOptions::default()
    }

    /// What was found.
    pub fn report(&self) -> &ShardReport {
        &self.report
    }

    /// Notes compressed archives that lie in the folder and are no part of the set.
    pub(super) fn leave_out(&mut self, packed: &[PathBuf]) {
        self.report.packed = packed.len() as u64;
        if let Some(first) = packed.first() {
            let (n, first) = (packed.len(), first.display());
            tracing::warn!(
                "{n} compressed shards lie beside plain ones and are left out, the first is {first}: ShardStream reads them"
            );
        }
    }

    pub(super) fn with(options: ShardOptions, paths: Vec<PathBuf>) -> Result<Self> {
        check_list(&paths)?;
        let mut stamps = Vec::new();
        let files = Files::open(&paths, |_, stamp| {
            stamps.push(stamp);
            Ok(())
        })?;
        let read = read_all(&files, &stamps, &paths, &options);
        let mut opened = Opened::default();
        for ((path, stamp), shard) in paths.iter().zip(&stamps).zip(read) {
            opened.add(path, *stamp, shard, options.damage)?;
        }
        opened.finish(files, options.rules)
    }

    fn total(&self) -> u64 {
        self.firsts.last().copied().unwrap_or(0)
    }

    /// The number of the shard that holds a sample, its index, and the sample's number in it.
    fn locate(&self, index: u64) -> Option<(usize, &ShardIndex, usize)> {
        let shard = self.firsts.partition_point(|&first| first <= index).checked_sub(1)?;
        let sample = index - self.firsts.get(shard)?;
        Some((shard, self.indices.get(shard)?, usize::try_from(sample).ok()?))
    }

    /// The error of a member that keeps its sample from being read.
    fn flaw(index: &ShardIndex, part: Part) -> Option<Error> {
        match part.flaw() {
            Flaw::None => None,
            Flaw::Sparse => Some(sparse()),
            Flaw::Duplicate => Some(duplicate(index.name(part))),
            Flaw::Large => Some(too_large()),
        }
    }

    fn fill(&self, (shard, index, sample): (usize, &ShardIndex, usize), bundle: &mut Bundle) -> Result<()> {
        let key = String::from_utf8_lossy(index.key(sample));
        let parts = index.parts(sample);
        bundle.restart(&key);
        for &part in parts {
            if let Some(error) = Self::flaw(index, part) {
                let place = Place { member: Some(format!("{key}.{}", index.name(part))), ..Place::default() };
                let offset = Some(part.range().start);
                return Err(error.at(Place { offset, ..place }));
            }
        }
        self.rules.limit(parts.iter().map(|part| u64::from(part.bytes)).sum())?;
        self.rules.complete(|| parts.iter().map(|part| index.name(*part)))?;
        let mut rest = parts;
        while let Some(first) = rest.first() {
            let near = rest.windows(2).take_while(|pair| {
                let gap = pair[1].range().start.checked_sub(pair[0].range().end);
                gap.is_some_and(|gap| gap <= GAP)
            });
            let (run, after) = rest.split_at(near.count() + 1);
            let start = first.range().start;
            let end = run.last().map_or(start, |part| part.range().end);
            let filled = bundle.filled();
            let len = usize::try_from(end - start).map_err(|_| too_large())?;
            self.bytes.0.read(shard, start, &mut [bundle.room(len)])?;
            for &part in run {
                let Range { start: from, end: to } = part.range();
                let within = filled + (from - start) as usize..filled + (to - start) as usize;
                bundle.name(index.name(part), within);
            }
            rest = after;
        }
        self.rules.note_class(bundle);
        Ok(())
    }
}

impl Source for Shards {
    type Record = Bundle;
    type Scratch = Bundle;

    fn len(&self) -> Option<u64> {
        Some(self.total())
    }

    fn fingerprint(&self) -> u64 {
        self.fingerprint
    }

    fn describe(&self, index: u64) -> Place {
        let Some((shard, in_shard, sample)) = self.locate(index) else { return Place::of_index(index) };
        let place = place_of(self.bytes.0.paths.get(shard));
        let member = String::from_utf8_lossy(in_shard.key(sample)).into_owned();
        let offset = in_shard.parts(sample).first().map(|part| part.range().start);
        Place { index: Some(index), member: Some(member), offset, ..place }
    }

    fn read<'a>(&'a self, index: u64, scratch: &'a mut Bundle) -> Result<&'a Bundle> {
        let found = self.locate(index).ok_or_else(|| out_of_range(index, self.total()))?;
        self.fill(found, scratch).map_err(|e| e.at(self.describe(index)))?;
        Ok(scratch)
    }

    fn hint(&self, upcoming: &[u64]) {
        let ranges = upcoming.iter().filter_map(|&index| {
            let (shard, in_shard, sample) = self.locate(index)?;
            Some((shard, in_shard.extent(sample)?))
        });
        self.ahead.advise(&self.bytes, ranges);
    }
}

impl Pictures for Shards {
    fn labels(&self) -> Labels {
        self.labels
    }

    fn picture<'r>(&self, record: &'r Bundle) -> Result<Picture<'r>> {
        self.rules.picture(self.labels, record)
    }
}

impl Advise for Tars {
    fn residence(&self, file: usize, at: u64) -> Residence {
        self.0.with(file, |file| residence_of_file(file, at)).unwrap_or(Residence::Unknown)
    }

    fn will_need(&self, file: usize, range: Range<u64>) {
        let _ = self.0.with(file, |file| will_need_file(file, range));
    }
}

fn too_large() -> Error {
    Error::new(ErrorKind::LimitExceeded, "a member of 4 GiB or more is not read by index")
}

/// What becomes known of the shards, one after the other.
#[derive(Default)]
struct Opened {
    indices: Vec<ShardIndex>,
    firsts: Vec<u64>,
    total: u64,
    tally: Tally,
    members: BTreeMap<String, u64>,
    names: u64,
    first_damage: Option<Error>,
    first_unmarked: Option<PathBuf>,
}

impl Opened {
    fn add(&mut self, path: &Path, stamp: Stamp, shard: Indexed, on: OnDamage) -> Result<()> {
        let Indexed { index, mut tally, damage } = shard;
        if let Some(error) = damage {
            let error = error.at(place_of(path));
            let damaged = matches!(
                error.kind(),
                ErrorKind::Truncated | ErrorKind::Corrupt | ErrorKind::Empty | ErrorKind::LimitExceeded
            );
            if !damaged || on == OnDamage::Fail {
                return Err(error);
            }
            tally.damaged = 1;
            self.first_damage.get_or_insert(error);
        }
        if tally.unmarked > 0 {
            self.first_unmarked.get_or_insert_with(|| path.to_path_buf());
        }
        self.tally.add(&tally);
        let mut counts = vec![0u64; index.names.len()];
        for part in &index.parts {
            if let Some(count) = counts.get_mut(part.name() as usize) {
                *count += 1;
            }
        }
        for (name, count) in index.names.iter().zip(counts) {
            match self.members.get_mut(name) {
                Some(sum) => *sum += count,
                None => drop(self.members.insert(name.clone(), count)),
            }
        }
        let name = path.file_name().unwrap_or_default().as_encoded_bytes();
        self.names = key(&[self.names, key_of_bytes(name), stamp.bytes, index.len() as u64]);
        self.firsts.push(self.total);
        self.total += index.len() as u64;
        self.indices.push(index);
        Ok(())
    }

    fn finish(mut self, files: Files, rules: Rules) -> Result<Shards> {
        let shards = self.indices.len() as u64;
        self.firsts.push(self.total);
        let report = ShardReport { shards, tally: self.tally, members: self.members, packed: 0 };
        if let Some(error) = self.first_damage {
            tracing::warn!(
                "{} of {shards} shards are damaged and read up to there, the first of them: {error}",
                report.damaged()
            );
        }
        if let Some(path) = self.first_unmarked {
            tracing::warn!(
                "{} of {shards} shards have no end mark, so that they may have been cut between two members; the first of them is {}",
                report.unmarked(),
                path.display()
            );
        }
        if self.total == 0 {
            return Err(Error::new(ErrorKind::Empty, format!("there is no sample in the shards: {report}"))
                .at(place_of(files.paths.get(0))));
        }
        let with_class: u64 = self.indices.iter().map(|index| index.samples_with(&rules.class)).sum();
        let labels = rules.labels(with_class > 0);
        if labels == Labels::Class && with_class < self.total {
            let (lack, total) = (self.total - with_class, self.total);
            tracing::warn!("{lack} of {total} samples have no `{}`, and so no class", rules.class);
        }
        Ok(Shards {
            bytes: Tars(files),
            indices: self.indices,
            firsts: self.firsts,
            labels,
            report,
            fingerprint: key(&[u64::from_le_bytes(*b"shards\0\0"), self.names, rules.key as u64]),
            rules,
            ahead: ReadAhead::default(),
        })
    }
}

/// Reads the headers of all shards, several at a time.
fn read_all(files: &Files, stamps: &[Stamp], paths: &[PathBuf], options: &ShardOptions) -> Vec<Indexed> {
    let next = AtomicUsize::new(0);
    let work = || {
        let mut done = Vec::new();
        loop {
            let number = next.fetch_add(1, Relaxed);
            let (Some(path), Some(stamp)) = (paths.get(number), stamps.get(number)) else { return done };
            done.push((number, read_one(files, number, path, *stamp, options)));
        }
    };
    let readers = READERS.min(paths.len());
    let mut all = std::thread::scope(|scope| {
        // One is this thread; where there can be no more, it does it all.
        let spawn =
            |_| std::thread::Builder::new().name("warpfeed-index".to_string()).spawn_scoped(scope, work).ok();
        let others: Vec<_> = (1..readers).filter_map(spawn).collect();
        let mut all = work();
        for other in others {
            match other.join() {
                Ok(done) => all.extend(done),
                Err(payload) => std::panic::resume_unwind(payload),
            }
        }
        all
    });
    all.sort_unstable_by_key(|(number, _)| *number);
    all.into_iter().map(|(_, indexed)| indexed).collect()
}

fn read_one(files: &Files, number: usize, path: &Path, stamp: Stamp, options: &ShardOptions) -> Indexed {
    let cache = options.cache.as_ref().map(|cache| cache::file(cache, path));
    let kept = cache.as_ref().map(|cache| cache::load(cache, stamp, options.rules.key));
    let stale = match kept {
        Some(cache::Kept::Fits(index, tally)) => return Indexed { index, tally, damage: None },
        Some(cache::Kept::Stale(samples)) => samples,
        Some(cache::Kept::None) | None => None,
    };
    let mut input = Headers { files, number, len: stamp.bytes, at: 0, window: Vec::new(), start: 0 };
    let mut indexed = index::read(&mut input, &options.rules);
    if let Some(error) = indexed.damage.take() {
        let mut text = error.message().to_string();
        if error.kind() == ErrorKind::Unsupported {
            text += ": unpack it, or read it in sequence with ShardStream";
        }
        if let Some(samples) = stale {
            text += &format!("; the index that was kept of it counts {samples}");
        }
        let place = error.place().clone();
        indexed.damage = Some(Error::new(error.kind(), text).at(place).caused_by(error));
    } else if let Some(cache) = cache {
        cache::store(&cache, stamp, options.rules.key, &indexed.index, &indexed.tally);
    }
    indexed
}

/// A shard of which the headers are read, by position.
struct Headers<'a> {
    files: &'a Files,
    number: usize,
    len: u64,
    at: u64,
    window: Vec<u8>,
    /// Where the window lies.
    start: u64,
}

impl Input for Headers<'_> {
    fn fill(&mut self, to: &mut [u8]) -> Result<usize> {
        let there = self.len.saturating_sub(self.at);
        let wanted = to.len().min(usize::try_from(there).unwrap_or(usize::MAX));
        let to = &mut to[..wanted];
        if wanted > WINDOW {
            self.files.read(self.number, self.at, &mut [to])?;
        } else {
            let end = self.start + self.window.len() as u64;
            if self.at < self.start || self.at + wanted as u64 > end {
                self.window.resize(WINDOW.min(usize::try_from(there).unwrap_or(WINDOW)), 0);
                self.start = self.at;
                let read = self.files.read(self.number, self.at, &mut [&mut self.window]);
                read.inspect_err(|_| self.window.clear())?;
            }
            let from = (self.at - self.start) as usize; // within the window
            to.copy_from_slice(&self.window[from..from + wanted]);
        }
        self.at += wanted as u64;
        Ok(wanted)
    }

    fn skip(&mut self, bytes: u64) -> Result<u64> {
        let skipped = bytes.min(self.len.saturating_sub(self.at));
        self.at += skipped;
        Ok(skipped)
    }

    fn len(&self) -> Option<u64> {
        Some(self.len)
    }
}

#[cfg(test)]
impl Shards {
    pub(super) fn indices_are(&self) -> &[ShardIndex] {
        &self.indices
    }

    /// Bytes of memory that the indices take, and how many of them are keys.
    pub(super) fn index_memory(&self) -> (usize, usize) {
        let keys = self.indices.iter().map(|index| index.keys.len()).sum();
        (self.indices.iter().map(ShardIndex::memory).sum(), keys)
    }
}

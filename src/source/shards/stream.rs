//! Shards that are read one after the other.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::name::MemberName;
use super::packed::Packed;
use super::report::{ShardReport, Tally};
use super::walk::{self, Input, Kind, Member, Walk};
use super::{OnDamage, Rules, ShardOptions, check_list, duplicate, place_of, sparse, within};
use crate::error::{Error, ErrorKind, Place, Result};
use crate::random::{SampleRng, key, key_of_bytes};
use crate::source::picture::{Labels, Picture, Pictures};
use crate::source::{Bundle, Shards, Source};

const TAG: u64 = u64::from_le_bytes(*b"shardseq");
/// Where it is not known how many bytes there are, memory is taken for so many at a time.
const STEP: u64 = 1 << 20;

/// WebDataset shards, plain or compressed, as a sequence of samples.
///
/// What a sample is, which members are skipped and what its errors are is as for [`Shards`]. Each shard is read from its first byte to its last:
/// plain, with gzip (also in several pieces) or with zstd, which is told by its content. That suits disks that are slow to
/// seek, and compressed shards, which can't be read otherwise. Where the shards are plain and on a disk of your own, [`Shards`] shuffles
/// better and resumes at once.
///
/// ```no_run
/// use warpfeed::source::{ShardStream, SourceExt};
/// let source = ShardStream::open("train-{000..147}.tar.gz")?.shuffle_shards(7).shuffle_buffer(5_000, 7)?;
/// # Ok::<(), warpfeed::Error>(())
/// ```
///
/// - **Order.** That of the list, or shuffled anew for each epoch ([`ShardStream::shuffle_shards`]); samples are shuffled on top by
///   [`SourceExt::shuffle_buffer`](crate::source::SourceExt::shuffle_buffer).
/// - **Ranks.** A loader's `shard` lets every rank read everything and keep each `count`-th sample. With
///   [`ShardStream::split_shards`] a rank reads only shards of its own: use one of the two, not both.
/// - **Threads.** Samples are pulled, and compressed shards unpacked, by one thread, the loader's feeder; decoding is done by all workers. A sample's memory is the
///   row's, and reused.
/// - **Classes.** The first sample alone tells whether the samples have a class: where it has no `cls`, there is no label, whatever later ones have;
///   where it has one, each must. `Shards::options().class("cls")` says that all have one, whatever the first is like.
/// - **Damage.** The whole samples before it come, then the error in the place of a sample, then the next shard's; or it is skipped
///   and counted ([`OnDamage::Skip`]). A checksum of gzip or zstd is known to be wrong only once its data has been read.
///   Offsets in errors are counted in the unpacked archive.
/// - **Resuming** reads and drops what came before in the epoch.
///
/// The fingerprint is made from the shards' names (without folders) and sizes, the rule for keys, the shuffle and the split.
pub struct ShardStream {
    paths: Vec<PathBuf>,
    rules: Rules,
    damage: OnDamage,
    names: u64,
    shuffle: Option<u64>,
    rank: (u64, u64),
    labels: Labels,
    state: Mutex<State>,
}

/// How far an epoch is.
#[derive(Default)]
struct State {
    /// The shards that are still to be read, the last first.
    order: Vec<usize>,
    current: Option<Open>,
    shards: u64,
    tally: Tally,
    members: BTreeMap<String, u64>,
}

impl ShardStream {
    /// Opens the shards that `path` means, as [`Shards::open`] has it, and looks for the first sample. In a folder, archives that end in
    /// `.tar.gz`, `.tgz`, `.tar.zst`, `.tar.zstd` and `.tzst` count too.
    ///
    /// # Errors
    /// Naming the shard: [`ErrorKind::Io`] where one does not exist (and how many do) or the first can't be read, [`ErrorKind::Unsupported`] for one with another
    /// compression, the error of the damage where no shard has a sample before it. [`ErrorKind::Empty`] where there is no
    /// sample, [`ErrorKind::InvalidArgument`] for a pattern whose braces don't match, [`ErrorKind::InvalidConfig`] for no shards.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Shards::options().stream(path)
    }

    /// Opens a list of shards, in this order.
    ///
    /// # Errors
    /// As [`ShardStream::open`].
    pub fn open_all(paths: impl IntoIterator<Item = impl AsRef<Path>>) -> Result<Self> {
        Shards::options().stream_all(paths)
    }

    /// Shuffles the order of the shards for each epoch, keyed by `seed` and the epoch.
    #[must_use]
    pub fn shuffle_shards(mut self, seed: u64) -> Self {
        self.shuffle = Some(seed);
        self
    }

    /// Keeps the shards of one rank of `world`: each `world`-th of an epoch's order, from number `rank`. Shuffled, a rank has other
    /// shards each epoch. Ranks may have different numbers of samples; leave the loader's `shard` alone.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] where `rank` is not below `world`, and where there are fewer shards than ranks.
    pub fn split_shards(mut self, rank: u64, world: u64) -> Result<Self> {
        let shards = self.paths.len();
        if rank >= world || (shards as u64) < world {
            let text = format!(
                "rank {rank} of {world} can't have its part of {shards} shards: there must be at least one for each rank"
            );
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        }
        self.rank = (rank, world);
        Ok(self)
    }

    /// What was read since the stream was opened last.
    pub fn report(&self) -> ShardReport {
        let state = self.state();
        let (tally, members) = (state.tally.clone(), state.members.clone());
        ShardReport { shards: state.shards, tally, members, packed: 0 }
    }

    pub(super) fn with(options: ShardOptions, paths: Vec<PathBuf>) -> Result<Self> {
        if options.cache.is_some() {
            let text =
                "a stream of shards has no index to keep: leave cache_index out, or open the shards by index";
            return Err(Error::new(ErrorKind::InvalidConfig, text));
        }
        check_list(&paths)?;
        let mut names = 0;
        for path in &paths {
            let meta =
                std::fs::metadata(path).map_err(|e| Error::io(path, "the shard can't be examined", e))?;
            let name = path.file_name().unwrap_or_default().as_encoded_bytes();
            names = key(&[names, key_of_bytes(name), meta.len()]);
        }
        let labels = first_labels(&paths, &options.rules)?;
        Ok(Self {
            paths,
            names,
            rules: options.rules,
            damage: options.damage,
            shuffle: None,
            rank: (0, 1),
            labels,
            state: Mutex::default(),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner) // nothing panics under it
    }

    /// This rank's shards of an epoch, the last first.
    fn order(&self, epoch: u64) -> Vec<usize> {
        let mut all: Vec<usize> = (0..self.paths.len()).collect();
        if let Some(seed) = self.shuffle {
            let mut draw = SampleRng::from_key(key(&[TAG, seed, epoch]));
            for at in (1..all.len()).rev() {
                all.swap(at, draw.below(at as u64 + 1) as usize);
            }
        }
        let (rank, world) = (self.rank.0 as usize, self.rank.1 as usize); // at most as many as there are shards
        let mut own: Vec<usize> = all.into_iter().skip(rank).step_by(world.max(1)).collect();
        own.reverse();
        own
    }
}

impl fmt::Debug for ShardStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShardStream").field("shards", &self.paths.len()).finish_non_exhaustive()
    }
}

/// What every sample is labelled with, by the first one that can be read.
fn first_labels(paths: &[PathBuf], rules: &Rules) -> Result<Labels> {
    let mut first_error = None;
    let (mut bundle, mut tally) = (Bundle::default(), Tally::default());
    for path in paths {
        let mut shard = Open::new(path)?;
        match shard.next(rules, &mut bundle, &mut tally) {
            // A sample that can't be had tells by the names of its members.
            Next::Sample | Next::Bad(_) => return Ok(rules.labels(bundle.member(&rules.class).is_some())),
            Next::Damaged(e) if e.kind() == ErrorKind::Unsupported => return Err(e),
            Next::Damaged(e) => drop(first_error.get_or_insert(e)),
            Next::End => {}
        }
    }
    Err(first_error.unwrap_or_else(|| {
        let place = paths.first().map(|path| place_of(path)).unwrap_or_default();
        Error::new(ErrorKind::Empty, "there is no sample in the shards").at(place)
    }))
}

impl Source for ShardStream {
    type Record = Bundle;
    type Scratch = Bundle;

    fn len(&self) -> Option<u64> {
        None
    }

    fn fingerprint(&self) -> u64 {
        let shuffle = [u64::from(self.shuffle.is_some()), self.shuffle.unwrap_or(0)];
        key(&[TAG, self.names, self.rules.key as u64, shuffle[0], shuffle[1], self.rank.0, self.rank.1])
    }

    fn read<'a>(&'a self, index: u64, scratch: &'a mut Bundle) -> Result<&'a Bundle> {
        if scratch.key().is_empty() {
            let text = "a sample of a stream is pulled before it is read";
            return Err(Error::new(ErrorKind::InvalidArgument, text).at(Place::of_index(index)));
        }
        Ok(scratch)
    }

    fn open(&self, epoch: u64) -> Result<bool> {
        *self.state() = State { order: self.order(epoch), ..State::default() };
        Ok(true)
    }

    fn pull(&self, scratch: &mut Bundle) -> Result<bool> {
        let mut state = self.state();
        let State { order, current, shards, tally, members } = &mut *state;
        loop {
            let shard = match current {
                Some(shard) => shard,
                None => {
                    let Some(path) = order.pop().and_then(|number| self.paths.get(number)) else {
                        return Ok(false);
                    };
                    *shards += 1;
                    current.insert(Open::new(path)?)
                }
            };
            match shard.next(&self.rules, scratch, tally) {
                Next::Sample => {
                    for (name, bytes) in scratch.members() {
                        tally.bytes += bytes.len() as u64;
                        match members.get_mut(name) {
                            Some(count) => *count += 1,
                            None => drop(members.insert(name.to_string(), 1)),
                        }
                    }
                    return Ok(true);
                }
                Next::Bad(error) => return Err(error),
                Next::End => *current = None,
                Next::Damaged(error) => {
                    *current = None;
                    let damaged = !matches!(error.kind(), ErrorKind::Io | ErrorKind::Unsupported);
                    if damaged {
                        tally.damaged += 1;
                    }
                    if !damaged || self.damage == OnDamage::Fail {
                        return Err(error);
                    }
                    if tally.damaged == 1 {
                        tracing::warn!(
                            "damaged shards are read up to there, the first of this epoch: {error}"
                        );
                    }
                }
            }
        }
    }
}

impl Pictures for ShardStream {
    fn labels(&self) -> Labels {
        self.labels
    }

    fn picture<'r>(&self, record: &'r Bundle) -> Result<Picture<'r>> {
        self.rules.picture(self.labels, record)
    }

    fn place(&self, record: &Bundle) -> Place {
        record.place()
    }
}

/// A shard that is being read.
pub(super) struct Open {
    path: Arc<Path>,
    input: Packed,
    walk: Walk,
    /// The first member of the next sample, of which the header has been read.
    pending: Option<Member>,
    /// What is wrong behind the last sample.
    damage: Option<Error>,
    ended: bool,
    key: Vec<u8>,
    /// The members of the first sample.
    first: Option<Vec<String>>,
    samples: u64,
}

/// What came next in a shard.
pub(super) enum Next {
    Sample,
    /// A sample that can't be had.
    Bad(Error),
    /// Nothing more can be had of the shard.
    Damaged(Error),
    End,
}

impl Open {
    fn new(path: &Path) -> Result<Self> {
        Ok(Self::of(path, Packed::open(path).map_err(|e| e.at(place_of(path)))?))
    }

    /// A shard at `path` with the bytes of `input`.
    pub(super) fn of(path: &Path, input: Packed) -> Self {
        Self {
            path: path.into(),
            input,
            walk: Walk::default(),
            pending: None,
            damage: None,
            ended: false,
            key: Vec::new(),
            first: None,
            samples: 0,
        }
    }

    fn damaged(&self, error: Error) -> Next {
        let unpacked =
            if self.input.len().is_none() { " (bytes are counted in the unpacked archive)" } else { "" };
        let text = format!("{}; {} whole samples come before{unpacked}", error.message(), self.samples);
        let place = error.place().clone();
        Next::Damaged(Error::new(error.kind(), text).at(place).at(place_of(&self.path)).caused_by(error))
    }

    /// Reads the next sample. Whatever comes, `bundle` has the key and the members that were read, or no key.
    pub(super) fn next(&mut self, rules: &Rules, bundle: &mut Bundle, tally: &mut Tally) -> Next {
        bundle.restart("");
        if let Some(error) = self.damage.take() {
            self.ended = true;
            return self.damaged(error);
        }
        let mut fault = None;
        let mut total = 0u64;
        while !self.ended {
            let member =
                match self.pending.take().map_or_else(|| self.walk.next(&mut self.input), |m| Ok(Some(m))) {
                    Ok(Some(member)) => member,
                    Ok(None) => {
                        self.ended = true;
                        if self.walk.position() == 0 {
                            return self
                                .damaged(Error::new(ErrorKind::Empty, "the shard has not a single byte"));
                        }
                        tally.unmarked += u64::from(!self.walk.marked());
                        break;
                    }
                    Err(error) => {
                        // Whether the sample had more members is known behind an end mark only: else it is whole if it has what the
                        // first has.
                        let like_first = self
                            .first
                            .as_ref()
                            .is_some_and(|first| first.iter().all(|name| bundle.member(name).is_some()));
                        if !bundle.key().is_empty() && (like_first || self.walk.marked()) {
                            self.damage = Some(error);
                            break;
                        }
                        self.ended = true;
                        return self.damaged(error);
                    }
                };
            if let Kind::Other(reason) = member.kind {
                tally.skip(reason);
                continue;
            }
            let (key, field) = match rules.key.read(&member.name) {
                MemberName::Part { key, field } => (key, field),
                MemberName::Skipped(reason) => {
                    tally.skip(reason);
                    continue;
                }
            };
            if bundle.key().is_empty() {
                self.key.clear();
                self.key.extend_from_slice(key);
                bundle.restart(&String::from_utf8_lossy(key));
            } else if key != self.key {
                self.pending = Some(member);
                break;
            }
            if let Some(found) = member.cut {
                self.ended = true;
                return self.damaged(walk::cut(&member, found));
            }
            total = total.saturating_add(member.bytes);
            let flaw = match member.kind {
                Kind::Sparse => Some(sparse()),
                _ if bundle.member(&field).is_some() => Some(duplicate(&field)),
                _ => rules.limit(total).err(),
            };
            let at = |error: Error| error.at(within(place_of(&self.path), member.text(), member.data));
            if flaw.is_some() || fault.is_some() {
                fault = fault.or(flaw.map(at));
                bundle.name(&field, 0..0); // its name tells what the sample has; nobody reads a sample that can't be had
            } else if let Err(error) = take(&mut self.input, &mut self.walk, &member, &field, bundle) {
                self.ended = true;
                return self.damaged(error);
            }
        }
        if bundle.key().is_empty() { Next::End } else { self.finish(rules, bundle, fault, tally) }
    }

    fn finish(
        &mut self,
        rules: &Rules,
        bundle: &mut Bundle,
        fault: Option<Error>,
        tally: &mut Tally,
    ) -> Next {
        self.samples += 1;
        tally.samples += 1;
        let names = || bundle.members().map(|(name, _)| name);
        if self.first.is_none() {
            self.first = Some(names().map(str::to_string).collect());
        }
        let fault = fault.or_else(|| rules.complete(names).err());
        match fault {
            Some(fault) => {
                let member = Some(bundle.key().to_string());
                Next::Bad(fault.at(Place { member, ..place_of(&self.path) }))
            }
            None => {
                rules.note_class(bundle);
                bundle.set_shard(&self.path);
                Next::Sample
            }
        }
    }
}

/// Takes the data of a member into the bundle.
fn take(
    input: &mut Packed,
    walk: &mut Walk,
    member: &Member,
    field: &str,
    bundle: &mut Bundle,
) -> Result<()> {
    let start = bundle.filled();
    let mut left = member.bytes;
    // As many as there are for certain, or a few more than there are.
    let most = if input.len().is_some() { u64::MAX } else { STEP };
    while left > 0 {
        let step = left.min(most) as usize; // within the limit on a sample
        let at = Place { offset: Some(walk.position()), member: Some(member.text()), ..Place::default() };
        let found = input.fill(bundle.room(step)).map_err(|e| e.at(at.clone()))?;
        walk.took(found as u64);
        if found < step {
            return Err(walk::cut(member, member.bytes - left + found as u64).at(at));
        }
        left -= step as u64;
    }
    bundle.name(field, start..bundle.filled());
    Ok(())
}

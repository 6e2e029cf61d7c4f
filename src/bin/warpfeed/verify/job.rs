//! What is verified: a set whose samples are read by index, or shards that can only be read in sequence.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;
use std::sync::Arc;
#[cfg(feature = "tar")]
use std::sync::{
    Mutex, PoisonError,
    atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
};

use serde_json::{Value, json};
#[cfg(feature = "tar")]
use warpfeed::ErrorKind;
use warpfeed::decode::codec::{Codec, Color, Wish};
#[cfg(feature = "tar")]
use warpfeed::source::Dataset;
#[cfg(feature = "tar")]
use warpfeed::source::ShardStream;
use warpfeed::source::{Bundle, Pictures, Source};
use warpfeed::{Error, Place, Result};

#[cfg(feature = "tar")]
use crate::images::line;
use crate::images::{Check, Found, FoundAll, Look, place};

/// What is known of a sample that is good.
pub(super) struct Good {
    pub(super) index: u64,
    /// What it is, and where, if its name says otherwise.
    pub(super) misnamed: Option<String>,
    /// The hash of its key, where samples are known by keys.
    pub(super) key: Option<u64>,
}

pub(super) struct Job {
    input: Input,
    /// What is wrong that no sample shows, and in which split.
    pub(super) flaws: Vec<(Option<String>, Error)>,
}

enum Input {
    /// One, or the splits of one, whose samples are numbered through.
    Sets(Vec<Found>),
    #[cfg(feature = "tar")]
    Stream(Arc<Stream>),
}

/// Shards that are compressed.
#[cfg(feature = "tar")]
struct Stream {
    shards: ShardStream,
    place: Place,
    /// A record is taken, and numbered, by one thread at a time.
    turn: Mutex<()>,
    /// Records that were taken, the one that is being taken counted.
    pulled: AtomicU64,
    /// Whether the one that is being taken is the last, for all that is known.
    over: AtomicBool,
}

impl Job {
    /// # Errors
    /// As [`Found::open`].
    pub(super) fn open(path: &Path, split: Option<&str>) -> Result<Self> {
        let found = match split {
            None => Found::open_all(path),
            Some(_) => {
                Found::open(path, split).map(|found| FoundAll { sets: vec![found], ..Default::default() })
            }
        };
        match found {
            Ok(FoundAll { mut sets, unopened }) => {
                let mut flaws: Vec<_> = unopened.into_iter().map(|(name, e)| (Some(name), e)).collect();
                for found in &mut sets {
                    let split = found.split.clone();
                    flaws.extend(found.flaws.drain(..).map(|e| (split.clone(), e)));
                }
                Ok(Self { input: Input::Sets(sets), flaws })
            }
            #[cfg(feature = "tar")]
            Err(error) if error.kind() == ErrorKind::Unsupported && error.place().shard.is_some() => {
                let Ok(shards) = ShardStream::open(path) else { return Err(error) };
                shards.open(0)?;
                let mut place = Place::default();
                place.path = Some(path.to_path_buf());
                let turn = Mutex::new(());
                let (pulled, over) = (AtomicU64::new(0), AtomicBool::new(false));
                let stream = Arc::new(Stream { shards, place, turn, pulled, over });
                Ok(Self { input: Input::Stream(stream), flaws: Vec::new() })
            }
            Err(error) => Err(error),
        }
    }

    /// How many samples there are, where that is known.
    pub(super) fn len(&self) -> Option<u64> {
        match &self.input {
            Input::Sets(sets) => Some(sets.iter().map(|found| found.set.len().unwrap_or(0)).sum()),
            #[cfg(feature = "tar")]
            Input::Stream(_) => None,
        }
    }

    /// What is to be done for each number; `None` behind the last sample.
    pub(super) fn check(&self) -> Check<(Bundle, Codec), Option<Good>> {
        match &self.input {
            Input::Sets(sets) => {
                let sets: Vec<_> = sets.iter().map(|found| found.set.clone()).collect();
                Arc::new(move |scratch, number| {
                    let Some((set, index)) = locate(&sets, number, |set| set.len()) else { return Ok(None) };
                    #[cfg(feature = "tar")]
                    let keyed = matches!(**set, Dataset::Shards(_));
                    #[cfg(not(feature = "tar"))]
                    let keyed = false;
                    decode(&**set, index, scratch, keyed).map(Some)
                })
            }
            #[cfg(feature = "tar")]
            Input::Stream(stream) => {
                let stream = stream.clone();
                Arc::new(move |scratch, _| stream.next(scratch))
            }
        }
    }

    /// Where sample `number` lies.
    pub(super) fn place(&self, number: u64) -> Place {
        match &self.input {
            Input::Sets(sets) => locate(sets, number, |found| found.set.len())
                .map_or_else(Place::default, |(found, index)| place(&*found.set, index)),
            #[cfg(feature = "tar")]
            Input::Stream(stream) => stream.place.clone(),
        }
    }

    /// The split that sample `number` is of.
    pub(super) fn split(&self, number: u64) -> Option<&str> {
        match &self.input {
            Input::Sets(sets) => locate(sets, number, |found| found.set.len())?.0.split.as_deref(),
            #[cfg(feature = "tar")]
            Input::Stream(_) => None,
        }
    }

    /// How a loader opens what is here, where it does not by default.
    pub(super) fn advice(&self) -> Vec<String> {
        let mut advice: Vec<String> = match &self.input {
            Input::Sets(sets) => sets.iter().filter_map(|found| found.advice.clone()).collect(),
            #[cfg(feature = "tar")]
            Input::Stream(_) => Vec::new(),
        };
        advice.sort();
        advice.dedup();
        advice
    }

    /// Whether `seen` samples are all of them.
    #[cfg_attr(not(feature = "tar"), allow(unused_variables, reason = "sets have a length"))]
    pub(super) fn is_over(&self, seen: u64) -> bool {
        match &self.input {
            Input::Sets(_) => false, // they have a length
            #[cfg(feature = "tar")]
            Input::Stream(stream) => stream.over.load(SeqCst) && stream.pulled.load(SeqCst) <= seen,
        }
    }

    /// What was found, for people and for programs.
    pub(super) fn found(&self) -> (String, Value) {
        match &self.input {
            Input::Sets(sets) => {
                let texts: Vec<String> = sets.iter().map(Found::text).collect();
                let facts = match sets.as_slice() {
                    [only] => only.facts(),
                    all => {
                        let splits: Vec<Value> = all.iter().map(Found::facts).collect();
                        json!({ "kind": "detection", "splits": splits })
                    }
                };
                (texts.join("\n"), facts)
            }
            #[cfg(feature = "tar")]
            Input::Stream(stream) => {
                let report = stream.shards.report();
                let facts = json!({
                    "kind": "compressed shards",
                    "shards": report.shards(),
                    "damaged": report.damaged(),
                    "members": report.members().collect::<std::collections::BTreeMap<_, _>>(),
                });
                (line(&format!("compressed tar shards: {report}")), facts)
            }
        }
    }
}

#[cfg(feature = "tar")]
impl Stream {
    fn next(&self, scratch: &mut (Bundle, Codec)) -> Result<Option<Good>> {
        let index = {
            let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
            if self.over.load(SeqCst) {
                return Ok(None);
            }
            // Over until shown otherwise: a pull that panics, or never comes back, is the last one.
            let index = self.pulled.fetch_add(1, SeqCst);
            self.over.store(true, SeqCst);
            let pulled = self.shards.pull(&mut scratch.0);
            if matches!(pulled, Ok(false)) {
                self.pulled.fetch_sub(1, SeqCst);
                return Ok(None);
            }
            self.over.store(false, SeqCst);
            pulled.map_err(|e| e.at(Place::of_index(index)))?;
            index
        };
        let place = self.shards.place(&scratch.0);
        decode(&self.shards, index, scratch, true).map(Some).map_err(|e| e.at(place).at(self.place.clone()))
    }
}

/// The one of `all` that has the sample `number` of all of them, and which of its samples that is.
fn locate<T>(all: &[T], number: u64, len: impl Fn(&T) -> Option<u64>) -> Option<(&T, u64)> {
    let mut index = number;
    for one in all {
        let len = len(one).unwrap_or(0);
        match index.checked_sub(len) {
            Some(rest) => index = rest,
            None => return Some((one, index)),
        }
    }
    None
}

/// Decodes a sample in full.
fn decode<S>(set: &S, index: u64, (bundle, codec): &mut (Bundle, Codec), keyed: bool) -> Result<Good>
where
    S: Pictures<Record = Bundle, Scratch = Bundle>,
{
    let look = Look::at(set, index, bundle)?;
    let wish = Wish::new(&look.head, Color::Rgb8);
    codec.decode(look.picture.bytes, &look.head, &wish).map_err(|e| e.at(place(set, index)))?;
    let is = look.misnamed.map(|extension| format!("a {} called .{extension}", look.head.format.name()));
    let misnamed = is.map(|is| format!("{is}: {}", name(&place(set, index), bundle)));
    let key = keyed.then(|| {
        let mut hasher = DefaultHasher::new();
        bundle.key().hash(&mut hasher);
        hasher.finish()
    });
    Ok(Good { index, misnamed, key })
}

/// The file of a sample, or its shard and key.
fn name(place: &Place, bundle: &Bundle) -> String {
    match (&place.path, &place.shard) {
        (Some(path), None) => path.display().to_string(),
        (Some(path), Some(_)) => format!("{} in {}", bundle.key(), path.display()),
        (None, _) => bundle.key().to_string(),
    }
}

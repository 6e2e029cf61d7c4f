//! What must hold of the parsers whatever they are given: called by fuzz targets and by the tests.

#![cfg_attr(not(fuzzing), allow(unreachable_pub, reason = "public for fuzz targets alone"))]

use std::io::Cursor;
use std::path::Path;

use super::index::{self, Flaw, ShardIndex};
use super::name::KeyRule;
use super::packed::Packed;
use super::report::Tally;
use super::stream::{Next, Open};
use super::walk::{BLOCK, Input};
use super::{Rules, cache, pattern as braces};
use crate::error::{Error, ErrorKind, Result};
use crate::source::Bundle;
use crate::source::files::Stamp;

/// An archive in memory, of which the headers are read.
struct Bytes<'a> {
    all: &'a [u8],
    at: usize,
}

impl Input for Bytes<'_> {
    fn fill(&mut self, to: &mut [u8]) -> Result<usize> {
        let rest = &self.all[self.at..];
        let found = rest.len().min(to.len());
        to[..found].copy_from_slice(&rest[..found]);
        self.at += found;
        Ok(found)
    }

    fn skip(&mut self, bytes: u64) -> Result<u64> {
        let found = bytes.min((self.all.len() - self.at) as u64);
        self.at += found as usize;
        Ok(found)
    }

    fn len(&self) -> Option<u64> {
        Some(self.all.len() as u64)
    }
}

/// A sample: its key and its members, or nothing of them where it can't be had.
#[derive(Debug, PartialEq, Eq)]
struct Sample {
    key: String,
    members: Option<Vec<(String, Vec<u8>)>>,
}

/// What lies where the index points.
fn indexed(index: &ShardIndex, bytes: &[u8]) -> Vec<Sample> {
    let sample = |number| {
        let parts = index.parts(number);
        let member = |&part: &index::Part| {
            let range = part.range();
            let data = bytes.get(range.start as usize..range.end as usize).map(<[u8]>::to_vec);
            data.filter(|_| part.flaw() == Flaw::None).map(|data| (index.name(part).to_string(), data))
        };
        Sample {
            key: String::from_utf8_lossy(index.key(number)).into_owned(),
            members: parts.iter().map(member).collect(),
        }
    };
    (0..index.len()).map(sample).collect()
}

/// What comes of reading in sequence, and the damage at the end.
fn streamed(bytes: &[u8], rules: &Rules) -> (Vec<Sample>, Tally, Option<Error>) {
    let (mut all, mut tally, mut bundle) = (Vec::new(), Tally::default(), Bundle::default());
    let file = Cursor::new(bytes.to_vec());
    let input = match Packed::of(file, bytes.len() as u64) {
        Ok(input) => input,
        Err(_) => return (all, tally, None),
    };
    let mut shard = Open::of(Path::new("shard.tar"), input);
    loop {
        let members = match shard.next(rules, &mut bundle, &mut tally) {
            Next::Sample => {
                Some(bundle.members().map(|(name, data)| (name.to_string(), data.to_vec())).collect())
            }
            Next::Bad(_) => None,
            Next::Damaged(e) => return (all, tally, Some(e)),
            Next::End => return (all, tally, None),
        };
        all.push(Sample { key: bundle.key().to_string(), members });
        assert!(all.len() as u64 <= tally.samples && tally.samples < 1 << 20);
    }
}

/// An archive, read by index and in sequence. What is packed is read in sequence alone.
pub fn tar(bytes: &[u8]) {
    for key in [KeyRule::FirstDot, KeyRule::LastDot] {
        let rules = Rules { key, most: 1 << 20, ..Rules::default() };
        let by_index = index::read(&mut Bytes { all: bytes, at: 0 }, &rules);
        let (in_turn, tally, damage) = streamed(bytes, &rules);
        if by_index.damage.as_ref().is_some_and(|e| e.kind() == ErrorKind::Unsupported) {
            assert!(by_index.index.len() == 0);
            continue;
        }
        let there = indexed(&by_index.index, bytes);
        assert_eq!(there, in_turn, "{:?} {damage:?}", by_index.damage);
        let kinds = [&by_index.damage, &damage].map(|e| e.as_ref().map(Error::kind));
        assert_eq!(kinds[0], kinds[1], "{:?} {damage:?}", by_index.damage);
        if damage.is_none() {
            assert_eq!((by_index.tally.skipped, by_index.tally.unmarked), (tally.skipped, tally.unmarked));
        }
        within(&by_index.index, bytes.len() as u64);
        let stamp = Stamp { bytes: bytes.len() as u64, modified: 7 };
        let file = cache::encoded(stamp, key, &by_index.index, &by_index.tally);
        let kept = cache::parsed(&file, stamp, key);
        assert!(kept.is_ok_and(|(index, _)| index == by_index.index), "an index that is kept is the same");
    }
}

/// An index that points nowhere but into its shard.
fn within(index: &ShardIndex, len: u64) {
    for sample in 0..index.len() {
        assert!(!index.parts(sample).is_empty() && !index.key(sample).is_empty());
        for &part in index.parts(sample) {
            assert!(part.range().end <= len);
        }
        let extent = index.extent(sample).unwrap_or_default();
        assert!(extent.start < extent.end && extent.end <= len.next_multiple_of(BLOCK), "{extent:?}");
    }
}

/// An index from a file: as it is, and with what keeps bytes that changed by themselves from being read set right.
pub fn kept_index(bytes: &[u8]) {
    let number =
        |at: usize| bytes.get(at..).and_then(|rest| rest.first_chunk()).map(|n| u64::from_le_bytes(*n));
    let mut body = bytes.to_vec();
    let stamp =
        Stamp { bytes: number(0).unwrap_or(0) & 0xff_ffff, modified: number(8).unwrap_or(0).cast_signed() };
    if let Some(size) = body.first_chunk_mut() {
        *size = stamp.bytes.to_le_bytes();
    }
    for key in [KeyRule::FirstDot, KeyRule::LastDot] {
        assert!(cache::parsed(bytes, stamp, key).is_err() || bytes.starts_with(b"warptar"));
        let file = cache::with_checksum(&body);
        if let Ok((index, tally)) = cache::parsed(&file, stamp, key) {
            within(&index, stamp.bytes);
            assert!(cache::encoded(stamp, key, &index, &tally) == file, "written again it is the same");
        }
    }
}

/// A pattern for names.
pub fn pattern(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    match braces::expand(text) {
        Ok(names) => {
            assert!(!names.is_empty() && names.len() <= 1 << 20);
            if !text.contains(['{', '}', '\\']) {
                assert_eq!(names, [text]);
            }
        }
        Err(e) => {
            assert!(matches!(e.kind(), ErrorKind::InvalidArgument | ErrorKind::LimitExceeded), "{e}");
        }
    }
}

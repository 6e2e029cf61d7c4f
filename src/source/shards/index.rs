//! Which samples a shard holds, and where.

use std::collections::HashMap;
use std::ops::Range;

use super::Rules;
use super::name::MemberName;
use super::report::Tally;
use super::walk::{self, BLOCK, Input, Kind, Member, Walk};
use crate::error::{Error, ErrorKind, Place, Result};

/// The samples of one shard: 8 bytes each beside its key, and 12 for each of its members.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct ShardIndex {
    /// The keys, one after another.
    pub(super) keys: Vec<u8>,
    pub(super) samples: Vec<SampleEnds>,
    pub(super) parts: Vec<Part>,
    /// The names of fields that occur.
    pub(super) names: Vec<String>,
}

/// Where a sample's key and members end; they begin where those of the sample before end.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct SampleEnds {
    pub(super) key: u32,
    pub(super) parts: u32,
}

/// A member of a sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Part {
    /// Where its data begins, in blocks of 512 bytes: an archive has 2 TiB at most.
    pub(super) block: u32,
    pub(super) bytes: u32,
    /// What is wrong with it, in the upper bits, and the number of its name.
    tag: u32,
}

/// What is wrong with a member, and so with its sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Flaw {
    None,
    /// It is sparse.
    Sparse,
    /// The sample has another one of the same name.
    Duplicate,
    /// It has 4 GiB or more.
    Large,
}

const NAME_BITS: u32 = 28;

impl Part {
    pub(super) fn new(block: u32, bytes: u32, flaw: Flaw, name: u32) -> Self {
        Self { block, bytes, tag: (flaw as u32) << NAME_BITS | name }
    }

    pub(super) fn tag(self) -> u32 {
        self.tag
    }

    pub(super) fn from_tag(block: u32, bytes: u32, tag: u32) -> Self {
        Self { block, bytes, tag }
    }

    pub(super) fn flaw(self) -> Flaw {
        match self.tag >> NAME_BITS {
            0 => Flaw::None,
            1 => Flaw::Sparse,
            2 => Flaw::Duplicate,
            _ => Flaw::Large,
        }
    }

    pub(super) fn name(self) -> u32 {
        self.tag & ((1 << NAME_BITS) - 1)
    }

    /// Where its data lies in the shard.
    pub(super) fn range(self) -> Range<u64> {
        let start = u64::from(self.block) * BLOCK;
        start..start + u64::from(self.bytes)
    }
}

impl ShardIndex {
    pub(super) fn len(&self) -> usize {
        self.samples.len()
    }

    /// The ends of the sample before `sample`: where its key and members begin.
    fn begin(&self, sample: usize) -> SampleEnds {
        sample.checked_sub(1).and_then(|before| self.samples.get(before)).copied().unwrap_or_default()
    }

    /// The key of a sample; empty where there is none.
    pub(super) fn key(&self, sample: usize) -> &[u8] {
        let end = self.samples.get(sample).copied().unwrap_or_default();
        self.keys.get(self.begin(sample).key as usize..end.key as usize).unwrap_or_default()
    }

    /// The members of a sample; none where there is none.
    pub(super) fn parts(&self, sample: usize) -> &[Part] {
        let end = self.samples.get(sample).copied().unwrap_or_default();
        self.parts.get(self.begin(sample).parts as usize..end.parts as usize).unwrap_or_default()
    }

    pub(super) fn name(&self, part: Part) -> &str {
        self.names.get(part.name() as usize).map_or("", String::as_str)
    }

    /// How many samples have a member of this name.
    pub(super) fn samples_with(&self, name: &str) -> u64 {
        let Some(number) = self.names.iter().position(|known| known == name) else { return 0 };
        let has = |sample: &usize| self.parts(*sample).iter().any(|part| part.name() as usize == number);
        (0..self.len()).filter(has).count() as u64
    }

    /// What a hint asks for: from the header of the first member to that of what follows the last, so that samples that follow
    /// one another touch.
    pub(super) fn extent(&self, sample: usize) -> Option<Range<u64>> {
        let parts = self.parts(sample);
        let (first, last) = (parts.first()?.range(), parts.last()?.range());
        Some(first.start.saturating_sub(BLOCK)..last.end.next_multiple_of(BLOCK))
    }

    #[cfg(test)]
    pub(super) fn memory(&self) -> usize {
        self.keys.capacity()
            + self.samples.capacity() * size_of::<SampleEnds>()
            + self.parts.capacity() * size_of::<Part>()
    }
}

/// What reading a shard's headers came to.
#[derive(Debug)]
pub(super) struct Indexed {
    pub(super) index: ShardIndex,
    pub(super) tally: Tally,
    /// What is wrong with the shard behind these samples.
    pub(super) damage: Option<Error>,
}

/// An index as it grows.
#[derive(Default)]
struct Growing {
    index: ShardIndex,
    tally: Tally,
    /// For each name its number, and the sample (from 1) that had it last.
    numbers: HashMap<String, (u32, usize)>,
    /// Whether the last sample is still growing.
    open: bool,
}

/// Reads all headers of an archive.
pub(super) fn read(input: &mut impl Input, rules: &Rules) -> Indexed {
    let mut walk = Walk::default();
    let mut growing = Growing::default();
    let damage = growing.grow(&mut walk, input, rules).err();
    growing.tally.unmarked = u64::from(damage.is_none() && !walk.marked());
    let Growing { mut index, mut tally, .. } = growing;
    index.keys.shrink_to_fit();
    index.samples.shrink_to_fit();
    index.parts.shrink_to_fit();
    tally.samples = index.len() as u64;
    tally.bytes = index.parts.iter().map(|part| u64::from(part.bytes)).sum();
    let damage = damage.map(|e| {
        let text = format!("{}; {} whole samples come before", e.message(), index.len());
        Error::new(e.kind(), text).at(e.place().clone()).caused_by(e)
    });
    Indexed { index, tally, damage }
}

impl Growing {
    fn grow(&mut self, walk: &mut Walk, input: &mut impl Input, rules: &Rules) -> Result<()> {
        loop {
            match walk.next(input) {
                Ok(Some(member)) => self.add(&member, rules)?,
                Ok(None) if walk.position() == 0 => {
                    return Err(Error::new(ErrorKind::Empty, "the shard has not a single byte"));
                }
                Ok(None) => return Ok(()),
                Err(e) => {
                    // Whether the last sample had more members is known behind an end mark only: else it is whole if it has
                    // what the first has.
                    if !walk.marked() && !self.last_is_like_the_first() {
                        self.drop_last();
                    }
                    return Err(e);
                }
            }
        }
    }

    fn add(&mut self, member: &Member, rules: &Rules) -> Result<()> {
        if let Kind::Other(reason) = member.kind {
            self.tally.skip(reason);
            return Ok(());
        }
        let (key, field) = match rules.key.read(&member.name) {
            MemberName::Part { key, field } => (key, field),
            MemberName::Skipped(reason) => {
                self.tally.skip(reason);
                return Ok(());
            }
        };
        let same = self.open && self.index.key(self.index.len() - 1) == key;
        if let Some(found) = member.cut {
            if same {
                self.drop_last();
            }
            return Err(walk::cut(member, found));
        }
        let (Ok(block), true) = (u32::try_from(member.data / BLOCK), member.data.is_multiple_of(BLOCK))
        else {
            let place = Place { offset: Some(member.header), ..Place::default() };
            return Err(Error::new(ErrorKind::LimitExceeded, "a shard has at most 2 TiB").at(place));
        };
        if !same {
            self.index.keys.extend_from_slice(key);
            let key = limited(self.index.keys.len(), member)?;
            self.index.samples.push(SampleEnds { key, parts: limited(self.index.parts.len(), member)? });
            self.open = true;
        }
        let sample = self.index.len();
        let (name, last) = match self.numbers.get_mut(&*field) {
            Some((name, last)) => (*name, std::mem::replace(last, sample)),
            None => {
                let name = limited(self.index.names.len(), member)?;
                self.index.names.push(field.to_string());
                self.numbers.insert(field.into_owned(), (name, sample));
                (name, 0)
            }
        };
        let (bytes, flaw) = match u32::try_from(member.bytes) {
            Ok(bytes) if member.kind == Kind::Sparse => (bytes, Flaw::Sparse),
            Ok(bytes) if last == sample => (bytes, Flaw::Duplicate),
            Ok(bytes) => (bytes, Flaw::None),
            Err(_) => (0, Flaw::Large),
        };
        self.index.parts.push(Part::new(block, bytes, flaw, name));
        let parts = limited(self.index.parts.len(), member)?;
        if let Some(ends) = self.index.samples.last_mut() {
            ends.parts = parts;
        }
        Ok(())
    }

    fn last_is_like_the_first(&self) -> bool {
        let names = |sample: usize| self.index.parts(sample).iter().map(|part| part.name());
        match self.index.len() {
            0 => true,
            1 => false, // there is nothing to tell it by
            n => names(0).all(|name| names(n - 1).any(|other| other == name)),
        }
    }

    fn drop_last(&mut self) {
        if self.index.samples.pop().is_some() {
            let last = self.index.samples.last().copied().unwrap_or_default();
            self.index.keys.truncate(last.key as usize);
            self.index.parts.truncate(last.parts as usize);
            self.open = false;
        }
    }
}

/// A count that the index has 28 bits for.
fn limited(count: usize, member: &Member) -> Result<u32> {
    u32::try_from(count).ok().filter(|n| n >> NAME_BITS == 0).ok_or_else(|| {
        let place = Place { offset: Some(member.header), ..Place::default() };
        Error::new(ErrorKind::LimitExceeded, "a shard has more keys or members than an index holds").at(place)
    })
}

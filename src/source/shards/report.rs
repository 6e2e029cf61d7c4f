//! What was found in shards.

use std::collections::BTreeMap;
use std::fmt;

/// Why a member of a shard belongs to no sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Skipped {
    /// A directory.
    Directory,
    /// A symbolic or a hard link.
    Link,
    /// A device, a pipe, a volume label: no regular file.
    Special,
    /// Its name has no extension, or nothing before it.
    NoExtension,
    /// What macOS leaves beside files: `._*`, `.DS_Store`, `__MACOSX/`.
    SideFile,
    /// WebDataset's own: `__name__`, and what lies in such a folder.
    Metadata,
}

impl Skipped {
    const ALL: [Self; 6] =
        [Self::Directory, Self::Link, Self::Special, Self::NoExtension, Self::SideFile, Self::Metadata];

    /// The reason in messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Directory => "directory",
            Self::Link => "link",
            Self::Special => "special",
            Self::NoExtension => "no extension",
            Self::SideFile => "macOS side file",
            Self::Metadata => "metadata",
        }
    }
}

/// Counts of one shard or many.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Tally {
    pub(super) samples: u64,
    /// Of the members' data.
    pub(super) bytes: u64,
    pub(super) skipped: [u64; Skipped::ALL.len()],
    /// Shards whose end is damaged and was left out.
    pub(super) damaged: u64,
    /// Shards that end without the mark of an archive's end.
    pub(super) unmarked: u64,
}

impl Tally {
    pub(super) fn skip(&mut self, reason: Skipped) {
        self.skipped[reason as usize] += 1;
    }

    pub(super) fn add(&mut self, other: &Self) {
        self.samples += other.samples;
        self.bytes += other.bytes;
        self.damaged += other.damaged;
        self.unmarked += other.unmarked;
        self.skipped.iter_mut().zip(other.skipped).for_each(|(sum, n)| *sum += n);
    }
}

/// What was found in shards: by [`Shards::report`](super::Shards::report) in all of them, by
/// [`ShardStream::report`](super::ShardStream::report) in those that were read since the stream was opened last. As text one line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShardReport {
    pub(super) shards: u64,
    pub(super) tally: Tally,
    pub(super) members: BTreeMap<String, u64>,
    /// Compressed archives of the folder that are no part of the set.
    pub(super) packed: u64,
}

impl ShardReport {
    /// How many shards.
    pub fn shards(&self) -> u64 {
        self.shards
    }

    /// How many samples.
    pub fn samples(&self) -> u64 {
        self.tally.samples
    }

    /// Bytes of the samples' members.
    pub fn bytes(&self) -> u64 {
        self.tally.bytes
    }

    /// How many members there are of each extension.
    pub fn members(&self) -> impl Iterator<Item = (&str, u64)> {
        self.members.iter().map(|(name, &n)| (name.as_str(), n))
    }

    /// How many members were skipped, by reason.
    pub fn skipped(&self) -> impl Iterator<Item = (Skipped, u64)> {
        Skipped::ALL.into_iter().zip(self.tally.skipped).filter(|(_, n)| *n > 0)
    }

    /// How many shards are damaged; of them the whole samples before the damage count ([`OnDamage::Skip`](super::OnDamage)).
    pub fn damaged(&self) -> u64 {
        self.tally.damaged
    }

    /// How many compressed archives lie in the folder beside plain ones, and were left out: [`Shards`](super::Shards) can't read them.
    pub fn packed(&self) -> u64 {
        self.packed
    }

    /// How many shards end without the two blocks of zeros that mark an archive's end. Some writers leave them out, but so does one
    /// that was killed, and a cut between two members.
    pub fn unmarked(&self) -> u64 {
        self.tally.unmarked
    }
}

impl fmt::Display for ShardReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 12;
        let counted = |n: u64, what: &str| format!("{n} {what}{}", if n == 1 { "" } else { "s" });
        write!(f, "{}, {}", counted(self.shards, "shard"), counted(self.samples(), "sample"))?;
        write!(f, ", {}", counted(self.bytes(), "byte"))?;
        let mut members: Vec<(&str, u64)> = self.members().collect();
        members.sort_by_key(|&(_, n)| std::cmp::Reverse(n));
        for (at, (name, n)) in members.iter().take(SHOWN).enumerate() {
            write!(f, "{}{name} {n}", if at == 0 { "; members: " } else { ", " })?;
        }
        if members.len() > SHOWN {
            write!(f, ", {} more", members.len() - SHOWN)?;
        }
        for (at, (reason, n)) in self.skipped().enumerate() {
            write!(f, "{}{} {n}", if at == 0 { "; skipped: " } else { ", " }, reason.name())?;
        }
        if self.damaged() > 0 {
            write!(f, "; damaged: {}", counted(self.damaged(), "shard"))?;
        }
        if self.unmarked() > 0 {
            write!(f, "; without an end mark: {}", counted(self.unmarked(), "shard"))?;
        }
        if self.packed() > 0 {
            write!(f, "; left out: {}", counted(self.packed(), "compressed shard"))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_says_it_all() {
        let mut tally = Tally { samples: 3, bytes: 1, damaged: 1, ..Tally::default() };
        tally.skip(Skipped::SideFile);
        tally.skip(Skipped::Directory);
        tally.skip(Skipped::SideFile);
        let members = (0..14).map(|i| (format!("x{i:02}"), 20 - i)).collect();
        let mut report = ShardReport { shards: 1, tally, members, packed: 2 };
        let head = "1 shard, 3 samples, 1 byte; members: x00 20, x01 19, x02 18, x03 17, x04 16, x05 15, x06 14, x07 13, x08 12, x09 11, x10 10, x11 9, 2 more";
        assert_eq!(
            report.to_string(),
            format!(
                "{head}; skipped: directory 1, macOS side file 2; damaged: 1 shard; left out: 2 compressed shards"
            )
        );
        let other = report.tally.clone();
        report.tally.add(&other);
        assert_eq!((report.samples(), report.damaged()), (6, 2));
        assert_eq!(report.skipped().collect::<Vec<_>>(), [(Skipped::Directory, 2), (Skipped::SideFile, 4)]);
        let none = ShardReport { shards: 2, tally: Tally::default(), members: BTreeMap::new(), packed: 0 };
        assert_eq!(none.to_string(), "2 shards, 0 samples, 0 bytes");
    }
}

//! Indices of shards, kept in files between runs.

use std::fs::{self, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::CacheIn;
use super::index::{Part, SampleEnds, ShardIndex};
use super::name::KeyRule;
use super::report::Tally;
use super::walk::BLOCK;
use crate::random::key_of_bytes;
use crate::source::files::Stamp;

const MAGIC: &[u8; 8] = b"warptar\0";
const VERSION: u32 = 1;
const ENDING: &str = "warpfeed-index";

/// What a file of an index came to.
#[derive(Debug)]
pub(super) enum Kept {
    None,
    Fits(ShardIndex, Tally),
    /// It is not of this shard as it is now, or damaged: how many samples it counts, where that can be told.
    Stale(Option<u64>),
}

/// Where the index of a shard is kept.
pub(super) fn file(cache: &CacheIn, shard: &Path) -> PathBuf {
    let mut name = shard.file_name().unwrap_or_default().to_os_string();
    match cache {
        CacheIn::Beside => {
            name.push(format!(".{ENDING}"));
            shard.with_file_name(name)
        }
        CacheIn::Folder(folder) => {
            // Shards of the same name in different folders are different ones.
            let whole = fs::canonicalize(shard).unwrap_or_else(|_| shard.to_path_buf());
            name.push(format!("-{:016x}.{ENDING}", key_of_bytes(whole.as_os_str().as_bytes())));
            folder.join(name)
        }
    }
}

/// Reads the index of a shard of which `stamp` is true now.
pub(super) fn load(path: &Path, stamp: Stamp, rule: KeyRule) -> Kept {
    let bytes = match read(path, stamp) {
        Ok(bytes) => bytes,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Kept::None,
        Err(e) => {
            tracing::warn!("the index {} can't be read, and is made anew: {e}", path.display());
            return Kept::Stale(None);
        }
    };
    match parsed(&bytes, stamp, rule) {
        Ok((index, tally)) => Kept::Fits(index, tally),
        Err((samples, why)) => {
            let counted = samples.map_or(String::new(), |n| format!(" of {n} samples"));
            tracing::warn!("the index {}{counted} {why}, and is made anew", path.display());
            Kept::Stale(samples)
        }
    }
}

/// Why an index is not used, and how many samples it counts, where that can be told.
type Unfit = (Option<u64>, &'static str);

/// The index that `bytes` hold, if it is that of a shard of which `stamp` is true.
pub(super) fn parsed(bytes: &[u8], stamp: Stamp, rule: KeyRule) -> Result<(ShardIndex, Tally), Unfit> {
    let body = checked(bytes).ok_or((None, "is damaged or of another version"))?;
    let mut reader = Reader(body);
    let head = Head::read(&mut reader).ok_or((None, "is damaged"))?;
    if (head.bytes, head.modified) != (stamp.bytes, stamp.modified) {
        return Err((Some(head.samples), "is of another state of its shard"));
    }
    if head.rule != rule as u32 {
        return Err((None, "was made by another rule for keys"));
    }
    head.rest(&mut reader, stamp).ok_or((None, "makes no sense"))
}

/// All of a file that may be an index: not more than an index of a shard can have.
fn read(path: &Path, stamp: Stamp) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    // A header of 512 bytes is at most 20 bytes of the index and 255 of a name, an extended one as long as its text.
    let most = stamp.bytes.saturating_mul(2).saturating_add(1 << 20);
    // A pipe of that name would wait for its writer.
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    file.take(most).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// What lies between magic number and checksum, if both are right.
fn checked(bytes: &[u8]) -> Option<&[u8]> {
    let (body, sum) = bytes.split_last_chunk::<8>()?;
    let rest = body.strip_prefix(MAGIC)?.strip_prefix(&VERSION.to_le_bytes())?;
    (key_of_bytes(body) == u64::from_le_bytes(*sum)).then_some(rest)
}

/// A file with this between its version and its checksum.
#[cfg(any(test, fuzzing))]
pub(super) fn with_checksum(body: &[u8]) -> Vec<u8> {
    let mut out = [MAGIC, &VERSION.to_le_bytes()[..], body].concat();
    out.extend(key_of_bytes(&out).to_le_bytes());
    out
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, bytes: u64) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(usize::try_from(bytes).ok()?)?;
        self.0 = rest;
        Some(taken)
    }

    fn u32(&mut self) -> Option<u32> {
        self.take(4)?.try_into().ok().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.take(8)?.try_into().ok().map(u64::from_le_bytes)
    }
}

/// What an index was made of, and how much of it there is.
struct Head {
    bytes: u64,
    modified: i64,
    samples: u64,
    rule: u32,
    parts: u64,
    keys: u64,
    names: u32,
}

impl Head {
    fn read(from: &mut Reader<'_>) -> Option<Self> {
        Some(Self {
            bytes: from.u64()?,
            modified: from.u64()?.cast_signed(),
            samples: from.u64()?,
            rule: from.u32()?,
            parts: from.u64()?,
            keys: from.u64()?,
            names: from.u32()?,
        })
    }

    /// The index itself, if all of it lies within the shard.
    fn rest(&self, from: &mut Reader<'_>, stamp: Stamp) -> Option<(ShardIndex, Tally)> {
        let mut tally =
            Tally { samples: self.samples, bytes: from.u64()?, unmarked: from.u64()?, ..Tally::default() };
        for count in &mut tally.skipped {
            *count = from.u64()?;
        }
        let mut index = ShardIndex::default();
        for _ in 0..self.names {
            let bytes = from.u32()?;
            index.names.push(std::str::from_utf8(from.take(bytes.into())?).ok()?.to_string());
        }
        index.keys = from.take(self.keys)?.to_vec();
        let samples = from.take(self.samples.checked_mul(8)?)?;
        let mut parts = Reader(from.take(self.parts.checked_mul(12)?)?);
        if !from.0.is_empty() {
            return None;
        }
        let mut samples = Reader(samples);
        let mut last = SampleEnds::default();
        for _ in 0..self.samples {
            let ends = SampleEnds { key: samples.u32()?, parts: samples.u32()? };
            if ends.key <= last.key || ends.parts <= last.parts {
                return None;
            }
            last = ends;
            index.samples.push(ends);
        }
        let mut behind = 0; // members lie one behind the other, each behind its header
        for _ in 0..self.parts {
            let part = Part::from_tag(parts.u32()?, parts.u32()?, parts.u32()?);
            let range = part.range();
            if part.name() >= self.names || range.start < behind + BLOCK || range.end > stamp.bytes {
                return None;
            }
            behind = range.end;
            index.parts.push(part);
        }
        let whole = u64::from(last.key) == self.keys && u64::from(last.parts) == self.parts;
        index.samples.shrink_to_fit();
        index.parts.shrink_to_fit();
        whole.then_some((index, tally))
    }
}

/// Writes an index, so that a reader sees all of it or nothing. Where that can't be done there is a warning.
pub(super) fn store(path: &Path, stamp: Stamp, rule: KeyRule, index: &ShardIndex, tally: &Tally) {
    if let Err(e) = write(path, &encoded(stamp, rule, index, tally)) {
        tracing::warn!("the index {} can't be written: {e}", path.display());
    }
}

pub(super) fn encoded(stamp: Stamp, rule: KeyRule, index: &ShardIndex, tally: &Tally) -> Vec<u8> {
    let mut out = MAGIC.to_vec();
    let (mut small, mut large) = (Vec::new(), Vec::new());
    out.extend(VERSION.to_le_bytes());
    for n in [stamp.bytes, stamp.modified.cast_unsigned(), index.len() as u64] {
        out.extend(n.to_le_bytes());
    }
    out.extend((rule as u32).to_le_bytes());
    for n in [index.parts.len() as u64, index.keys.len() as u64] {
        out.extend(n.to_le_bytes());
    }
    out.extend((index.names.len() as u32).to_le_bytes()); // as many as 28 bits have
    for n in [tally.bytes, tally.unmarked].into_iter().chain(tally.skipped) {
        out.extend(n.to_le_bytes());
    }
    for name in &index.names {
        out.extend((name.len() as u32).to_le_bytes()); // no longer than a header
        out.extend(name.as_bytes());
    }
    out.extend(&index.keys);
    for ends in &index.samples {
        small.extend([ends.key, ends.parts].iter().flat_map(|n| n.to_le_bytes()));
    }
    for part in &index.parts {
        large.extend([part.block, part.bytes, part.tag()].iter().flat_map(|n| n.to_le_bytes()));
    }
    out.extend(small);
    out.extend(large);
    out.extend(key_of_bytes(&out).to_le_bytes());
    out
}

fn write(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let folder = path.parent().unwrap_or(Path::new(""));
    if !folder.as_os_str().is_empty() {
        fs::create_dir_all(folder)?;
    }
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(format!(".{}-{}.tmp", std::process::id(), NUMBER.fetch_add(1, Relaxed)));
    let temporary = path.with_file_name(name);
    let mut file = OpenOptions::new().write(true).create_new(true).open(&temporary)?;
    let written = file.write_all(bytes).and_then(|()| fs::rename(&temporary, path));
    written.inspect_err(|_| drop(fs::remove_file(&temporary)))
}

//! From one header of a tar archive to the next.
//!
//! The `tar` crate reads a header's fields; the way through the archive is ours, because the crate's own iterator holds a long name
//! or an extended header of any size in memory, takes a member that is cut for the archive's end where it seeks, gives no offset with its
//! errors, and breaks extended headers at each newline, of which binary attributes have many.

use tar::{EntryType, GnuExtSparseHeader, Header};

use super::report::Skipped;
use crate::error::{Error, ErrorKind, Place, Result};

pub(super) const BLOCK: u64 = 512;
/// A long name or an extended header has so many bytes at most.
const EXTENDED: u64 = 1 << 20;

/// The bytes of an archive, in order.
pub(super) trait Input {
    /// Fills `to` as far as there are bytes: fewer only at the end.
    fn fill(&mut self, to: &mut [u8]) -> Result<usize>;
    /// Passes over `bytes` bytes: how many there were.
    fn skip(&mut self, bytes: u64) -> Result<u64>;
    /// How many bytes there are in all, where that is known.
    fn len(&self) -> Option<u64>;
}

/// What a member is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// A regular file.
    File,
    /// A file with holes, which are not expanded here.
    Sparse,
    /// Neither.
    Other(Skipped),
}

/// One member of an archive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Member {
    pub(super) kind: Kind,
    pub(super) name: Vec<u8>,
    /// Where its header begins.
    pub(super) header: u64,
    /// Where its data begins.
    pub(super) data: u64,
    pub(super) bytes: u64,
    /// How many of them are there, where the input is known to be cut within them.
    pub(super) cut: Option<u64>,
}

impl Member {
    /// The name as text.
    pub(super) fn text(&self) -> String {
        String::from_utf8_lossy(&self.name).into_owned()
    }
}

/// A walk through the members of an archive, or of several that follow one another.
#[derive(Debug, Default)]
pub(super) struct Walk {
    /// How many bytes of the input are behind us.
    at: u64,
    /// Bytes of the last member and its padding that are still ahead.
    left: u64,
    /// Blocks of zeros since the last header.
    zeros: u64,
    headers: u64,
}

/// What headers before a member's own say of it.
#[derive(Debug, Default)]
struct Extended {
    name: Option<Vec<u8>>,
    bytes: Option<u64>,
    sparse: bool,
}

fn damage(kind: ErrorKind, text: impl Into<String>, offset: u64) -> Error {
    Error::new(kind, text).at(Place { offset: Some(offset), ..Place::default() })
}

/// Data of a member that ends before it should.
pub(super) fn cut(member: &Member, found: u64) -> Error {
    let text =
        format!("the archive is cut: {found} of the {} bytes of {} are there", member.bytes, member.text());
    damage(ErrorKind::Truncated, text, member.data + found)
}

impl Walk {
    /// Whether the archive has had its end mark since the last member.
    pub(super) fn marked(&self) -> bool {
        self.zeros >= 2
    }

    /// How many bytes of the input are behind.
    pub(super) fn position(&self) -> u64 {
        self.at
    }

    /// Counts bytes of the last member's data that the caller has taken from the input.
    pub(super) fn took(&mut self, bytes: u64) {
        self.at += bytes;
        self.left = self.left.saturating_sub(bytes);
    }

    /// The next member; `None` at the end. Its data may be taken from the input before the next call, which passes over what was not.
    ///
    /// # Errors
    /// With offset: `Truncated`, `Corrupt`, `LimitExceeded`, and those of the input. There is nothing more to be had then.
    pub(super) fn next(&mut self, input: &mut impl Input) -> Result<Option<Member>> {
        let mut extended = Extended::default();
        let mut described = None; // where the first header that speaks of another one begins
        loop {
            self.pass(input)?;
            let offset = self.at;
            let mut header = Header::new_old();
            let found = self.block(input, header.as_mut_bytes())?;
            if header.as_bytes()[..found].iter().all(|&b| b == 0) && (found == 512 || described.is_none()) {
                if found == 512 {
                    self.zeros += 1;
                    continue;
                }
                return Ok(None);
            }
            if let (0, Some(offset)) = (found, described) {
                let text = "the archive is cut: it ends behind a header that speaks of a member to come";
                return Err(damage(ErrorKind::Truncated, text, offset));
            }
            self.check(&header, found, offset)?;
            self.zeros = 0;
            self.headers += 1;
            let what = match header.entry_type() {
                solaris if solaris.as_byte() == b'X' => EntryType::XHeader,
                what => what,
            };
            let bytes = header.entry_size().map_err(|e| {
                damage(ErrorKind::Corrupt, format!("the size in a header makes no sense: {e}"), offset)
            })?;
            match what {
                EntryType::GNULongName | EntryType::GNULongLink | EntryType::XHeader => {
                    described.get_or_insert(offset);
                    let text = self.extension(input, bytes, offset)?;
                    match what {
                        EntryType::GNULongName => {
                            let end = text.iter().position(|&b| b == 0).unwrap_or(text.len());
                            extended.name = Some(text[..end].to_vec());
                        }
                        EntryType::GNULongLink => {}
                        _ => extended.read(&text, offset)?,
                    }
                }
                EntryType::XGlobalHeader => self.expect(bytes, offset)?,
                _ => {
                    return self
                        .member(input, &header, extended, described.unwrap_or(offset), bytes)
                        .map(Some);
                }
            }
        }
    }

    /// Passes over what is left of the last member.
    fn pass(&mut self, input: &mut impl Input) -> Result<()> {
        let found = if self.left > 0 { input.skip(self.left)? } else { 0 };
        self.at += found;
        let missing = self.left - found;
        self.left = 0;
        if missing > 0 {
            let text = format!(
                "the archive is cut: {missing} bytes of the last member, or of what fills its block, are missing"
            );
            return Err(damage(ErrorKind::Truncated, text, self.at));
        }
        Ok(())
    }

    fn block(&mut self, input: &mut impl Input, to: &mut [u8]) -> Result<usize> {
        let found = input.fill(to).map_err(|e| e.at(Place { offset: Some(self.at), ..Place::default() }))?;
        self.at += found as u64;
        Ok(found)
    }

    /// Refuses what is no header.
    fn check(&self, header: &Header, found: usize, offset: u64) -> Result<()> {
        let whole = found == 512 && checksum_holds(header);
        if whole {
            return Ok(());
        }
        if self.headers == 0 {
            if let Some(format) = packed(&header.as_bytes()[..found]) {
                let text = format!("the shard is {format}, not a plain tar archive");
                return Err(damage(ErrorKind::Unsupported, text, offset));
            }
            return Err(damage(
                ErrorKind::Corrupt,
                "the shard is no tar archive: its first block is no header",
                offset,
            ));
        }
        if self.marked() {
            let text = "what follows the end of the archive is neither zeros nor another archive";
            return Err(damage(ErrorKind::Corrupt, text, offset));
        }
        if found < 512 {
            let text = format!("the archive is cut: {found} of the 512 bytes of a header are there");
            return Err(damage(ErrorKind::Truncated, text, offset));
        }
        Err(damage(ErrorKind::Corrupt, "the checksum of a header does not hold", offset))
    }

    /// Takes the text of a header that speaks of the next one.
    fn extension(&mut self, input: &mut impl Input, bytes: u64, offset: u64) -> Result<Vec<u8>> {
        if bytes > EXTENDED {
            let text = format!("an extended header of {bytes} bytes is over the limit of {EXTENDED}");
            return Err(damage(ErrorKind::LimitExceeded, text, offset));
        }
        self.expect(bytes, offset)?;
        let mut text = vec![0; bytes as usize]; // at most EXTENDED
        let found = self.block(input, &mut text)? as u64;
        self.left -= found;
        if found < bytes {
            let text =
                format!("the archive is cut: {found} of the {bytes} bytes of an extended header are there");
            return Err(damage(ErrorKind::Truncated, text, self.at));
        }
        Ok(text)
    }

    /// Sets how many bytes of data, with what fills the last block, come before the next header.
    fn expect(&mut self, bytes: u64, offset: u64) -> Result<()> {
        let end = bytes.checked_next_multiple_of(BLOCK).filter(|&left| self.at.checked_add(left).is_some());
        self.left = end.ok_or_else(|| {
            damage(
                ErrorKind::Corrupt,
                format!("a header claims {bytes} bytes, more than any file has"),
                offset,
            )
        })?;
        Ok(())
    }

    fn member(
        &mut self,
        input: &mut impl Input,
        header: &Header,
        extended: Extended,
        offset: u64,
        bytes: u64,
    ) -> Result<Member> {
        let name = extended.name.unwrap_or_else(|| header.path_bytes().into_owned());
        let mut kind = match header.entry_type() {
            // Before there was a type for directories, a slash at the end of the name told them.
            EntryType::Regular | EntryType::Continuous if name.ends_with(b"/") => {
                Kind::Other(Skipped::Directory)
            }
            EntryType::Regular | EntryType::Continuous => Kind::File,
            EntryType::GNUSparse => Kind::Sparse,
            EntryType::Directory => Kind::Other(Skipped::Directory),
            EntryType::Link | EntryType::Symlink => Kind::Other(Skipped::Link),
            _ => Kind::Other(Skipped::Special),
        };
        if extended.sparse && kind == Kind::File {
            kind = Kind::Sparse;
        }
        // Of these the size says something else, or nothing: there is no data.
        let bytes = match header.entry_type() {
            EntryType::Directory
            | EntryType::Link
            | EntryType::Symlink
            | EntryType::Char
            | EntryType::Block
            | EntryType::Fifo => 0,
            _ => extended.bytes.unwrap_or(bytes),
        };
        let mut more =
            header.entry_type().is_gnu_sparse() && header.as_gnu().is_some_and(tar::GnuHeader::is_extended);
        while more {
            let mut map = GnuExtSparseHeader::new();
            let at = self.at;
            if self.block(input, map.as_mut_bytes())? < 512 {
                return Err(damage(
                    ErrorKind::Truncated,
                    "the archive is cut in the map of a sparse member",
                    at,
                ));
            }
            more = map.is_extended();
        }
        self.expect(bytes, offset)?;
        let there = input.len().map_or(bytes, |len| len.saturating_sub(self.at).min(bytes));
        let cut = (there < bytes).then_some(there);
        Ok(Member { kind, name, header: offset, data: self.at, bytes, cut })
    }
}

impl Extended {
    /// Takes what the records of an extended header say: `length key=value` and a newline, the length counting all of it.
    fn read(&mut self, mut text: &[u8], offset: u64) -> Result<()> {
        let malformed = || damage(ErrorKind::Corrupt, "an extended header is malformed", offset);
        let text_of = |bytes: &[u8]| std::str::from_utf8(bytes).ok().map(str::to_string);
        while !text.is_empty() && text.iter().any(|&b| b != 0) {
            let space = text.iter().position(|&b| b == b' ').ok_or_else(malformed)?;
            let length =
                text_of(&text[..space]).and_then(|t| t.parse::<usize>().ok()).ok_or_else(malformed)?;
            let record =
                text.get(space + 1..length).and_then(|r| r.strip_suffix(b"\n")).ok_or_else(malformed)?;
            let equals = record.iter().position(|&b| b == b'=').ok_or_else(malformed)?;
            let (key, value) = (&record[..equals], &record[equals + 1..]);
            match key {
                b"path" if self.name.is_none() || !self.sparse => self.name = Some(value.to_vec()),
                b"size" => {
                    let size = text_of(value).and_then(|t| t.parse().ok());
                    self.bytes = Some(size.ok_or_else(malformed)?);
                }
                _ if key.starts_with(b"GNU.sparse.") => {
                    self.sparse = true;
                    if key == b"GNU.sparse.name" {
                        self.name = Some(value.to_vec());
                    }
                }
                _ => {}
            }
            text = &text[length..];
        }
        Ok(())
    }
}

/// The sum of a header's bytes, its own field taken as spaces: of unsigned bytes as the standard says, or of signed ones as some old
/// writers had it.
fn checksum_holds(header: &Header) -> bool {
    let Ok(stored) = header.cksum() else { return false };
    let bytes = header.as_bytes();
    let summed = || bytes[..148].iter().chain(&bytes[156..]);
    let unsigned = summed().map(|&b| u32::from(b)).sum::<u32>() + 8 * 32;
    let signed = summed().map(|&b| i32::from(b.cast_signed())).sum::<i32>() + 8 * 32;
    stored == unsigned || i64::from(stored) == i64::from(signed)
}

/// The format of packed data, by its first bytes.
pub(super) fn packed(start: &[u8]) -> Option<&'static str> {
    const FORMATS: [(&[u8], &str); 7] = [
        (b"\x1f\x8b", "gzip"),
        (b"\x28\xb5\x2f\xfd", "zstd"),
        (b"BZh", "bzip2"),
        (b"\xfd7zXZ\0", "xz"),
        (b"\x04\x22\x4d\x18", "lz4"),
        (b"PK\x03\x04", "zip"),
        (b"7z\xbc\xaf\x27\x1c", "7z"),
    ];
    // A frame that zstd passes over, as parallel writers put first.
    let skippable = matches!(start, [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..]);
    let found = FORMATS.iter().find(|(magic, _)| start.starts_with(magic));
    found.map(|(_, name)| *name).or(skippable.then_some("zstd"))
}

/// Whether a block is the header of a member.
pub(super) fn is_header(block: &[u8]) -> bool {
    let mut header = Header::new_old();
    let whole = block.len() == 512;
    if whole {
        header.as_mut_bytes().copy_from_slice(block);
    }
    whole && checksum_holds(&header)
}

//! The bytes of an archive that is read in sequence.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use flate2::bufread::MultiGzDecoder;

use super::walk::{self, Input};
use crate::error::{Error, ErrorKind, Result};
use crate::source::files;

/// So many bytes of a shard are read at a time.
const READ: usize = 1 << 20;

/// The bytes of an archive, unpacked as they are read.
pub(super) struct Packed {
    bytes: Box<dyn Read + Send>,
    /// Of a plain archive.
    len: Option<u64>,
}

impl Packed {
    pub(super) fn open(path: &Path) -> Result<Self> {
        let (file, stamp) = files::open(path)?;
        let file = BufReader::with_capacity(READ, file);
        Self::of(file, stamp.bytes).map_err(|e| Error::io(path, "the shard can't be read", e))
    }

    /// Of `len` bytes, whatever their format.
    pub(super) fn of<R: BufRead + Send + 'static>(mut file: R, len: u64) -> std::io::Result<Self> {
        let start = file.fill_buf()?;
        let start = &start[..start.len().min(512)];
        let format = if walk::is_header(start) { None } else { walk::packed(start) };
        Ok(match format {
            Some("gzip") => Self { bytes: Box::new(MultiGzDecoder::new(file)), len: None },
            Some("zstd") => {
                Self { bytes: Box::new(zstd::stream::read::Decoder::with_buffer(file)?), len: None }
            }
            // What else is packed is refused by its first block.
            _ => Self { bytes: Box::new(file), len: Some(len) },
        })
    }

    /// The error of a read: of the disk, or of what unpacks.
    fn failed(&self, error: std::io::Error) -> Error {
        let (kind, what) = match error.kind() {
            std::io::ErrorKind::UnexpectedEof => (ErrorKind::Truncated, "the compressed shard is cut"),
            _ if error.raw_os_error().is_some() || self.len.is_some() => {
                (ErrorKind::Io, "the shard can't be read")
            }
            _ => (ErrorKind::Corrupt, "the compressed shard is corrupt"),
        };
        Error::new(kind, format!("{what}: {error}")).caused_by(error)
    }
}

impl Input for Packed {
    fn fill(&mut self, to: &mut [u8]) -> Result<usize> {
        let mut filled = 0;
        while filled < to.len() {
            match self.bytes.read(&mut to[filled..]) {
                Ok(0) => break,
                Ok(n) => filled += n,
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                Err(e) => return Err(self.failed(e)),
            }
        }
        Ok(filled)
    }

    fn skip(&mut self, bytes: u64) -> Result<u64> {
        let mut buffer = [0; 16 << 10];
        let mut left = bytes;
        while left > 0 {
            let step = left.min(buffer.len() as u64) as usize;
            let found = self.fill(&mut buffer[..step])?;
            left -= found as u64;
            if found < step {
                break;
            }
        }
        Ok(bytes - left)
    }

    fn len(&self) -> Option<u64> {
        self.len
    }
}

//! PNG, all types, with checksums.

use std::io::{Cursor, ErrorKind as Io};

use image::metadata::Orientation;
use png::{BitDepth, DecodeOptions, Decoder, DecodingError, Transformations};

use super::{Buffer, Head, Outer, Samples, Wish, same_size};
use crate::error::{Error, ErrorKind, Result};

const SIGNATURE: usize = 8;
const END: &[u8] = b"\0\0\0\0IEND\xae\x42\x60\x82";

/// What deflate makes of a byte at most: 258 bytes take a length and a distance, of a bit each at least (RFC 1951; zlib's technical
/// notes give the same 1032:1).
const EXPANSION: u64 = 1032;

/// From `IHDR` and from an `eXIf` before the pixels.
pub(super) fn head(bytes: &[u8]) -> Result<Outer> {
    let short = || Error::new(ErrorKind::Truncated, "truncated PNG: the file ends before the image's data");
    let (mut at, mut size, mut orientation) = (SIGNATURE, None, 1);
    loop {
        let rest = bytes.get(at..).ok_or_else(short)?;
        let (length, rest) = rest.split_first_chunk().ok_or_else(short)?;
        let length = u32::from_be_bytes(*length) as usize;
        let (kind, rest) = rest.split_first_chunk::<4>().ok_or_else(short)?;
        match (kind, size) {
            (b"IHDR", None) if length == 13 => {
                let number = |at: usize| Some(u32::from_be_bytes(*rest.get(at..)?.first_chunk()?));
                let (Some(width), Some(height), Some(&[depth, color]), true) =
                    (number(0), number(4), rest.get(8..10).and_then(<[u8]>::first_chunk), rest.len() >= 17)
                else {
                    return Err(short());
                };
                if width == 0 || height == 0 {
                    return Err(corrupt(format!("its size is {width}x{height}")));
                }
                size = Some((width, height, least(width, height, depth, color)));
            }
            (_, None) => return Err(corrupt("it does not begin with a header of 13 bytes")),
            (b"IDAT", Some((width, height, least))) => {
                return Ok(Outer { width, height, orientation, least });
            }
            (b"IEND", _) => return Err(corrupt("it has no image data")),
            (b"eXIf", _) => {
                let exif = rest.get(..length).and_then(Orientation::from_exif_chunk);
                orientation = exif.map_or(1, Orientation::to_exif);
            }
            _ => {}
        }
        at += 12 + length;
    }
}

/// Bytes of a file at least: its samples alone, compressed as well as can be.
fn least(width: u32, height: u32, depth: u8, color: u8) -> u64 {
    let samples = match color {
        0 | 3 => 1,
        4 => 2,
        2 => 3,
        6 => 4,
        _ => 0,
    };
    let bits = u128::from(width) * u128::from(height) * u128::from(depth) * samples;
    u64::try_from(bits / 8).unwrap_or(u64::MAX).div_ceil(EXPANSION)
}

/// Where the last `IDAT` of a file ends that is cut there or in the head of the next chunk.
fn end_of_data(bytes: &[u8]) -> Option<usize> {
    let (mut at, mut is_data) = (SIGNATURE, false);
    loop {
        let rest = bytes.get(at..)?;
        let Some(&[a, b, c, d, ref kind @ ..]) = rest.first_chunk::<8>() else {
            return is_data.then_some(at);
        };
        is_data = kind == b"IDAT";
        at += 12 + u32::from_be_bytes([a, b, c, d]) as usize;
    }
}

/// Memory that is reused.
#[derive(Debug, Default)]
pub(super) struct Png {
    raw: Buffer,
    /// A file that lacks its end, with one.
    file: Buffer,
}

impl Png {
    pub(super) fn buffers(&mut self) -> [&mut Buffer; 2] {
        [&mut self.raw, &mut self.file]
    }

    /// Decodes the whole image into `out`, which is exactly as large.
    pub(super) fn decode(&mut self, bytes: &[u8], head: &Head, wish: &Wish, out: &mut [u8]) -> Result<()> {
        let cut = match self.read(bytes, head, wish, out) {
            Err(cut) if cut.kind() == ErrorKind::Truncated => cut,
            other => return other,
        };
        let Some(end) = end_of_data(bytes) else { return Err(cut) };
        let mut buffer = std::mem::take(&mut self.file);
        let file = buffer.join(&[&bytes[..end], END], head);
        let again = file.and_then(|file| self.read(file, head, wish, out));
        self.file = buffer;
        again.or(Err(cut))
    }

    fn read(&mut self, bytes: &[u8], head: &Head, wish: &Wish, out: &mut [u8]) -> Result<()> {
        let mut options = DecodeOptions::default();
        options.set_ignore_checksums(false);
        options.set_ignore_adler32(false);
        options.set_skip_ancillary_crc_failures(true);
        options.set_ignore_text_chunk(true);
        options.set_ignore_iccp_chunk(true);
        let mut decoder = Decoder::new_with_options(Cursor::new(bytes), options);
        decoder.set_transformations(Transformations::EXPAND);
        let mut reader = decoder.read_info().map_err(error)?;
        let (width, height) = reader.info().size();
        same_size(head, width, height)?;
        let (color, depth) = reader.output_color_type();
        let samples = Samples { channels: color.samples(), wide: depth == BitDepth::Sixteen };
        let needed = reader.output_buffer_size().ok_or_else(|| corrupt("its size overflows"))?;
        if samples.are(wish.color) {
            reader.next_frame(out).map_err(error)?;
            return Ok(());
        }
        let raw = self.raw.take(needed, head)?;
        reader.next_frame(raw).map_err(error)?;
        samples.convert(raw, wish.color, out);
        Ok(())
    }
}

fn corrupt(what: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::Corrupt, format!("corrupt PNG: {what}"))
}

fn error(error: DecodingError) -> Error {
    match &error {
        DecodingError::IoError(e) if e.kind() == Io::UnexpectedEof => {
            Error::new(ErrorKind::Truncated, "truncated PNG: the file ends inside the image's data")
        }
        DecodingError::LimitsExceeded => {
            Error::new(ErrorKind::LimitExceeded, "a PNG with chunks over 64 MiB")
        }
        _ => corrupt(&error),
    }
    .caused_by(error)
}

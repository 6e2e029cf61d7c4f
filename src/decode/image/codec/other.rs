//! WebP, BMP and the first frame of a GIF, by the `image` crate.

use std::io::{Cursor, ErrorKind as Io};

use image::codecs::{bmp::BmpDecoder, gif::GifDecoder, webp::WebPDecoder};
use image::{ColorType, ImageDecoder, ImageError};

use super::{Buffer, Format, Head, Limits, Outer, Samples, Wish, same_size};
use crate::error::{Error, ErrorKind, Result};

/// The size, and an orientation where the format has one.
pub(super) fn head(bytes: &[u8], format: Format, limits: Limits) -> Result<Outer> {
    whole(bytes, format)?;
    if let Some((width, height)) = canvas(bytes).filter(|_| format == Format::WebP) {
        limits.check(format, width, height)?;
    }
    fn of(mut decoder: impl ImageDecoder) -> (u32, u32, u8) {
        let (width, height) = decoder.dimensions();
        (width, height, decoder.orientation().map_or(1, |o| o.to_exif()))
    }
    let cursor = Cursor::new(bytes);
    let failed = |e| error(e, format);
    let (width, height, orientation) = match format {
        Format::WebP => of(WebPDecoder::new(cursor).map_err(failed)?),
        Format::Bmp => bmp_size(bytes).map(|(width, height)| (width, height, 1))?,
        _ => of(GifDecoder::new(cursor).map_err(failed)?),
    };
    if width == 0 || height == 0 {
        return Err(Error::new(
            ErrorKind::Corrupt,
            format!("corrupt {}: its size is {width}x{height}", format.name()),
        ));
    }
    let least = if format == Format::Bmp { bmp_least(bytes, width, height) } else { 0 };
    Ok(Outer { width, height, orientation, least })
}

/// The size that a BMP declares: its decoder refuses large ones in other words than those of a limit.
fn bmp_size(bytes: &[u8]) -> Result<(u32, u32)> {
    let short = || Error::new(ErrorKind::Truncated, "truncated BMP: the file ends inside its header");
    let number = |at: usize| bytes.get(at..).and_then(|rest| rest.first_chunk::<4>()).ok_or_else(short);
    if number(14)?[0] < 40 {
        let [w0, w1, h0, h1] = *number(18)?;
        return Ok((u16::from_le_bytes([w0, w1]).into(), u16::from_le_bytes([h0, h1]).into()));
    }
    let (width, height) = (i32::from_le_bytes(*number(18)?), i32::from_le_bytes(*number(22)?));
    // A negative height says that the upper row comes first.
    Ok((width.max(0).unsigned_abs(), height.unsigned_abs()))
}

/// Bytes of a BMP at least: its samples where they are not compressed, without the padding of rows.
fn bmp_least(bytes: &[u8], width: u32, height: u32) -> u64 {
    let number =
        |at: usize| bytes.get(at..).and_then(|rest| rest.first_chunk()).map(|n| u16::from_le_bytes(*n));
    let (bits, compression) = match bytes.get(14) {
        Some(..40) => (number(24), Some(0)),
        _ => (number(28), number(30)),
    };
    match (bits, compression) {
        // None, or with masks for the colours.
        (Some(bits), Some(0 | 3 | 6)) => {
            let bits = u128::from(width) * u128::from(height) * u128::from(bits);
            u64::try_from(bits / 8).unwrap_or(u64::MAX)
        }
        _ => 0,
    }
}

/// The size that an extended WebP declares: as with a BMP, and a frame need not be there.
fn canvas(bytes: &[u8]) -> Option<(u32, u32)> {
    let &[w0, w1, w2, h0, h1, h2] = bytes.get(24..30).filter(|_| &bytes[12..16] == b"VP8X")? else {
        return None;
    };
    Some((u32::from_le_bytes([w0, w1, w2, 0]) + 1, u32::from_le_bytes([h0, h1, h2, 0]) + 1))
}

/// A WebP says how long it is.
fn whole(bytes: &[u8], format: Format) -> Result<()> {
    let size = bytes.get(4..).and_then(|rest| rest.first_chunk()).map_or(0, |n| u32::from_le_bytes(*n));
    let needed = u64::from(size) + 8;
    if format == Format::WebP && (bytes.len() as u64) < needed {
        let what = format!("truncated WebP: {} of {needed} bytes", bytes.len());
        return Err(Error::new(ErrorKind::Truncated, what));
    }
    Ok(())
}

/// Memory that is reused.
#[derive(Debug, Default)]
pub(super) struct Other {
    raw: Buffer,
}

impl Other {
    pub(super) fn buffer(&mut self) -> &mut Buffer {
        &mut self.raw
    }

    /// Decodes the whole image into `out`, which is exactly as large.
    pub(super) fn decode(&mut self, bytes: &[u8], head: &Head, wish: &Wish, out: &mut [u8]) -> Result<()> {
        whole(bytes, head.format)?;
        let cursor = Cursor::new(bytes);
        let failed = |e| error(e, head.format);
        if head.format == Format::Bmp && head.width.max(head.height) > 0xffff {
            let what =
                format!("a BMP of {}x{}, which is not read: at most 65,535 a side", head.width, head.height);
            return Err(Error::new(ErrorKind::Unsupported, what));
        }
        match head.format {
            Format::WebP => self.read(WebPDecoder::new(cursor).map_err(failed)?, head, wish, out),
            Format::Bmp => self.read(BmpDecoder::new(cursor).map_err(failed)?, head, wish, out),
            _ => self.read(GifDecoder::new(cursor).map_err(failed)?, head, wish, out),
        }
    }

    fn read(
        &mut self,
        mut decoder: impl ImageDecoder,
        head: &Head,
        wish: &Wish,
        out: &mut [u8],
    ) -> Result<()> {
        let (width, height) = decoder.dimensions();
        same_size(head, width, height)?;
        let failed = |e| error(e, head.format);
        let channels = match decoder.color_type() {
            ColorType::L8 => 1,
            ColorType::La8 => 2,
            ColorType::Rgb8 => 3,
            ColorType::Rgba8 => 4,
            other => {
                let what = format!("a {} of the type {other:?}, which is not read", head.format.name());
                return Err(Error::new(ErrorKind::Unsupported, what));
            }
        };
        let samples = Samples { channels, wide: false };
        let mut limits = image::Limits::default();
        // What a frame may take that lies outside the image that the file declares.
        limits.max_alloc = Some(decoder.total_bytes().max(64 << 20));
        decoder.set_limits(limits).map_err(failed)?;
        if samples.are(wish.color) {
            return decoder.read_image(out).map_err(failed);
        }
        let bytes = usize::try_from(decoder.total_bytes())
            .map_err(|_| Error::new(ErrorKind::LimitExceeded, "an image larger than the address space"))?;
        let raw = self.raw.take(bytes, head)?;
        decoder.read_image(raw).map_err(failed)?;
        samples.convert(raw, wish.color, out);
        Ok(())
    }
}

/// What the crate `gif` says, whose error type `image` doesn't show.
const GIF_ENDS: &str = "Unexpected End of File";

fn error(error: ImageError, format: Format) -> Error {
    // An `ImageError` is not the source of what it wraps, but gives that one's source as its own.
    let mut early = matches!(&error, ImageError::IoError(e) if e.kind() == Io::UnexpectedEof);
    let mut cause = std::error::Error::source(&error);
    while let Some(e) = cause {
        early |= e.downcast_ref::<std::io::Error>().is_some_and(|e| e.kind() == Io::UnexpectedEof);
        early |= e.to_string() == GIF_ENDS;
        cause = e.source();
    }
    let name = format.name();
    let (kind, word) = match &error {
        _ if early => (ErrorKind::Truncated, "truncated"),
        ImageError::Unsupported(_) => (ErrorKind::Unsupported, "unsupported"),
        ImageError::Limits(_) => (ErrorKind::LimitExceeded, "too large"),
        _ => (ErrorKind::Corrupt, "corrupt"),
    };
    Error::new(kind, format!("{word} {name}: {error}")).caused_by(error)
}

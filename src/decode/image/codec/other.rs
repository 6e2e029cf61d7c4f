//! WebP, BMP and the first frame of a GIF, by the `image` crate.

use std::io::{Cursor, ErrorKind as Io};

use image::codecs::{bmp::BmpDecoder, gif::GifDecoder, webp::WebPDecoder};
use image::{ColorType, ImageDecoder, ImageError, Limits};

use super::{Format, Head, Samples, Wish, same_size};
use crate::error::{Error, ErrorKind, Result};

/// Width, height, orientation.
pub(super) fn head(bytes: &[u8], format: Format) -> Result<(u32, u32, u8)> {
    whole(bytes, format)?;
    fn of(mut decoder: impl ImageDecoder) -> (u32, u32, u8) {
        let (width, height) = decoder.dimensions();
        (width, height, decoder.orientation().map_or(1, |o| o.to_exif()))
    }
    let cursor = Cursor::new(bytes);
    let failed = |e| error(e, format);
    let (width, height, orientation) = match format {
        Format::WebP => of(WebPDecoder::new(cursor).map_err(failed)?),
        Format::Bmp => of(BmpDecoder::new(cursor).map_err(failed)?),
        _ => of(GifDecoder::new(cursor).map_err(failed)?),
    };
    if width == 0 || height == 0 {
        return Err(Error::new(
            ErrorKind::Corrupt,
            format!("corrupt {}: its size is {width}x{height}", format.name()),
        ));
    }
    Ok((width, height, orientation))
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
    raw: Vec<u8>,
}

impl Other {
    /// Decodes the whole image into `out`, which is exactly as large.
    pub(super) fn decode(&mut self, bytes: &[u8], head: &Head, wish: &Wish, out: &mut [u8]) -> Result<()> {
        whole(bytes, head.format)?;
        let cursor = Cursor::new(bytes);
        let failed = |e| error(e, head.format);
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
        let mut limits = Limits::default();
        // What a frame may take that lies outside the image that the file declares.
        limits.max_alloc = Some(decoder.total_bytes().max(64 << 20));
        decoder.set_limits(limits).map_err(failed)?;
        if samples.are(wish.color) {
            return decoder.read_image(out).map_err(failed);
        }
        let bytes = usize::try_from(decoder.total_bytes())
            .map_err(|_| Error::new(ErrorKind::LimitExceeded, "an image larger than the address space"))?;
        self.raw.resize(bytes, 0);
        decoder.read_image(&mut self.raw).map_err(failed)?;
        samples.convert(&self.raw, wish.color, out);
        Ok(())
    }
}

fn error(error: ImageError, format: Format) -> Error {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(&error);
    let mut early = false;
    while let Some(e) = cause {
        early |= e.downcast_ref::<std::io::Error>().is_some_and(|e| e.kind() == Io::UnexpectedEof);
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

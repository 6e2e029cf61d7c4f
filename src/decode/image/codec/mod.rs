//! From the bytes of a file to pixels.

#[cfg(feature = "turbojpeg")]
mod turbo;

use std::io::Cursor;

use crate::error::{Error, ErrorKind, Result};

/// The formats that are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    Jpeg,
    Png,
    WebP,
    Bmp,
    Gif,
}

/// How pixels lie: 3 bytes a pixel, red first, or 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Color {
    Rgb8,
    Gray8,
}

impl Color {
    /// Bytes a pixel.
    pub(crate) fn channels(self) -> usize {
        match self {
            Self::Rgb8 => 3,
            Self::Gray8 => 1,
        }
    }
}

/// A rectangle of pixels of the stored image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rect {
    pub(crate) x: u32,
    pub(crate) y: u32,
    pub(crate) width: u32,
    pub(crate) height: u32,
}

/// What the head of a file says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) format: Format,
    /// Of the image as it is stored.
    pub(crate) width: u32,
    pub(crate) height: u32,
    /// How EXIF says to turn the stored image, 1 to 8; 1 where nothing is said.
    pub(crate) orientation: u8,
}

/// The largest files and images that are decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Limits {
    pub(crate) bytes: u64,
    pub(crate) pixels: u64,
}

/// What is asked of a codec.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wish {
    pub(crate) color: Color,
    /// The part of the stored image that is needed. A codec may decode more of it.
    pub(crate) region: Rect,
    /// 1, 2, 4 or 8: the image may be decoded at this fraction of its size.
    pub(crate) shrink: u32,
    /// Whether a file that ends early gives the pixels that are there.
    pub(crate) lenient: bool,
}

/// Decoded pixels: `width` × `height` of them, rows one after another without gaps.
#[derive(Debug)]
pub(crate) struct Pixels<'a> {
    pub(crate) bytes: &'a [u8],
    pub(crate) width: u32,
    pub(crate) height: u32,
    /// Where the first pixel lies in the image at the scale that it was decoded at.
    pub(crate) x: u32,
    pub(crate) y: u32,
    /// 1, 2, 4 or 8: the size of the stored image over that of the decoded one, rounded up. At most what was asked.
    pub(crate) shrink: u32,
    /// Whether the file ended early.
    pub(crate) partial: bool,
}

/// Reads the head of a file: its format by its bytes, its size, its orientation.
///
/// # Errors
/// [`ErrorKind::Empty`], [`ErrorKind::Unsupported`], [`ErrorKind::Truncated`], [`ErrorKind::Corrupt`],
/// [`ErrorKind::LimitExceeded`] before anything is allocated.
pub(crate) fn head(bytes: &[u8], _limits: Limits) -> Result<Head> {
    let reader = image::ImageReader::new(Cursor::new(bytes)).with_guessed_format();
    let format = match reader.as_ref().ok().and_then(image::ImageReader::format) {
        _ if bytes.starts_with(&[0xff, 0xd8]) => Format::Jpeg,
        Some(image::ImageFormat::Png) => Format::Png,
        Some(image::ImageFormat::WebP) => Format::WebP,
        Some(image::ImageFormat::Bmp) => Format::Bmp,
        Some(image::ImageFormat::Gif) => Format::Gif,
        _ => return Err(Error::new(ErrorKind::Unsupported, "neither JPEG, PNG, WebP, BMP nor GIF")),
    };
    let mut codec = Codec::default();
    let (width, height) = codec.all(bytes, format, Color::Rgb8)?;
    Ok(Head { format, width, height, orientation: 1 })
}

/// Decoders, and the memory that they reuse from image to image: one a worker.
#[derive(Debug, Default)]
pub(crate) struct Codec {
    pixels: Vec<u8>,
}

impl Codec {
    /// Decodes at least `wish.region`.
    ///
    /// # Errors
    /// As [`head`], and [`ErrorKind::Truncated`] where a file ends early, unless `wish.lenient`.
    pub(crate) fn decode(&mut self, bytes: &[u8], head: &Head, wish: &Wish) -> Result<Pixels<'_>> {
        let (width, height) = self.all(bytes, head.format, wish.color)?;
        Ok(Pixels { bytes: &self.pixels, width, height, x: 0, y: 0, shrink: 1, partial: false })
    }

    /// Decodes the whole image, unless `shrink` says otherwise at 1/`shrink` of its size, into `out`, whose rows are `stride` bytes apart; whether the
    /// file ended early.
    ///
    /// # Errors
    /// As [`Codec::decode`]; [`ErrorKind::InvalidArgument`] where `out` is too small for it.
    pub(crate) fn decode_into(
        &mut self,
        bytes: &[u8],
        head: &Head,
        wish: &Wish,
        out: &mut [u8],
        stride: usize,
    ) -> Result<bool> {
        let pixels = self.decode(bytes, head, wish)?;
        let row = pixels.width as usize * wish.color.channels();
        for (from, to) in pixels.bytes.chunks_exact(row).zip(out.chunks_mut(stride)) {
            to[..row].copy_from_slice(from);
        }
        Ok(pixels.partial)
    }

    fn all(&mut self, bytes: &[u8], format: Format, color: Color) -> Result<(u32, u32)> {
        let corrupt = |e: String| Error::new(ErrorKind::Corrupt, e);
        let image = if format == Format::Jpeg {
            let mut decoder =
                zune_jpeg::JpegDecoder::new(zune_jpeg::zune_core::bytestream::ZCursor::new(bytes));
            let pixels = decoder.decode().map_err(|e| corrupt(e.to_string()))?;
            let info = decoder.info().unwrap_or_default();
            let image = image::RgbImage::from_raw(info.width.into(), info.height.into(), pixels);
            image::DynamicImage::from(image.unwrap_or_default())
        } else {
            let reader = image::ImageReader::new(Cursor::new(bytes)).with_guessed_format();
            reader.map_err(|e| corrupt(e.to_string()))?.decode().map_err(|e| corrupt(e.to_string()))?
        };
        let size = (image.width(), image.height());
        self.pixels = match color {
            Color::Rgb8 => image.into_rgb8().into_raw(),
            Color::Gray8 => image.into_luma8().into_raw(),
        };
        Ok(size)
    }
}

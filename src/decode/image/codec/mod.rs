//! From the bytes of a file to pixels: JPEG, PNG, WebP, BMP and the first frame of a GIF, told apart by their bytes.
//!
//! ```
//! use warpfeed::decode::codec::{self, Codec, Color, Limits, Wish};
//!
//! # fn main() -> warpfeed::Result<()> {
//! # let file = b"BM\x1e\0\0\0\0\0\0\0\x1a\0\0\0\x0c\0\0\0\x01\0\x01\0\x01\0\x18\0\x03\x02\x01\0";
//! let head = codec::head(file, Limits::default())?; // no pixel is decoded
//! let mut codec = Codec::default(); // one a thread
//! let pixels = codec.decode(file, &head, &Wish::new(&head, Color::Rgb8))?;
//! assert_eq!((pixels.width, pixels.height, pixels.bytes), (1, 1, &[1, 2, 3][..]));
//! # Ok(())
//! # }
//! ```
//!
//! # What becomes of the colours
//! [`Color::Rgb8`] has three bytes a pixel: gray is copied three times; alpha is dropped without blending, so that what a
//! transparent pixel hides comes to light; CMYK and YCCK become (255 − ink) (255 − black) / 255, without a colour profile, the inks
//! taken to be stored inverted, as Adobe's and all other known programs do; of 16-bit PNG samples the value over 257 is taken, rounded;
//! palettes, 1, 2 and 4 bits and interlacing are undone. [`Color::Gray8`] is ITU-R 601's luma of that, (19595 R + 38470 G + 7471 B + 32768) >> 16,
//! as Pillow's `convert("L")`; what is gray in the file stays what it is. Colour profiles and gamma are not applied.
//!
//! # The feature `turbojpeg`
//! JPEG files are then decoded by libjpeg-turbo, else by zune-jpeg: the pixels of the two differ by a few steps at most. Only libjpeg-turbo
//! leaves out what lies outside [`Wish::region`], and it alone decodes at 1/[`Wish::shrink`], where an image of `n` columns has
//! ⌈`n` / `shrink`⌉. What is wrong behind the rows of the region is then not looked for, in a file that its markers show to be whole.
//!
//! # Memory
//! A [`Codec`] keeps its buffers for the next image; of each, what is over 16 MiB is given back once an image needs less than half of it.
//! Where the allocator has no room for the pixels of an image the error is [`ErrorKind::LimitExceeded`]. The decoders' own memory (zune-jpeg's
//! coefficients of a progressive file, two bytes a sample; rows and tables of the others; the resizer's rows) is allocated by them, and a failure
//! there ends the process: where memory is scarce, set [`Limits`].
//!
//! # Files that are not whole
//! A file that ends early is an error, [`ErrorKind::Truncated`], whatever comes where it ends: nothing, zeros, another file. With
//! [`Wish::lenient`] a JPEG whose headers are there gives the pixels that were decoded, the rest gray or as the decoder guessed it, and
//! [`Pixels::partial`] is set; the other formats remain errors. The same bytes always give the same pixels. A JPEG that lacks its end marker
//! alone is whole, and so is a PNG that lacks its `IEND` alone. So is a file with bytes behind its end.
//!
//! PNG has checksums; those of chunks that don't matter for the pixels may be wrong. JPEG, WebP, BMP and GIF have none:
//! bytes that were changed in the middle show only where the codes stop making sense. What a cut JPEG can hide: where an end marker was set behind
//! the cut, up to 30 missing bytes of a sequential file, or the end of the last refinement of a progressive one.

use super::orientation::Turn;
use crate::error::{Error, ErrorKind, Result};

mod buffer;
mod format;
/// Calls of the codecs, for fuzz targets.
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzzing;
mod jpeg;
mod other;
mod png;

pub(super) use buffer::{Buffer, KEPT};

/// The formats that are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Format {
    /// JPEG: baseline, extended and progressive Huffman coding, 8 bits.
    Jpeg,
    /// PNG, all types; of an animation the default image.
    Png,
    /// WebP, lossy and lossless; of an animation the first frame.
    WebP,
    /// BMP.
    Bmp,
    /// GIF: the first frame.
    Gif,
}

impl Format {
    /// The format of a file, by how it begins.
    ///
    /// # Errors
    /// [`ErrorKind::Empty`] of no bytes; [`ErrorKind::Unsupported`] of another format: the message names it or shows the
    /// first bytes; [`ErrorKind::Truncated`] where a signature is cut, [`ErrorKind::Corrupt`] where it is damaged.
    pub fn of(bytes: &[u8]) -> Result<Self> {
        format::format(bytes)
    }

    /// The format's name in messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Jpeg => "JPEG",
            Self::Png => "PNG",
            Self::WebP => "WebP",
            Self::Bmp => "BMP",
            Self::Gif => "GIF",
        }
    }
}

/// How pixels lie: 3 bytes a pixel, red first, or 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Color {
    /// Red, green, blue.
    Rgb8,
    /// Luma.
    Gray8,
}

impl Color {
    /// Bytes a pixel.
    pub fn channels(self) -> usize {
        match self {
            Self::Rgb8 => 3,
            Self::Gray8 => 1,
        }
    }
}

/// A rectangle of pixels of the stored image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Rect {
    pub x: u32,
    pub y: u32,
    pub width: u32,
    pub height: u32,
}

/// What the head of a file says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Head {
    /// By the file's bytes.
    pub format: Format,
    /// Pixels of a row of the image as it is stored, at least 1.
    pub width: u32,
    /// Rows of the image as it is stored, at least 1.
    pub height: u32,
    /// How EXIF says to turn the stored image, 1 to 8; 1 where nothing is said.
    pub orientation: u8,
}

impl Head {
    /// Refuses an image that has not the size that its labels `declare`, width and height: neither as stored nor as turned by its EXIF
    /// orientation.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidLabel`] with both sizes.
    pub fn check_size(&self, declared: [u32; 2]) -> Result<()> {
        let stored = [self.width, self.height];
        if declared == stored || declared == Turn::of(self.orientation).size(stored) {
            return Ok(());
        }
        let [[w, h], [width, height]] = [declared, stored];
        let text = format!("the labels are of an image of {w}x{h} pixels, the file has {width}x{height}");
        Err(Error::new(ErrorKind::InvalidLabel, text))
    }
}

/// The largest files and images that are decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// Bytes of a file.
    pub bytes: u64,
    /// Pixels of an image, width times height as stored.
    pub pixels: u64,
}

impl Limits {
    /// The default limit of a file's bytes: 256 MiB.
    pub const BYTES: u64 = 256 << 20;
    /// The default limit of an image's pixels: what Pillow refuses as a decompression bomb, twice its `MAX_IMAGE_PIXELS` of 89,478,485.
    pub const PIXELS: u64 = 178_956_970;
}

impl Limits {
    fn check(self, format: Format, width: u32, height: u32) -> Result<()> {
        let pixels = u64::from(width) * u64::from(height);
        if pixels <= self.pixels {
            return Ok(());
        }
        let (name, limit) = (format.name(), self.pixels);
        let what = format!("a {name} of {width}x{height}, {pixels} pixels, over the limit of {limit}");
        Err(Error::new(ErrorKind::LimitExceeded, what))
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self { bytes: Self::BYTES, pixels: Self::PIXELS }
    }
}

/// What is asked of a codec.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Wish {
    /// How the pixels shall lie.
    pub color: Color,
    /// The part of the stored image that is needed. A codec may decode more of it.
    pub region: Rect,
    /// 1, 2, 4 or 8: the image may be decoded at this fraction of its size.
    pub shrink: u32,
    /// Whether a file that ends early gives the pixels that are there.
    pub lenient: bool,
}

impl Wish {
    /// All of an image at its full size, and an error where it ends early.
    pub fn new(head: &Head, color: Color) -> Self {
        let region = Rect { x: 0, y: 0, width: head.width, height: head.height };
        Self { color, region, shrink: 1, lenient: false }
    }
}

/// Decoded pixels: `width` × `height` of them, rows one after another without gaps.
#[derive(Debug)]
#[non_exhaustive]
pub struct Pixels<'a> {
    /// [`Color::channels`] bytes a pixel.
    pub bytes: &'a [u8],
    /// Pixels of a row.
    pub width: u32,
    /// Rows.
    pub height: u32,
    /// Where the first pixel lies in the image at the scale that it was decoded at.
    pub x: u32,
    /// As `x`.
    pub y: u32,
    /// 1, 2, 4 or 8: the size of the stored image over that of the decoded one, rounded up. At most what was asked.
    pub shrink: u32,
    /// Whether the file ended early.
    pub partial: bool,
}

/// A file as its first bytes show it.
#[derive(Debug, Clone, Copy)]
struct Outer {
    width: u32,
    height: u32,
    orientation: u8,
    /// Bytes that a whole file of this size has at least.
    least: u64,
}

/// Reads the head of a file: its format by its bytes, its size, its orientation. No pixel is decoded, and nothing is allocated that
/// the file's size or its declared size could make large. A file that is too short for the pixels that it declares, however well they are
/// compressed, is [`ErrorKind::Truncated`] here, for [`Wish::lenient`] too.
///
/// # Errors
/// As [`Format::of`]; [`ErrorKind::Unsupported`] of features that are not read; [`ErrorKind::Truncated`] and [`ErrorKind::Corrupt`];
/// [`ErrorKind::LimitExceeded`].
pub fn head(bytes: &[u8], limits: Limits) -> Result<Head> {
    let format = Format::of(bytes)?;
    if bytes.len() as u64 > limits.bytes {
        let what =
            format!("a {} file of {} bytes, over the limit of {}", format.name(), bytes.len(), limits.bytes);
        return Err(Error::new(ErrorKind::LimitExceeded, what));
    }
    let Outer { width, height, orientation, least } = match format {
        Format::Jpeg => jpeg::head(bytes)?,
        Format::Png => png::head(bytes)?,
        _ => other::head(bytes, format, limits)?,
    };
    limits.check(format, width, height)?;
    if (bytes.len() as u64) < least {
        let what = format!(
            "truncated {}: {width}x{height} pixels take {least} bytes at least, the file has {}",
            format.name(),
            bytes.len()
        );
        return Err(Error::new(ErrorKind::Truncated, what));
    }
    Ok(Head { format, width, height, orientation })
}

/// Decoders, and the memory that they reuse from image to image: one a worker. Of each of their buffers what is over 16 MiB is given
/// back once an image needs less than half of it.
#[derive(Debug, Default)]
pub struct Codec {
    pixels: Buffer,
    #[cfg(feature = "turbojpeg")]
    jpeg: jpeg::Turbo,
    #[cfg(not(feature = "turbojpeg"))]
    jpeg: jpeg::Zune,
    png: png::Png,
    other: other::Other,
}

impl Codec {
    /// Decodes at least `wish.region` of a file whose [`head`] is `head`.
    ///
    /// # Errors
    /// As [`head`], and [`ErrorKind::Truncated`] where a file ends early, unless `wish.lenient`;
    /// [`ErrorKind::InvalidArgument`] where `head` is another file's.
    pub fn decode(&mut self, bytes: &[u8], head: &Head, wish: &Wish) -> Result<Pixels<'_>> {
        #[cfg(feature = "turbojpeg")]
        if head.format == Format::Jpeg {
            let decoded = self.jpeg.decode(bytes, head, wish, &mut self.pixels);
            let decoded = decoded.map(|p| (p.width, p.height, p.x, p.y, p.shrink, p.partial));
            self.settle();
            let (width, height, x, y, shrink, partial) = decoded?;
            return Ok(Pixels { bytes: self.pixels.bytes(), width, height, x, y, shrink, partial });
        }
        let all = size(head, wish.color)?;
        let mut pixels = std::mem::take(&mut self.pixels);
        let partial = pixels.take(all, head).and_then(|out| self.all(bytes, head, wish, out));
        self.pixels = pixels;
        self.settle();
        let (width, height) = (head.width, head.height);
        Ok(Pixels { bytes: self.pixels.bytes(), width, height, x: 0, y: 0, shrink: 1, partial: partial? })
    }

    fn buffers(&mut self) -> impl Iterator<Item = &mut Buffer> {
        let Self { pixels, jpeg, png, other } = self;
        std::iter::once(pixels).chain(jpeg.buffers()).chain(png.buffers()).chain([other.buffer()])
    }

    /// An image is done.
    fn settle(&mut self) {
        self.buffers().for_each(Buffer::settle);
    }

    /// Bytes of memory that are held.
    #[cfg(test)]
    pub(super) fn held(&mut self) -> usize {
        self.buffers().map(|buffer| buffer.held()).sum()
    }

    /// Whether this format is decoded at the fraction of its size that is asked for.
    pub(crate) fn shrinks(format: Format) -> bool {
        cfg!(feature = "turbojpeg") && format == Format::Jpeg
    }

    /// Decodes the whole image, unless `shrink` says otherwise at 1/`shrink` of its size, into `out`, whose rows are `stride` bytes apart; whether the
    /// file ended early. What lies between the rows stays as it is. After an error `out` holds anything.
    ///
    /// # Errors
    /// As [`Codec::decode`]; [`ErrorKind::InvalidArgument`] where `out` is too small for it.
    pub fn decode_into(
        &mut self,
        bytes: &[u8],
        head: &Head,
        wish: &Wish,
        out: &mut [u8],
        stride: usize,
    ) -> Result<bool> {
        #[cfg(feature = "turbojpeg")]
        if head.format == Format::Jpeg {
            let partial = self.jpeg.decode_into(bytes, head, wish, out, stride);
            self.settle();
            return partial;
        }
        let all = size(head, wish.color)?;
        let (row, rows) = (head.width as usize * wish.color.channels(), head.height as usize);
        let needed = stride.checked_mul(rows - 1).and_then(|n| n.checked_add(row));
        if stride < row || needed.is_none_or(|n| out.len() < n) {
            let what = format!(
                "{} bytes with a stride of {stride} for an image of {rows} rows of {row} bytes",
                out.len()
            );
            return Err(Error::new(ErrorKind::InvalidArgument, what));
        }
        if stride == row {
            let partial = self.all(bytes, head, wish, &mut out[..all]);
            self.settle();
            return partial;
        }
        let pixels = self.decode(bytes, head, wish)?;
        for (from, to) in pixels.bytes.chunks_exact(row).zip(out.chunks_mut(stride)) {
            to[..row].copy_from_slice(from);
        }
        Ok(pixels.partial)
    }

    /// Decodes the whole image into `out`, which is exactly as large.
    fn all(&mut self, bytes: &[u8], head: &Head, wish: &Wish, out: &mut [u8]) -> Result<bool> {
        match head.format {
            #[cfg(not(feature = "turbojpeg"))]
            Format::Jpeg => self.jpeg.decode(bytes, head, wish, out),
            Format::Png => self.png.decode(bytes, head, wish, out).map(|()| false),
            _ => self.other.decode(bytes, head, wish, out).map(|()| false),
        }
    }
}

/// Bytes of the decoded image.
fn size(head: &Head, color: Color) -> Result<usize> {
    let pixels = (head.width as usize).checked_mul(head.height as usize);
    let size = pixels.and_then(|n| n.checked_mul(color.channels())).filter(|n| isize::try_from(*n).is_ok());
    let what = || Error::new(ErrorKind::LimitExceeded, "an image larger than the address space");
    if size == Some(0) {
        return Err(Error::new(ErrorKind::InvalidArgument, "a head without pixels"));
    }
    size.ok_or_else(what)
}

/// Whether `head` is that of a file of this size.
fn same_size(head: &Head, width: u32, height: u32) -> Result<()> {
    if (head.width, head.height) == (width, height) {
        return Ok(());
    }
    let what = format!("the head is of a {}x{} image, the file of {width}x{height}", head.width, head.height);
    Err(Error::new(ErrorKind::InvalidArgument, what))
}

/// How a decoder gives its samples.
#[derive(Debug, Clone, Copy)]
struct Samples {
    /// 1 or 2: gray, 3 or 4: red, green, blue; an even number has alpha last.
    channels: usize,
    /// 16 bits, the high byte first.
    wide: bool,
}

impl Samples {
    /// Whether they are what is asked for.
    fn are(self, color: Color) -> bool {
        self.channels == color.channels() && !self.wide
    }

    fn convert(self, raw: &[u8], color: Color, out: &mut [u8]) {
        match (self.channels, self.wide) {
            (1, false) => convert::<1>(raw, |p| [p[0]; 3], color, out),
            (2, false) => convert::<2>(raw, |p| [p[0]; 3], color, out),
            (3, false) => convert::<3>(raw, |p| *p, color, out),
            (4, false) => convert::<4>(raw, |[r, g, b, _]| [*r, *g, *b], color, out),
            (1, true) => convert::<2>(raw, |p| [narrow(*p); 3], color, out),
            (2, true) => convert::<4>(raw, |p| [narrow([p[0], p[1]]); 3], color, out),
            (3, true) => convert::<6>(raw, |[a, b, c, d, e, f]| wide([*a, *b, *c, *d, *e, *f]), color, out),
            _ => convert::<8>(raw, |[a, b, c, d, e, f, ..]| wide([*a, *b, *c, *d, *e, *f]), color, out),
        }
    }
}

fn convert<const N: usize>(raw: &[u8], rgb: impl Fn(&[u8; N]) -> [u8; 3], color: Color, out: &mut [u8]) {
    let pixels = raw.as_chunks::<N>().0.iter().map(rgb);
    match color {
        Color::Rgb8 => out.as_chunks_mut::<3>().0.iter_mut().zip(pixels).for_each(|(to, from)| *to = from),
        Color::Gray8 => out.iter_mut().zip(pixels).for_each(|(to, from)| *to = luma(from)),
    }
}

/// A 16-bit sample over 257, rounded.
fn narrow(sample: [u8; 2]) -> u8 {
    ((u32::from(u16::from_be_bytes(sample)) + 128) / 257) as u8
}

fn wide([r1, r0, g1, g0, b1, b0]: [u8; 6]) -> [u8; 3] {
    [narrow([r1, r0]), narrow([g1, g0]), narrow([b1, b0])]
}

/// ITU-R 601 in 16-bit fixed point. The weights add up to 65,536, so that gray stays what it is.
fn luma([r, g, b]: [u8; 3]) -> u8 {
    ((19595 * u32::from(r) + 38470 * u32::from(g) + 7471 * u32::from(b) + 32768) >> 16) as u8
}

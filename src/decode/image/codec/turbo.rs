//! JPEG by libjpeg-turbo: only the region that is wanted, at a fraction of its size where that will do.
//!
//! At 1/`shrink` an image of `n` columns has ⌈`n` / `shrink`⌉.
//!
//! What a file's faults do. libjpeg goes on after nearly all of them and tells of the first:
//!
//! | fault | strict | lenient |
//! |---|---|---|
//! | the end marker is missing, and nothing else | pixels | pixels |
//! | the file ends within its data, or zeros fill it from there | `Truncated` | pixels, partial |
//! | a scan ends early in a file with its end marker | `Corrupt` | pixels, partial |
//! | bytes between segments, or behind the only scan; bytes behind the end marker; an unknown JFIF revision, Adobe transform or sequential scan's parameter | pixels | pixels |
//! | anything else (a code that is none, restart markers out of order, a scan that doesn't fit) | `Corrupt` | `Corrupt` |
//!
//! The harmless ones are those where every block still comes from data of its own; libjpeg's other users read such files
//! without a word. What lies behind the last row that is wanted is not looked at in a file that ends with its end marker.

mod datastream;

use std::ffi::{CStr, c_int, c_void};
use std::ptr::NonNull;

use turbojpeg_sys as tj;

use self::datastream::Contents;
use super::{Color, Rect, Wish};
use crate::error::{Error, ErrorKind, Result};

/// More scans than any encoder writes: each one of a progressive file costs time for the whole image.
const SCANS: c_int = 100;

/// Where decoded pixels lie: the fields of [`super::Pixels`] but the bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Extent {
    pub(super) width: u32,
    pub(super) height: u32,
    pub(super) x: u32,
    pub(super) y: u32,
    pub(super) shrink: u32,
    pub(super) partial: bool,
}

/// A decoder of JPEG files, and the memory that it reuses: one a worker.
#[derive(Debug, Default)]
pub(super) struct Turbo {
    /// A file without its harmless faults.
    mended: Vec<u8>,
    /// Pixels of four inks.
    inks: Vec<u8>,
}

impl Turbo {
    /// Decodes `wish.region` and what lies around it into `out`, rows without gaps.
    ///
    /// # Errors
    /// [`ErrorKind::Empty`], [`ErrorKind::Truncated`], [`ErrorKind::Corrupt`], [`ErrorKind::Unsupported`];
    /// [`ErrorKind::LimitExceeded`] where a progressive file has too many scans; [`ErrorKind::InvalidArgument`] where the
    /// region is not in the image.
    pub(super) fn decode(&mut self, bytes: &[u8], wish: &Wish, out: &mut Vec<u8>) -> Result<Extent> {
        self.run(bytes, wish, Some(wish.region), &mut Target::Grown(out))
    }

    /// Decodes the whole image at 1/`wish.shrink` of its size into `out`, whose rows are `stride` bytes apart; whether the
    /// file ended early.
    ///
    /// # Errors
    /// As [`Turbo::decode`]; [`ErrorKind::InvalidArgument`] where `out` is too small; [`ErrorKind::Unsupported`] where the
    /// file can't be decoded at a fraction.
    pub(super) fn decode_into(
        &mut self,
        bytes: &[u8],
        wish: &Wish,
        out: &mut [u8],
        stride: usize,
    ) -> Result<bool> {
        Ok(self.run(bytes, wish, None, &mut Target::Given(out, stride))?.partial)
    }

    fn run(
        &mut self,
        bytes: &[u8],
        wish: &Wish,
        region: Option<Rect>,
        target: &mut Target<'_>,
    ) -> Result<Extent> {
        if bytes.is_empty() {
            return Err(Error::new(ErrorKind::Empty, "an empty file"));
        }
        let mut contents = None;
        if !datastream::ends_whole(bytes) {
            contents = Some(datastream::mend(bytes, &mut self.mended));
        }
        if contents.is_none_or(|contents| contents.ended) {
            let decoded = decompress(bytes, wish, region, target, &mut self.inks)?;
            match decoded.said {
                Said::Nothing => return Ok(decoded.extent),
                // A region that libjpeg refuses, where sampling factors are odd, is no fault of the file.
                Said::Refusal(kind, text) if kind != ErrorKind::Corrupt || !decoded.is_cropped => {
                    let contents = contents.unwrap_or_else(|| datastream::mend(bytes, &mut self.mended));
                    return Err(refusal(contents, kind, text));
                }
                Said::Refusal(..) | Said::Warning(_) => {}
            }
        }
        // A first warning hides others, and what lies behind a region has not been read: all of it, mended.
        let contents = contents.unwrap_or_else(|| datastream::mend(bytes, &mut self.mended));
        let decoded = decompress(&self.mended, wish, None, target, &mut self.inks)?;
        let partial = is_partial(contents, decoded.said)?;
        if !partial || wish.lenient {
            return Ok(Extent { partial, ..decoded.extent });
        }
        Err(if contents.ended {
            Error::new(ErrorKind::Corrupt, "JPEG data end early, before the end marker")
        } else {
            Error::new(ErrorKind::Truncated, "the JPEG file ends before its data do")
        })
    }
}

/// libjpeg's warnings where an end marker, the file's or its own, comes before the data are complete.
const DATA_END_EARLY: [&str; 3] =
    ["premature end of data segment", "Premature end of JPEG file", "found marker 0xd9 instead of RST"];

/// Whether pixels are missing, by what libjpeg said of a mended file as a whole.
fn is_partial(contents: Contents, said: Said) -> Result<bool> {
    match said {
        // Scans that have not come at all are nothing that libjpeg tells of.
        Said::Nothing => Ok(!contents.ended && (!contents.complete || contents.arithmetic)),
        Said::Warning(text) if DATA_END_EARLY.iter().any(|end| text.contains(end)) => Ok(true),
        // Arithmetic data that end go on as zeros, which needn't be a code.
        Said::Warning(text) if text.ends_with("bad arithmetic code") && !contents.ended => Ok(true),
        // Behind the only scan nothing more can go wrong. Without an end marker they are what a cut file was filled with.
        Said::Warning(text)
            if text.ends_with("extraneous bytes before marker 0xd9")
                && contents.scans == 1
                && !contents.restarts =>
        {
            Ok(!contents.ended)
        }
        Said::Warning(text) => Err(refusal(contents, ErrorKind::Corrupt, text)),
        Said::Refusal(kind, text) => Err(refusal(contents, kind, text)),
    }
}

fn refusal(contents: Contents, kind: ErrorKind, text: String) -> Error {
    match kind {
        ErrorKind::Corrupt if !contents.ended => {
            Error::new(ErrorKind::Truncated, format!("the JPEG file ends early: {text}"))
        }
        kind => Error::new(kind, text),
    }
}

/// Where pixels go.
enum Target<'a> {
    /// Made as large as they are, rows without gaps.
    Grown(&'a mut Vec<u8>),
    /// Rows so many bytes apart.
    Given(&'a mut [u8], usize),
}

impl Target<'_> {
    /// Room for `height` rows of `row` bytes, and how many bytes they are apart.
    fn rows(&mut self, row: usize, height: usize) -> Result<(&mut [u8], usize)> {
        let Some(bytes) = row.checked_mul(height) else {
            return Err(Error::new(ErrorKind::LimitExceeded, "the image is larger than memory"));
        };
        match self {
            Self::Grown(out) => {
                out.resize(bytes, 0);
                Ok((out, row))
            }
            Self::Given(out, stride) => {
                let end = (height - 1).checked_mul(*stride).and_then(|start| start.checked_add(row));
                if *stride < row || end.is_none_or(|end| end > out.len()) {
                    let message =
                        format!("{height} rows of {row} bytes, {stride} apart, in {} bytes", out.len());
                    return Err(Error::new(ErrorKind::InvalidArgument, message));
                }
                Ok((out, *stride))
            }
        }
    }
}

/// What libjpeg said to a call.
#[derive(Debug, PartialEq, Eq)]
enum Said {
    Nothing,
    /// There are pixels. Of several warnings this is the first.
    Warning(String),
    Refusal(ErrorKind, String),
}

struct Decoded {
    extent: Extent,
    is_cropped: bool,
    said: Said,
}

/// One pass over a file: `region` of it, or all.
fn decompress(
    bytes: &[u8],
    wish: &Wish,
    region: Option<Rect>,
    target: &mut Target<'_>,
    inks: &mut Vec<u8>,
) -> Result<Decoded> {
    // A handle keeps the tables of the image before, and a file that lacks its own would get those: so each gets a new one.
    let mut handle = Handle::new()?;
    let said = handle.read_header(bytes);
    let (width, height) =
        (handle.get(tj::TJPARAM_TJPARAM_JPEGWIDTH), handle.get(tj::TJPARAM_TJPARAM_JPEGHEIGHT));
    if matches!(said, Said::Refusal(..)) || width < 1 || height < 1 {
        let extent = Extent { width: 0, height: 0, x: 0, y: 0, shrink: 1, partial: false };
        let said = match said {
            Said::Refusal(..) => said,
            Said::Nothing | Said::Warning(_) => {
                Said::Refusal(ErrorKind::Corrupt, "a JPEG file without an image".into())
            }
        };
        return Ok(Decoded { extent, is_cropped: false, said });
    }
    let (width, height) = (width as u32, height as u32);
    let bits = handle.get(tj::TJPARAM_TJPARAM_PRECISION);
    if bits != 8 {
        return Err(Error::new(ErrorKind::Unsupported, format!("a JPEG file of {bits} bits a sample")));
    }
    let is_lossless = handle.get(tj::TJPARAM_TJPARAM_LOSSLESS) == 1;
    let shrink = if is_lossless { 1 } else { wish.shrink };
    if shrink != wish.shrink && matches!(target, Target::Given(..)) {
        let message = "a lossless JPEG file can't be decoded at a fraction of its size";
        return Err(Error::new(ErrorKind::Unsupported, message));
    }
    handle.limit_memory(u64::from(width) * u64::from(height))?;
    handle.scale(shrink)?;
    let whole = Rect { x: 0, y: 0, width: width.div_ceil(shrink), height: height.div_ceil(shrink) };
    let mut rect = whole;
    if let Some(region) = region {
        let wanted = scaled(region, width, height, shrink)?;
        let mcu = handle.mcu_width().filter(|_| !is_lossless).map(|width| width.div_ceil(shrink));
        if let Some(crop) = mcu.map(|mcu| with_margin(wanted, whole, mcu)).filter(|&crop| crop != whole) {
            if handle.crop(crop) == Said::Nothing {
                rect = crop;
            }
        }
    }
    let is_cropped = rect != whole;
    let extent =
        Extent { width: rect.width, height: rect.height, x: rect.x, y: rect.y, shrink, partial: false };
    let (columns, rows) = (rect.width as usize, rect.height as usize);
    let channels = wish.color.channels();
    let (out, stride) = target.rows(columns * channels, rows)?;
    let space = handle.get(tj::TJPARAM_TJPARAM_COLORSPACE) as tj::TJCS;
    let said = if matches!(space, tj::TJCS_TJCS_CMYK | tj::TJCS_TJCS_YCCK) {
        let mut inks = Target::Grown(inks);
        let (inks, pitch) = inks.rows(columns * 4, rows)?;
        let said = handle.read_pixels(bytes, inks, pitch, rect, tj::TJPF_TJPF_CMYK)?;
        let inverted = datastream::has_adobe_marker(bytes);
        for (inks, out) in inks.chunks_exact(pitch).zip(out.chunks_mut(stride)) {
            from_inks(inks, inverted, wish.color, out);
        }
        said
    } else {
        let format = match wish.color {
            Color::Rgb8 => tj::TJPF_TJPF_RGB,
            Color::Gray8 => tj::TJPF_TJPF_GRAY,
        };
        handle.read_pixels(bytes, out, stride, rect, format)?
    };
    Ok(Decoded { extent, is_cropped, said })
}

/// `region` of an image of `width` × `height` in the image at 1/`shrink`: all pixels that a part of it falls on.
fn scaled(region: Rect, width: u32, height: u32, shrink: u32) -> Result<Rect> {
    let right = width.min(region.x.saturating_add(region.width));
    let bottom = height.min(region.y.saturating_add(region.height));
    if region.x >= right || region.y >= bottom {
        let message = format!("{region:?} is not in an image of {width} × {height}");
        return Err(Error::new(ErrorKind::InvalidArgument, message));
    }
    let (x, y) = (region.x / shrink, region.y / shrink);
    Ok(Rect { x, y, width: right.div_ceil(shrink) - x, height: bottom.div_ceil(shrink) - y })
}

/// `wanted` and a column on either side, from a multiple of `mcu`: chroma is interpolated from both neighbours, so the
/// outermost columns of a region are not those of the image. Rows are.
fn with_margin(wanted: Rect, whole: Rect, mcu: u32) -> Rect {
    let x = wanted.x.saturating_sub(1) / mcu * mcu;
    let right = (wanted.x + wanted.width + 1).min(whole.width);
    Rect { x, width: right - x, ..wanted }
}

/// A row of pixels from inks: (255 − ink)(255 − black) / 255.
fn from_inks(inks: &[u8], inverted: bool, color: Color, out: &mut [u8]) {
    let flip = if inverted { 0 } else { 255 };
    for (inks, pixel) in inks.chunks_exact(4).zip(out.chunks_exact_mut(color.channels())) {
        let [c, m, y, k] = [0, 1, 2, 3].map(|i| u32::from(inks[i] ^ flip));
        let [r, g, b] = [c, m, y].map(|light| (light * k + 127) / 255);
        match color {
            Color::Rgb8 => pixel.copy_from_slice(&[r as u8, g as u8, b as u8]),
            // Rec. 601 in 16-bit fixed point, as libjpeg makes gray of RGB.
            Color::Gray8 => pixel[0] = ((19595 * r + 38470 * g + 7471 * b + 32768) >> 16) as u8,
        }
    }
}

/// An instance of TurboJPEG for one file.
struct Handle(NonNull<c_void>);

impl Handle {
    fn new() -> Result<Self> {
        // SAFETY: no argument but a constant of the API.
        let handle = unsafe { tj::tj3Init(tj::TJINIT_TJINIT_DECOMPRESS as c_int) };
        let Some(handle) = NonNull::new(handle) else {
            return Err(Error::new(ErrorKind::LimitExceeded, "no memory for a JPEG decoder"));
        };
        let mut handle = Self(handle);
        handle.set(tj::TJPARAM_TJPARAM_SCANLIMIT, SCANS)?;
        handle.set(tj::TJPARAM_TJPARAM_SAVEMARKERS, 0)?;
        Ok(handle)
    }

    fn set(&mut self, parameter: tj::TJPARAM, value: c_int) -> Result<()> {
        // SAFETY: the handle is live until it is dropped; an unknown parameter or value is refused.
        let status = unsafe { tj::tj3Set(self.0.as_ptr(), parameter as c_int, value) };
        self.expect(status)
    }

    fn get(&self, parameter: tj::TJPARAM) -> c_int {
        // SAFETY: the handle is live until it is dropped; an unknown parameter gives -1.
        unsafe { tj::tj3Get(self.0.as_ptr(), parameter as c_int) }
    }

    /// Lets libjpeg keep the coefficients of four full components, and rows of the image: what it needs at most.
    fn limit_memory(&mut self, pixels: u64) -> Result<()> {
        let mib = 32 + ((10 * pixels) >> 20);
        self.set(tj::TJPARAM_TJPARAM_MAXMEMORY, c_int::try_from(mib).unwrap_or(c_int::MAX))
    }

    fn scale(&mut self, shrink: u32) -> Result<()> {
        let factor = tj::tjscalingfactor { num: 1, denom: c_int::try_from(shrink).unwrap_or(0) };
        // SAFETY: the handle is live; a factor that is none is refused.
        let status = unsafe { tj::tj3SetScalingFactor(self.0.as_ptr(), factor) };
        self.expect(status)
    }

    /// Restricts [`Handle::read_pixels`] to a region of the scaled image.
    fn crop(&mut self, rect: Rect) -> Said {
        let [x, y, w, h] = [rect.x, rect.y, rect.width, rect.height].map(|n| n as c_int);
        // SAFETY: the handle is live; a region that isn't in the image is refused.
        let status = unsafe { tj::tj3SetCroppingRegion(self.0.as_ptr(), tj::tjregion { x, y, w, h }) };
        self.said(status)
    }

    /// The width of a block of the data in pixels; `None` where the sampling factors are none of the usual ones, for which
    /// there is no cropping.
    fn mcu_width(&self) -> Option<u32> {
        match self.get(tj::TJPARAM_TJPARAM_SUBSAMP) {
            tj::TJSAMP_TJSAMP_444
            | tj::TJSAMP_TJSAMP_GRAY
            | tj::TJSAMP_TJSAMP_440
            | tj::TJSAMP_TJSAMP_441 => Some(8),
            tj::TJSAMP_TJSAMP_422 | tj::TJSAMP_TJSAMP_420 => Some(16),
            tj::TJSAMP_TJSAMP_411 => Some(32),
            _ => None,
        }
    }

    fn read_header(&mut self, bytes: &[u8]) -> Said {
        // SAFETY: the handle is live; `bytes` are readable, and are not kept.
        let status =
            unsafe { tj::tj3DecompressHeader(self.0.as_ptr(), bytes.as_ptr(), bytes.len() as tj::size_t) };
        self.said(status)
    }

    /// Writes the rows of `rect`, which is the region that was set or the whole scaled image of `bytes`.
    fn read_pixels(
        &mut self,
        bytes: &[u8],
        out: &mut [u8],
        stride: usize,
        rect: Rect,
        format: tj::TJPF,
    ) -> Result<Said> {
        let channels = match format {
            tj::TJPF_TJPF_GRAY => 1,
            tj::TJPF_TJPF_RGB => 3,
            _ => 4,
        };
        let (row, rows) = (rect.width as usize * channels, rect.height as usize);
        let fits = row <= stride && rows > 0 && (rows - 1) * stride + row <= out.len();
        let Some(pitch) = c_int::try_from(stride).ok().filter(|_| fits) else {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!("{rect:?} in rows {stride} bytes apart"),
            ));
        };
        // SAFETY: the handle is live and `bytes` are readable and the same that its header was read from, so that libjpeg
        // writes `rows` rows of `row` bytes, `pitch` apart: it has checked the region, ⌈n / shrink⌉ is how it rounds, and
        // lossless files are not scaled. They fit into `out`, as was just seen.
        let status = unsafe {
            tj::tj3Decompress8(
                self.0.as_ptr(),
                bytes.as_ptr(),
                bytes.len() as tj::size_t,
                out.as_mut_ptr(),
                pitch,
                format as c_int,
            )
        };
        Ok(self.said(status))
    }

    fn expect(&self, status: c_int) -> Result<()> {
        match self.said(status) {
            Said::Nothing => Ok(()),
            Said::Warning(text) | Said::Refusal(_, text) => Err(Error::new(ErrorKind::InvalidArgument, text)),
        }
    }

    /// What the call that returned `status` said. Called on the thread of that call, before another.
    fn said(&self, status: c_int) -> Said {
        if status == 0 {
            return Said::Nothing;
        }
        // SAFETY: the handle is live.
        let code = unsafe { tj::tj3GetErrorCode(self.0.as_ptr()) };
        // SAFETY: the text is the instance's or this thread's, ends with 0, and stays until the next call on this thread.
        let text = unsafe { CStr::from_ptr(tj::tj3GetErrorStr(self.0.as_ptr())) };
        let text = text.to_string_lossy().into_owned();
        if code == tj::TJERR_TJERR_WARNING as c_int {
            return Said::Warning(text);
        }
        let has = |parts: &[&str]| parts.iter().any(|part| text.contains(part));
        let kind =
            if has(&["image has more than", "Insufficient memory", "Backing store", "Memory allocation"]) {
                ErrorKind::LimitExceeded
            } else if has(&["Unsupported marker"]) {
                ErrorKind::Corrupt
            } else if has(&["Unsupported", "not supported", "not implemented", "colorspace"]) {
                ErrorKind::Unsupported
            } else {
                ErrorKind::Corrupt
            };
        Said::Refusal(kind, text)
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: the handle is live, and nothing uses it after this.
        unsafe { tj::tj3Destroy(self.0.as_ptr()) };
    }
}

#[cfg(test)]
mod tests;

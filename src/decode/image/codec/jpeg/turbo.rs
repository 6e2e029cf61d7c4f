//! JPEG by libjpeg-turbo: only the region that is wanted, at a fraction of its size where that will do.
//!
//! At 1/`shrink` an image of `n` columns has ⌈`n` / `shrink`⌉.
//!
//! libjpeg goes on after nearly every fault and tells of the first: a harmless one, an unknown JFIF revision say, hides others.
//! So whatever it warns of has the file's codes followed. What lies behind the last row that is wanted is not looked at in a
//! file that nothing else speaks against.

use std::ffi::{CStr, c_int, c_void};
use std::ptr::NonNull;

use turbojpeg_sys as tj;

use super::super::{Buffer, Color, Head, Pixels, Rect, Samples, Wish, same_size};
use super::markers::Model;
use super::{END, outline};
use crate::error::{Error, ErrorKind, Result};

/// What libjpeg's warnings begin with. An error behind a warning is told as one, but in its own words.
const WARNINGS: [&str; 6] = [
    "Corrupt JPEG data: ",
    "Premature end of JPEG file",
    "Inconsistent progression sequence",
    "Unknown Adobe color transform",
    "Warning: unknown JFIF revision",
    "Invalid SOS parameters for sequential JPEG",
];

/// A decoder of JPEG files, and the memory that it reuses: one a worker.
#[derive(Debug, Default)]
pub(in super::super) struct Turbo {
    /// A file up to its image's end.
    file: Buffer,
    /// Pixels in the colours of the file, where libjpeg does not convert them.
    raw: Buffer,
}

impl Turbo {
    pub(in super::super) fn buffers(&mut self) -> [&mut Buffer; 2] {
        [&mut self.file, &mut self.raw]
    }

    /// Decodes `wish.region` and what lies around it into `out`, rows without gaps.
    ///
    /// # Errors
    /// As [`Codec::decode`](crate::decode::codec::Codec::decode); [`ErrorKind::InvalidArgument`] where the region is not in the
    /// image.
    pub(in super::super) fn decode<'a>(
        &mut self,
        bytes: &[u8],
        head: &Head,
        wish: &Wish,
        out: &'a mut Buffer,
    ) -> Result<Pixels<'a>> {
        let decoded = self.run(bytes, head, wish, Some(wish.region), &mut Target::Grown(out))?;
        let Rect { x, y, width, height } = decoded.rect;
        Ok(Pixels { bytes: out.bytes(), width, height, x, y, shrink: wish.shrink, partial: decoded.partial })
    }

    /// Decodes the whole image at 1/`wish.shrink` of its size into `out`, whose rows are `stride` bytes apart; whether the
    /// file ended early.
    ///
    /// # Errors
    /// As [`Turbo::decode`]; [`ErrorKind::InvalidArgument`] where `out` is too small.
    pub(in super::super) fn decode_into(
        &mut self,
        bytes: &[u8],
        head: &Head,
        wish: &Wish,
        out: &mut [u8],
        stride: usize,
    ) -> Result<bool> {
        Ok(self.run(bytes, head, wish, None, &mut Target::Given(out, stride))?.partial)
    }

    fn run(
        &mut self,
        bytes: &[u8],
        head: &Head,
        wish: &Wish,
        region: Option<Rect>,
        target: &mut Target<'_>,
    ) -> Result<Decoded> {
        let outline = outline(bytes)?;
        same_size(head, outline.frame.width.into(), outline.frame.height.into())?;
        let model = outline.frame.model();
        let mut whole = None;
        if outline.suspicion.is_some() {
            whole = Some(outline.examine(bytes, wish.lenient)?);
        }
        if outline.eoi && whole != Some(false) {
            let decoded = decompress(bytes, model, head, wish, region, target, &mut self.raw)?;
            match decoded.said {
                Said::Nothing => return Ok(decoded),
                Said::Warning => {
                    if whole.map_or_else(|| outline.examine(bytes, wish.lenient), Ok)? {
                        return Ok(decoded);
                    }
                    whole = Some(false);
                }
                // A region that libjpeg refuses, where sampling factors are odd, is no fault of the file.
                Said::Refusal(ErrorKind::Corrupt, _) if decoded.is_cropped => {}
                Said::Refusal(kind, text) => return Err(Error::new(kind, text)),
            }
        }
        let file = self.file.join(&[&bytes[..outline.end], &END], head)?;
        let decoded = decompress(file, model, head, wish, None, target, &mut self.raw)?;
        if decoded.said == Said::Warning && whole.is_none() {
            whole = Some(outline.examine(bytes, wish.lenient)?);
        }
        let partial = whole == Some(false);
        match decoded.said {
            Said::Refusal(ErrorKind::Corrupt, text) if partial => Err(Error::new(ErrorKind::Truncated, text)),
            Said::Refusal(kind, text) => Err(Error::new(kind, text)),
            Said::Warning | Said::Nothing => Ok(Decoded { partial, ..decoded }),
        }
    }
}

/// Where pixels go.
enum Target<'a> {
    /// Made as large as they are, rows without gaps.
    Grown(&'a mut Buffer),
    /// Rows so many bytes apart.
    Given(&'a mut [u8], usize),
}

impl Target<'_> {
    /// Room for `height` rows of `row` bytes, and how many bytes they are apart.
    fn rows(&mut self, row: usize, height: usize, head: &Head) -> Result<(&mut [u8], usize)> {
        let Some(bytes) = row.checked_mul(height) else {
            return Err(Error::new(ErrorKind::LimitExceeded, "the image is larger than memory"));
        };
        match self {
            Self::Grown(out) => Ok((out.take(bytes, head)?, row)),
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
    /// Something is odd, and there are pixels all the same.
    Warning,
    Refusal(ErrorKind, String),
}

struct Decoded {
    /// Of the scaled image.
    rect: Rect,
    is_cropped: bool,
    said: Said,
    partial: bool,
}

/// One pass over a file: `region` of it, or all.
fn decompress(
    bytes: &[u8],
    model: Model,
    head: &Head,
    wish: &Wish,
    region: Option<Rect>,
    target: &mut Target<'_>,
    raw: &mut Buffer,
) -> Result<Decoded> {
    // A handle keeps the tables of the image before, and a file that lacks its own would get those: so each gets a new one.
    let mut handle = Handle::new()?;
    if let Said::Refusal(kind, text) = handle.read_header(bytes) {
        return Err(Error::new(kind, text));
    }
    let (width, height) = handle.size()?;
    handle.limit_memory(u64::from(width) * u64::from(height))?;
    handle.scale(wish.shrink)?;
    let whole = Rect { x: 0, y: 0, width: width.div_ceil(wish.shrink), height: height.div_ceil(wish.shrink) };
    let mut rect = whole;
    if let Some(region) = region {
        let wanted = scaled(region, width, height, wish.shrink)?;
        let mcu = handle.mcu_width().map(|width| width.div_ceil(wish.shrink));
        let crop = mcu.map(|mcu| with_margin(wanted, whole, mcu)).filter(|&crop| crop != whole);
        if let Some(crop) = crop.filter(|&crop| handle.crop(crop) == Said::Nothing) {
            rect = crop;
        }
    }
    let (columns, rows) = (rect.width as usize, rect.height as usize);
    let channels = wish.color.channels();
    let (out, stride) = target.rows(columns * channels, rows, head)?;
    let (format, samples) = match (model, wish.color) {
        (Model::Cmyk | Model::Ycck, _) => (tj::TJPF_TJPF_CMYK, 4),
        (Model::Gray, Color::Gray8) => (tj::TJPF_TJPF_GRAY, 1),
        _ => (tj::TJPF_TJPF_RGB, 3),
    };
    let said = if samples == channels {
        handle.read_pixels(bytes, out, stride, rect, format)?
    } else {
        let mut raw = Target::Grown(raw);
        let (raw, pitch) = raw.rows(columns * samples, rows, head)?;
        let said = handle.read_pixels(bytes, raw, pitch, rect, format)?;
        for (raw, out) in raw.chunks_exact_mut(pitch).zip(out.chunks_mut(stride)) {
            if samples == 4 {
                let n = to_light(raw);
                Samples { channels: 3, wide: false }.convert(&raw[..n], wish.color, out);
            } else {
                Samples { channels: 3, wide: false }.convert(raw, wish.color, out);
            }
        }
        said
    };
    Ok(Decoded { rect, is_cropped: rect != whole, said, partial: false })
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

/// A row of inks, stored inverted, to red, green, blue in place: (255 − ink)(255 − black) / 255. How many bytes that is.
fn to_light(inks: &mut [u8]) -> usize {
    let pixels = inks.len() / 4;
    for i in 0..pixels {
        let k = u32::from(inks[4 * i + 3]);
        for c in 0..3 {
            inks[3 * i + c] = ((u32::from(inks[4 * i + c]) * k + 127) / 255) as u8;
        }
    }
    pixels * 3
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
        handle.set(tj::TJPARAM_TJPARAM_SAVEMARKERS, 0)?;
        Ok(handle)
    }

    /// Width and height, once the header has been read.
    fn size(&self) -> Result<(u32, u32)> {
        let [width, height] =
            [tj::TJPARAM_TJPARAM_JPEGWIDTH, tj::TJPARAM_TJPARAM_JPEGHEIGHT].map(|n| self.get(n));
        match (u32::try_from(width), u32::try_from(height)) {
            (Ok(width @ 1..), Ok(height @ 1..)) => Ok((width, height)),
            _ => Err(Error::new(ErrorKind::Corrupt, "corrupt JPEG: there is no image in it")),
        }
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
            Said::Warning => Ok(()),
            Said::Refusal(_, text) => Err(Error::new(ErrorKind::InvalidArgument, text)),
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
        if code == tj::TJERR_TJERR_WARNING as c_int
            && WARNINGS.iter().any(|warning| text.starts_with(warning))
        {
            return Said::Warning;
        }
        let has = |parts: &[&str]| parts.iter().any(|part| text.contains(part));
        let kind = if has(&["Insufficient memory", "Backing store", "Memory allocation"]) {
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

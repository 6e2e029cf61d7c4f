//! JPEG: what zune-jpeg does not tell, whether a file is whole, is found out here.
//!
//! A decoder fills in what a cut file lacks, gray or stale, and says nothing. Three looks keep that from passing, each as dear as it is
//! seldom needed:
//!
//! 1. [`outline`] goes through the markers: is there an end marker behind the last scan, are all components in a scan, are the
//!    restart markers all there and in turn, is there no hole of zeros? That is a search for one byte value: about 1 % of decoding.
//! 2. A sequential file is decoded without its end marker. With one, the decoder goes on with zeros behind a premature end; without, it runs
//!    into the end of its input and has to say so.
//! 3. Where either finds something, [`entropy::examine`] follows every Huffman code to the last bit.
//!
//! What passes: a file with an end marker that lacks less than about 30 bytes before it, and one whose scan is as long as it
//! should be but holds wrong codes. JPEG has no checksum.

use std::ops::Range;

use zune_jpeg::JpegDecoder;
use zune_jpeg::zune_core::bytestream::ZCursor;
use zune_jpeg::zune_core::colorspace::ColorSpace;
use zune_jpeg::zune_core::options::DecoderOptions;

use super::{Color, Head, Samples, Wish};
use crate::error::Result;

mod entropy;
mod markers;

use entropy::{Coverage, Verdict, examine};
use markers::{Event, Frame, Model, corrupt, read, truncated, unsupported};

const END: [u8; 2] = [0xff, 0xd9];
/// Of data as short as this every code is followed: a few bytes are much of the image, and it takes microseconds.
const SHORT: usize = 512;

/// Width, height, orientation.
pub(super) fn head(bytes: &[u8]) -> Result<(u32, u32, u8)> {
    let outline = read(bytes, |_, event| Ok(!matches!(event, Event::Ready)))?;
    Ok((outline.frame.width.into(), outline.frame.height.into(), outline.frame.orientation))
}

/// A file as its markers show it.
#[derive(Debug)]
pub(super) struct Outline {
    frame: Frame,
    /// Where the last scan's data ends.
    end: usize,
    eoi: bool,
    scans: usize,
    /// Why the data needs a closer look.
    suspicion: Option<&'static str>,
}

/// Goes through the markers of a whole file.
///
/// # Errors
/// As [`head`].
pub(super) fn outline(bytes: &[u8]) -> Result<Outline> {
    let mut coverage = Coverage::default();
    let (mut scans, mut data, mut suspicion) = (0, 0, None);
    let outline = read(bytes, |frame, event| {
        if let Event::Scan(scan) = event {
            scans += 1;
            data += scan.data.len();
            coverage.add(scan);
            if !scan.in_turn || scan.restarts != scan.restarts_due(frame) {
                suspicion = Some("restart markers");
            } else if hole(&bytes[scan.data.clone()]) {
                suspicion = Some("zeros");
            }
        }
        Ok(true)
    })?;
    if coverage.twice() && !outline.frame.progressive {
        return Err(corrupt("a component is in two scans"));
    }
    if !outline.eoi {
        suspicion = Some("no end marker");
    } else if coverage.missing(&outline.frame).is_some() {
        suspicion = Some("missing scans");
    } else if data < SHORT {
        suspicion = Some("little data");
    }
    Ok(Outline { frame: outline.frame, end: outline.end, eoi: outline.eoi, scans, suspicion })
}

/// Whether there are 31 zeros in a row, or perhaps 16: what a sparse file shows where it has a hole.
fn hole(data: &[u8]) -> bool {
    data.as_chunks::<16>().0.iter().any(|chunk| u128::from_ne_bytes(*chunk) == 0)
}

impl Outline {
    /// Follows the entropy-coded data where there is a suspicion: whether the file is whole.
    ///
    /// # Errors
    /// [`ErrorKind::Truncated`](crate::ErrorKind), unless `lenient`; [`ErrorKind::Corrupt`](crate::ErrorKind).
    fn examine(&self, bytes: &[u8], lenient: bool) -> Result<bool> {
        let what = match examine(bytes)? {
            Verdict::Whole => return Ok(true),
            Verdict::Padded if self.eoi => return Ok(true),
            Verdict::Padded => "zeros follow the last code".to_string(),
            Verdict::Corrupt(what) if self.eoi => return Err(corrupt(what)),
            Verdict::Short(what) | Verdict::Corrupt(what) => what,
        };
        match (lenient, self.eoi) {
            (true, _) => Ok(false),
            (false, true) => Err(truncated(what)),
            (false, false) => Err(truncated(format!("{what}, and there is no end marker"))),
        }
    }
}

/// zune-jpeg, and memory for files that it needs in another form.
#[derive(Debug, Default)]
pub(super) struct Zune {
    file: Vec<u8>,
    rgb: Vec<u8>,
}

impl Zune {
    /// Decodes the whole image into `out`, which is exactly as large; whether the file ended early.
    ///
    /// # Errors
    /// As [`Codec::decode`](super::Codec::decode).
    pub(super) fn decode(&mut self, bytes: &[u8], head: &Head, wish: &Wish, out: &mut [u8]) -> Result<bool> {
        let outline = outline(bytes)?;
        super::same_size(head, outline.frame.width.into(), outline.frame.height.into())?;
        let model = outline.frame.model();
        if wish.color == Color::Rgb8 || model == Model::Gray {
            return self.decode_as(bytes, &outline, wish, out);
        }
        let mut rgb = std::mem::take(&mut self.rgb);
        rgb.resize(out.len() * 3, 0);
        let partial = self.decode_as(bytes, &outline, wish, &mut rgb);
        Samples { channels: 3, wide: false }.convert(&rgb, Color::Gray8, out);
        self.rgb = rgb;
        partial
    }

    fn decode_as(&mut self, bytes: &[u8], outline: &Outline, wish: &Wish, out: &mut [u8]) -> Result<bool> {
        let colors = colors(&outline.frame, wish.color)?;
        let cut = colors.without.clone().unwrap_or(0..0);
        if outline.suspicion.is_none() {
            // A progressive scan must end at a marker.
            let open = !outline.frame.progressive && outline.scans == 1;
            let end = if open { outline.end } else { bytes.len() };
            let file = if cut.is_empty() { &bytes[..end] } else { self.copy(bytes, &cut, end) };
            if run(file, colors.space, true, out).is_ok() {
                return Ok(false);
            }
        }
        let whole = outline.examine(bytes, wish.lenient)?;
        self.copy(bytes, &cut, outline.end);
        self.file.extend_from_slice(&END);
        if !whole {
            out.fill(128);
        }
        match run(&self.file, colors.space, false, out) {
            Err(what) if whole => Err(corrupt(what)),
            _ => Ok(!whole),
        }
    }

    /// The file up to `end` without the segment at `cut`.
    fn copy(&mut self, bytes: &[u8], cut: &Range<usize>, end: usize) -> &[u8] {
        self.file.clear();
        self.file.extend_from_slice(&bytes[..cut.start]);
        self.file.extend_from_slice(&bytes[cut.end..end]);
        &self.file
    }
}

/// What to ask of zune-jpeg.
struct Colors {
    /// What it shall give.
    space: ColorSpace,
    /// An Adobe segment that it would read otherwise than libjpeg does.
    without: Option<Range<usize>>,
}

fn colors(frame: &Frame, color: Color) -> Result<Colors> {
    let segment = frame.adobe.as_ref().map(|(_, range)| range.clone());
    let transform = frame.adobe.as_ref().map(|(transform, _)| *transform);
    let (space, without) = match (frame.model(), transform) {
        (Model::Gray, _) if color == Color::Gray8 => (ColorSpace::Luma, segment),
        (Model::Gray, _) => (ColorSpace::RGB, segment),
        // Unless something says that they are RGB, three components that are to stay what they are pass as they are.
        (Model::Rgb, _) if !frame.named_rgb() => (ColorSpace::YCbCr, segment),
        (Model::Rgb, _) => (ColorSpace::RGB, segment),
        (Model::YCbCr, _) if frame.named_rgb() => return Err(unsupported("YCbCr that is named RGB")),
        (Model::YCbCr, None | Some(1)) => (ColorSpace::RGB, None),
        (Model::YCbCr, _) => (ColorSpace::RGB, segment),
        (Model::Cmyk, _) | (Model::Ycck, Some(2)) => (ColorSpace::RGB, None),
        (Model::Ycck, _) => return Err(unsupported("an unknown Adobe colour transform")),
    };
    Ok(Colors { space, without })
}

fn run(file: &[u8], space: ColorSpace, strict: bool, out: &mut [u8]) -> Result<(), String> {
    let options = DecoderOptions::default()
        .set_strict_mode(strict)
        .set_max_width(usize::from(u16::MAX))
        .set_max_height(usize::from(u16::MAX))
        .jpeg_set_out_colorspace(space);
    let mut decoder = JpegDecoder::new_with_options(ZCursor::new(file), options);
    decoder.decode_headers().map_err(|e| e.to_string())?;
    if decoder.output_buffer_size() != Some(out.len()) {
        return Err("its size is another one than its header says".to_string());
    }
    decoder.decode_into(out).map_err(|e| e.to_string())
}

//! JPEG by zune-jpeg: in Rust alone, and all of an image.

use std::ops::Range;

use zune_jpeg::JpegDecoder;
use zune_jpeg::zune_core::bytestream::ZCursor;
use zune_jpeg::zune_core::colorspace::ColorSpace;
use zune_jpeg::zune_core::options::DecoderOptions;

use super::super::{Buffer, Color, Head, Samples, Wish, same_size};
use super::markers::{Frame, Model, corrupt, unsupported};
use super::{END, Outline, outline};
use crate::error::Result;

/// zune-jpeg, and memory for files that it needs in another form.
#[derive(Debug, Default)]
pub(in super::super) struct Zune {
    file: Buffer,
    rgb: Buffer,
}

impl Zune {
    pub(in super::super) fn buffers(&mut self) -> [&mut Buffer; 2] {
        [&mut self.file, &mut self.rgb]
    }

    /// Decodes the whole image into `out`, which is exactly as large; whether the file ended early.
    ///
    /// # Errors
    /// As [`Codec::decode`](crate::decode::codec::Codec::decode).
    pub(in super::super) fn decode(
        &mut self,
        bytes: &[u8],
        head: &Head,
        wish: &Wish,
        out: &mut [u8],
    ) -> Result<bool> {
        let outline = outline(bytes)?;
        same_size(head, outline.frame.width.into(), outline.frame.height.into())?;
        let model = outline.frame.model();
        if wish.color == Color::Rgb8 || model == Model::Gray {
            return self.decode_as(bytes, &outline, head, wish, out);
        }
        let mut buffer = std::mem::take(&mut self.rgb);
        let partial = buffer.take(out.len() * 3, head).and_then(|rgb| {
            let partial = self.decode_as(bytes, &outline, head, wish, rgb)?;
            Samples { channels: 3, wide: false }.convert(rgb, Color::Gray8, out);
            Ok(partial)
        });
        self.rgb = buffer;
        partial
    }

    fn decode_as(
        &mut self,
        bytes: &[u8],
        outline: &Outline,
        head: &Head,
        wish: &Wish,
        out: &mut [u8],
    ) -> Result<bool> {
        let colors = colors(&outline.frame, wish.color)?;
        let cut = colors.without.clone().unwrap_or(0..0);
        if outline.suspicion.is_none() {
            // A progressive scan must end at a marker.
            let end = if outline.frame.progressive { bytes.len() } else { outline.end };
            let file =
                if cut.is_empty() { &bytes[..end] } else { self.copy(&bytes[..end], &cut, &[], head)? };
            if run(file, colors.space, true, out).is_ok() {
                return Ok(false);
            }
        }
        let whole = outline.examine(bytes, wish.lenient)?;
        let file = self.copy(&bytes[..outline.end], &cut, &END, head)?;
        if !whole {
            out.fill(128);
        }
        match run(file, colors.space, false, out) {
            Err(what) if whole => Err(corrupt(what)),
            _ => Ok(!whole),
        }
    }

    /// The file without the segment at `cut`, and `end` behind it.
    fn copy(&mut self, bytes: &[u8], cut: &Range<usize>, end: &[u8], head: &Head) -> Result<&[u8]> {
        let parts = [&bytes[..cut.start], &bytes[cut.end..], end];
        self.file.join(&parts, head)
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
    if frame.model() == Model::Gray && frame.sampling() != (1, 1) && frame.width.max(frame.height) > 65_528 {
        // Its arithmetic overflows there.
        return Err(unsupported("odd sampling of more than 65,528 gray samples a side"));
    }
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

//! From decoded pixels to the row: bilinear with antialiasing.

use fast_image_resize::images::{TypedCroppedImage, TypedCroppedImageMut, TypedImage, TypedImageRef};
use fast_image_resize::pixels::{U8, U8x3};
use fast_image_resize::{FilterType, PixelTrait, ResizeAlg, ResizeOptions, Resizer};

use super::codec::{Codec, Color, Head, Pixels, Rect, Wish};
use super::geometry::Geometry;
use super::orientation::Turn;
use crate::error::{Error, ErrorKind, Result};

/// What one image of a row is made of.
#[derive(Debug, Clone, Copy)]
pub(super) struct Painting<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) head: &'a Head,
    pub(super) color: Color,
    pub(super) turn: Turn,
    pub(super) geometry: Geometry,
    pub(super) fill: u8,
    /// Whether a file that ends early gives what is there.
    pub(super) lenient: bool,
    /// Whether the codec may decode at a fraction of the size.
    pub(super) scaled: bool,
}

/// A worker's memory for pixels.
#[derive(Debug, Default)]
pub(super) struct Painter {
    codec: Codec,
    resizer: Resizer,
    /// The stored image at its size in the row, where it has to be turned.
    turned: Vec<u8>,
}

impl Painter {
    /// Paints the row, `size` (width, height) pixels without gaps, in full; whether the file ended early.
    ///
    /// # Errors
    /// As the codec's.
    pub(super) fn paint(&mut self, painting: &Painting<'_>, row: &mut [u8], size: [u32; 2]) -> Result<bool> {
        match painting.color {
            Color::Rgb8 => self.paint_as::<U8x3, 3>(painting, row, size),
            Color::Gray8 => self.paint_as::<U8, 1>(painting, row, size),
        }
    }

    fn paint_as<P: PixelTrait, const N: usize>(
        &mut self,
        painting: &Painting<'_>,
        row: &mut [u8],
        size: [u32; 2],
    ) -> Result<bool> {
        let Painting { bytes, head, geometry, turn, .. } = *painting;
        let seen @ [left, top, right, bottom] = geometry.visible(size);
        let stride = size[0] as usize * N;
        fill_around(row, size, seen, painting.fill, N);
        if left >= right || top >= bottom {
            return Ok(false);
        }
        let place =
            Place { x: left as u32, y: top as u32, size: [(right - left) as u32, (bottom - top) as u32] };
        let stored = [head.width, head.height];
        let crop = turn.rect(geometry.crop, stored);
        let part = [geometry.axis(0).seen_in(left, right), geometry.axis(1).seen_in(top, bottom)];
        let part = turn.part(part, stored);
        let shown = turn.size(place.size);
        let wish = Wish {
            color: painting.color,
            region: needed(crop, part, shown),
            shrink: if painting.scaled { shrink(&geometry) } else { 1 },
            lenient: painting.lenient,
        };
        let whole = Rect { x: 0, y: 0, width: stored[0], height: stored[1] };
        let partial = if turn.is_none() && wish.shrink == 1 && crop == whole && shown == stored {
            let start = place.y as usize * stride + place.x as usize * N;
            let out = row.get_mut(start..).unwrap_or_default();
            self.codec.decode_into(bytes, head, &wish, out, stride)?
        } else {
            let pixels = self.codec.decode(bytes, head, &wish)?;
            let partial = pixels.partial;
            if turn.is_none() {
                resize::<P>(&mut self.resizer, &pixels, crop, part, row, size, place)?;
            } else {
                let n = shown[0] as usize * shown[1] as usize * N;
                if self.turned.len() < n {
                    self.turned.resize(n, 0);
                }
                let turned = &mut self.turned[..n];
                let all = Place { x: 0, y: 0, size: shown };
                resize::<P>(&mut self.resizer, &pixels, crop, part, turned, shown, all)?;
                let (from, _) = self.turned[..n].as_chunks::<N>();
                let (out, _) = row.as_chunks_mut::<N>();
                let start = place.y as usize * size[0] as usize + place.x as usize;
                let out = out.get_mut(start..).unwrap_or_default();
                turn.write(from, shown.map(|v| v as usize), out, size[0] as usize);
            }
            partial
        };
        flip::<N>(row, size, place, geometry.flip);
        Ok(partial)
    }
}

/// A rectangle of the row.
#[derive(Debug, Clone, Copy)]
struct Place {
    x: u32,
    y: u32,
    size: [u32; 2],
}

/// The largest fraction 1/8, 1/4, 1/2 of its size at which the crop is not smaller than its target.
fn shrink(geometry: &Geometry) -> u32 {
    let (crop, target) = (geometry.crop, geometry.target);
    let enough = |&by: &u32| crop.width / by >= target.width && crop.height / by >= target.height;
    [8, 4, 2].into_iter().find(enough).unwrap_or(1)
}

/// The pixels of `crop` that the filter looks at to show the part of it (start and length along both axes) in `shown` pixels.
fn needed(crop: Rect, part: [[f64; 2]; 2], shown: [u32; 2]) -> Rect {
    let side = |from: u32, size: u32, [start, length]: [f64; 2], shown: u32| {
        let reach = (length / f64::from(shown)).max(1.0) + 1.0;
        let end = f64::from(from) + f64::from(size);
        let low = (start - reach).floor().max(from.into());
        let high = (start + length + reach).ceil().min(end);
        (low as u32, (high - low) as u32)
    };
    let (x, width) = side(crop.x, crop.width, part[0], shown[0]);
    let (y, height) = side(crop.y, crop.height, part[1], shown[1]);
    Rect { x, y, width, height }
}

/// One axis of what the filter may see of the decoded pixels, and of the part in it that is shown.
struct Sight {
    from: u32,
    size: u32,
    start: f64,
    length: f64,
}

impl Sight {
    /// `crop` and `part`, start and length each, are in pixels of the stored image; the decoded ones are those from `at` on, `len`
    /// of them, at 1/`shrink` of its size.
    fn new(crop: [u32; 2], part: [f64; 2], [at, len]: [u32; 2], shrink: u32) -> Result<Self> {
        let end = crop[0].saturating_add(crop[1]).div_ceil(shrink).min(at.saturating_add(len));
        let from = (crop[0] / shrink).max(at);
        if end <= from {
            let text = "the pixels that were decoded are not those that the head of the file promised";
            return Err(Error::new(ErrorKind::Corrupt, text));
        }
        let (size, scale) = (end - from, f64::from(shrink));
        let start = (part[0] / scale - f64::from(from)).clamp(0.0, f64::from(size) - 0.5);
        let mut length = (part[1] / scale).min(f64::from(size) - start);
        while start + length > f64::from(size) {
            length = length.next_down(); // the sum was rounded up
        }
        Ok(Self { from: from - at, size, start, length })
    }
}

/// Brings `part` of `crop`, both in pixels of the stored image, to `place` in `out`, whose rows have no gaps. The filter
/// sees nothing outside of the crop.
fn resize<P: PixelTrait>(
    resizer: &mut Resizer,
    pixels: &Pixels<'_>,
    crop: Rect,
    part: [[f64; 2]; 2],
    out: &mut [u8],
    out_size: [u32; 2],
    place: Place,
) -> Result<()> {
    let shrink = pixels.shrink.max(1);
    let x = Sight::new([crop.x, crop.width], part[0], [pixels.x, pixels.width], shrink)?;
    let y = Sight::new([crop.y, crop.height], part[1], [pixels.y, pixels.height], shrink)?;
    let from =
        TypedImageRef::<P>::from_buffer(pixels.width, pixels.height, pixels.bytes).map_err(mismatch)?;
    let from = TypedCroppedImage::new(from, x.from, y.from, x.size, y.size).map_err(mismatch)?;
    let to = TypedImage::<P>::from_buffer(out_size[0], out_size[1], out).map_err(mismatch)?;
    let [width, height] = place.size;
    let mut to = TypedCroppedImageMut::new(to, place.x, place.y, width, height).map_err(mismatch)?;
    let options = ResizeOptions::new()
        .resize_alg(ResizeAlg::Convolution(FilterType::Bilinear))
        .use_alpha(false)
        .crop(x.start, y.start, x.length, y.length);
    resizer.resize_typed(&from, &mut to, &options).map_err(mismatch)
}

fn mismatch(error: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::Corrupt, format!("the decoded pixels can't be resized: {error}"))
}

/// Fills what lies outside of `seen` (left, top, right, bottom) in a row of `size` pixels.
fn fill_around(row: &mut [u8], size: [u32; 2], seen: [i64; 4], fill: u8, channels: usize) {
    let [width, height] = size.map(i64::from);
    if seen == [0, 0, width, height] {
        return;
    }
    let [left, top, right, bottom] = seen;
    for (y, line) in row.chunks_exact_mut(size[0] as usize * channels).enumerate() {
        if (top..bottom).contains(&(y as i64)) && left < right {
            line[..left as usize * channels].fill(fill);
            line[right as usize * channels..].fill(fill);
        } else {
            line.fill(fill);
        }
    }
}

/// Turns the rectangle at `place` over in place.
fn flip<const N: usize>(row: &mut [u8], size: [u32; 2], place: Place, [horizontal, vertical]: [bool; 2]) {
    let (pixels, _) = row.as_chunks_mut::<N>();
    let (width, x) = (size[0] as usize, place.x as usize);
    let [w, h] = place.size.map(|v| v as usize);
    let lines = &mut pixels[place.y as usize * width..][..h * width];
    if horizontal {
        for line in lines.chunks_exact_mut(width) {
            line[x..x + w].reverse();
        }
    }
    if vertical {
        let (upper, lower) = lines.split_at_mut(h.div_ceil(2) * width);
        for (a, b) in upper.chunks_exact_mut(width).zip(lower.rchunks_exact_mut(width)) {
            a[x..x + w].swap_with_slice(&mut b[x..x + w]);
        }
    }
}

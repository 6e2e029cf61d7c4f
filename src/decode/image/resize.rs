//! From decoded pixels to the row: bilinear with antialiasing.

use fast_image_resize::images::{TypedCroppedImage, TypedCroppedImageMut, TypedImage, TypedImageRef};
use fast_image_resize::pixels::{U8, U8x3};
use fast_image_resize::{FilterType, PixelTrait, ResizeAlg, ResizeOptions, Resizer};

use super::codec::{Buffer, Codec, Color, Head, KEPT, Pixels, Rect, Wish};
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
    turned: Buffer,
}

impl Painter {
    /// Paints the row, `size` (width, height) pixels without gaps, in full; whether the file ended early.
    ///
    /// # Errors
    /// As the codec's.
    pub(super) fn paint(&mut self, painting: &Painting<'_>, row: &mut [u8], size: [u32; 2]) -> Result<bool> {
        let partial = match painting.color {
            Color::Rgb8 => self.paint_as::<U8x3, 3>(painting, row, size),
            Color::Gray8 => self.paint_as::<U8, 1>(painting, row, size),
        };
        self.turned.settle();
        if self.resizer.size_of_internal_buffers() > KEPT {
            self.resizer.reset_internal_buffers();
        }
        partial
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
        // Neither turned nor resized: into the row, at whole fractions of the size too.
        let by = if Codec::shrinks(head.format) { wish.shrink } else { 1 };
        let as_decoded =
            crop == whole && shown.map(|v| u64::from(v) * u64::from(by)) == stored.map(u64::from);
        let partial = if turn.is_none() && as_decoded {
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
                let turned = self.turned.take(n, head)?;
                let all = Place { x: 0, y: 0, size: shown };
                resize::<P>(&mut self.resizer, &pixels, crop, part, turned, shown, all)?;
                let (from, _) = turned.as_chunks::<N>();
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

#[cfg(test)]
mod tests {
    use super::super::fit::Fit;
    use super::super::{Limits, codec};
    use super::*;
    use crate::random::SampleRng;

    fn photograph(width: u32, height: u32) -> image::RgbImage {
        image::RgbImage::from_fn(width, height, |x, y| {
            let rough = (x * 7919 + y * 104_729 + x * y * 31) % 97;
            image::Rgb([(x * 255 / width) as u8, (y * 255 / height) as u8, (rough * 2) as u8])
        })
    }

    fn bmp(image: &image::RgbImage) -> Vec<u8> {
        let mut out = std::io::Cursor::new(Vec::new());
        image.write_to(&mut out, image::ImageFormat::Bmp).unwrap();
        out.into_inner()
    }

    fn paint(bytes: &[u8], turn: Turn, geometry: Geometry, size: [u32; 2]) -> Vec<u8> {
        let head = codec::head(bytes, Limits { bytes: 1 << 30, pixels: 1 << 30 }).unwrap();
        let painting = Painting {
            bytes,
            head: &head,
            color: Color::Rgb8,
            turn,
            geometry,
            fill: 9,
            lenient: false,
            scaled: false,
        };
        let mut row = vec![0xee; (size[0] * size[1] * 3) as usize];
        assert!(!Painter::default().paint(&painting, &mut row, size).unwrap());
        row
    }

    impl Painter {
        fn held(&mut self) -> usize {
            self.codec.held() + self.turned.held() + self.resizer.size_of_internal_buffers()
        }
    }

    /// A gray one without compression, and with alpha.
    fn png(width: u32, height: u32) -> Vec<u8> {
        let mut out = Vec::new();
        let mut encoder = png::Encoder::new(&mut out, width, height);
        encoder.set_color(png::ColorType::Rgba);
        encoder.set_compression(png::Compression::NoCompression);
        let mut writer = encoder.write_header().unwrap();
        writer.write_image_data(&vec![100; (width * height * 4) as usize]).unwrap();
        drop(writer);
        out
    }

    fn jpeg(width: u16, height: u16) -> Vec<u8> {
        let mut out = Vec::new();
        let pixels = vec![100; usize::from(width) * usize::from(height) * 3];
        let encoder = jpeg_encoder::Encoder::new(&mut out, 90);
        encoder.encode(&pixels, width, height, jpeg_encoder::ColorType::Rgb).unwrap();
        out
    }

    #[test]
    fn what_a_large_image_needed_is_given_back() {
        let mut painter = Painter::default();
        let mut held = |bytes: &[u8], color: Color, turn: Turn, size: [u32; 2]| {
            let head = codec::head(bytes, Limits { bytes: 1 << 30, pixels: 1 << 30 }).unwrap();
            let mut rng = SampleRng::new(0, 0, 0);
            let upright = turn.size([head.width, head.height]);
            let geometry = Fit::Stretch.place(upright, size, &mut rng).unwrap();
            let (fill, lenient, scaled) = (0, false, false);
            let painting = Painting { bytes, head: &head, color, turn, geometry, fill, lenient, scaled };
            let mut row = vec![0; size[0] as usize * size[1] as usize * color.channels()];
            assert!(!painter.paint(&painting, &mut row, size).unwrap());
            painter.held()
        };
        let (rgb, gray, plain, turned) = (Color::Rgb8, Color::Gray8, Turn::default(), Turn::of(6));
        let (small_png, small_jpeg) = (png(20, 30), jpeg(20, 30));
        let (large_png, large_jpeg) = (png(2400, 2400), jpeg(2400, 2400));
        // The resizer's rows are as wide as the image.
        let wide = bmp(&image::RgbImage::new(60_000, 95));
        for (what, bytes, color, turn, size) in [
            ("pixels of a PNG, and its samples", &large_png, rgb, plain, [8, 8]),
            ("samples", &large_png, rgb, plain, [2400, 2400]),
            ("pixels of a JPEG", &large_jpeg, rgb, plain, [8, 8]),
            ("its colours", &large_jpeg, gray, plain, [8, 8]),
            ("a row that is turned", &large_png, rgb, turned, [2400, 2399]),
            ("the resizer's rows", &wide, rgb, plain, [8, 100]),
        ] {
            let most = held(bytes, color, turn, size);
            assert!(most > 16 << 20, "{what}: {most}");
            for small in [&small_jpeg, &small_png] {
                let kept = held(small, rgb, turned, [8, 8]);
                assert!(kept < 16 << 20, "{what}: {kept} of {most} bytes are kept");
                // Not even that in place of the other format's.
                held(small, rgb, plain, [20, 30]);
            }
        }
    }

    /// Every orientation is compared with the whole image turned by the `image` crate.
    #[test]
    fn a_turned_image_is_the_upright_ones_row() {
        let size = [23, 19];
        let fits = [
            Fit::Cover,
            Fit::Stretch,
            Fit::Letterbox { scale_up: true },
            Fit::Letterbox { scale_up: false },
            Fit::RandomCrop,
            Fit::RandomResizedCrop { scale: (0.1, 0.6), ratio: (0.5, 2.0) },
            Fit::ResizeThenCenterCrop { short: 15 },
        ];
        for (width, height) in [(41, 30), (12, 17), (23, 19)] {
            let stored = photograph(width, height);
            for exif in 1..=8 {
                let mut upright = image::DynamicImage::from(stored.clone());
                upright.apply_orientation(image::metadata::Orientation::from_exif(exif).unwrap());
                let upright = upright.into_rgb8();
                let turn = Turn::of(exif);
                assert_eq!(turn.size([width, height]), [upright.width(), upright.height()]);
                for (k, fit) in fits.iter().enumerate() {
                    for flip in [[false; 2], [true, false], [true, true]] {
                        let mut rng = SampleRng::new(1, 2, k as u64);
                        let placed = fit.place(turn.size([width, height]), size, &mut rng).unwrap();
                        let geometry = placed.flipped(flip, size);
                        let turned = paint(&bmp(&stored), turn, geometry, size);
                        let expected = paint(&bmp(&upright), Turn::default(), geometry, size);
                        let worst = turned.iter().zip(&expected).map(|(a, b)| a.abs_diff(*b)).max();
                        assert!(worst <= Some(1), "EXIF {exif}, {fit:?}, {flip:?}: differs by {worst:?}");
                    }
                }
            }
        }
    }

    fn random_rect(rng: &mut SampleRng, width: u32, height: u32) -> Rect {
        let mut side = |n: u32| {
            let length = 1 + rng.below(n.into()) as u32;
            (rng.below(u64::from(n - length) + 1) as u32, length)
        };
        let ((x, width), (y, height)) = (side(width), side(height));
        Rect { x, y, width, height }
    }

    /// A codec that gives no pixel outside of the region makes no difference.
    #[test]
    fn the_region_that_is_asked_for_is_enough() {
        let image = photograph(90, 70);
        let mut smaller = 0;
        for k in 0..500 {
            let mut rng = SampleRng::new(5, 0, k);
            let crop = random_rect(&mut rng, 90, 70);
            let inner = random_rect(&mut rng, 1000, 1000);
            let along = |from: u32, size: u32, start: u32, length: u32| {
                let unit = f64::from(size) / 1000.0;
                [f64::from(from) + f64::from(start) * unit, f64::from(length) * unit]
            };
            let part = [
                along(crop.x, crop.width, inner.x, inner.width),
                along(crop.y, crop.height, inner.y, inner.height),
            ];
            let shown = [1 + rng.below(40) as u32, 1 + rng.below(40) as u32];
            let region = needed(crop, part, shown);
            smaller += usize::from(region != crop);
            let cut = image::imageops::crop_imm(&image, region.x, region.y, region.width, region.height);
            let cut = cut.to_image();
            let resized = |image: &image::RgbImage, x, y| {
                let (width, height) = image.dimensions();
                let pixels = Pixels { bytes: image.as_raw(), width, height, x, y, shrink: 1, partial: false };
                let mut out = vec![0; (shown[0] * shown[1] * 3) as usize];
                let place = Place { x: 0, y: 0, size: shown };
                resize::<U8x3>(&mut Resizer::new(), &pixels, crop, part, &mut out, shown, place).unwrap();
                out
            };
            assert!(
                resized(&image, 0, 0) == resized(&cut, region.x, region.y),
                "{crop:?} {part:?} {shown:?}"
            );
        }
        assert!(smaller > 250, "{smaller} of 500 regions were smaller than their crop");
    }

    /// At half, a quarter and an eighth of the size, whatever the crop's place, nothing moves.
    #[test]
    fn scaled_decoding_moves_nothing() {
        const SLOPE: u32 = 2;
        let (width, height) = (101, 87);
        let full = image::RgbImage::from_fn(width, height, |x, y| {
            image::Rgb([(x * SLOPE) as u8, (y * SLOPE) as u8, ((x + y) * SLOPE / 2) as u8])
        });
        for by in [2, 4, 8] {
            // As libjpeg: the mean of each square, those at the edge go on as they end.
            let small = image::RgbImage::from_fn(width.div_ceil(by), height.div_ceil(by), |x, y| {
                let middle = |v: u32| (f64::from(v) + 0.5) * f64::from(by) - 0.5;
                let [x, y] = [middle(x), middle(y)];
                let slope = f64::from(SLOPE);
                image::Rgb([x * slope, y * slope, (x + y) * slope / 2.0].map(|v| v.round() as u8))
            });
            for k in 0..200 {
                let mut rng = SampleRng::new(6, by.into(), k);
                let crop = random_rect(&mut rng, width, height);
                let target = [crop.width / by, crop.height / by];
                if target[0] < 4 || target[1] < 4 {
                    continue;
                }
                let part = [[crop.x.into(), crop.width.into()], [crop.y.into(), crop.height.into()]];
                let resized = |image: &image::RgbImage, shrink| {
                    let (width, height) = image.dimensions();
                    let pixels =
                        Pixels { bytes: image.as_raw(), width, height, x: 0, y: 0, shrink, partial: false };
                    let mut out = vec![0; (target[0] * target[1] * 3) as usize];
                    let place = Place { x: 0, y: 0, size: target };
                    resize::<U8x3>(&mut Resizer::new(), &pixels, crop, part, &mut out, target, place)
                        .unwrap();
                    image::RgbImage::from_raw(target[0], target[1], out).unwrap()
                };
                let (a, b) = (resized(&full, 1), resized(&small, by));
                for (x, y, pixel) in a.enumerate_pixels() {
                    // At the edges the filters end at other places.
                    if x > 0 && y > 0 && x + 1 < target[0] && y + 1 < target[1] {
                        let worst = (0..3).map(|c| pixel[c].abs_diff(b.get_pixel(x, y)[c])).max();
                        // Half a pixel of the small image would be `by`; a few taps don't keep a slope exactly.
                        assert!(worst <= Some(by as u8 / 2), "1/{by} of {crop:?} at {x}, {y}: {worst:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_fraction_is_taken_where_the_target_is_not_larger() {
        let by = |crop: [u32; 2], target: [u32; 2]| {
            let mut rng = SampleRng::new(0, 0, 0);
            shrink(&Fit::Stretch.place(crop, target, &mut rng).unwrap())
        };
        assert_eq!(by([1280, 720], [640, 360]), 2);
        assert_eq!(by([1280, 720], [640, 361]), 1);
        assert_eq!(by([1280, 720], [160, 90]), 8);
        assert_eq!(by([1280, 720], [161, 90]), 4);
        assert_eq!(by([1, 1], [1, 1]), 1);
    }

    #[test]
    fn pixels_that_the_head_did_not_promise_are_an_error_not_a_panic() {
        let image = photograph(10, 10);
        let pixels = |width, height, x, shrink| Pixels {
            bytes: image.as_raw(),
            width,
            height,
            x,
            y: 0,
            shrink,
            partial: false,
        };
        let crop = Rect { x: 0, y: 0, width: 50, height: 50 };
        for pixels in [pixels(10, 10, 60, 1), pixels(0, 0, 0, 1), pixels(20, 20, 0, 1), pixels(10, 10, 40, 8)]
        {
            let mut out = [0; 75];
            let place = Place { x: 0, y: 0, size: [5, 5] };
            let part = [[0.0, 50.0]; 2];
            let result = resize::<U8x3>(&mut Resizer::new(), &pixels, crop, part, &mut out, [5, 5], place);
            assert_eq!(result.unwrap_err().kind(), ErrorKind::Corrupt);
        }
    }
}

//! Pictures that are drawn and written: RGB, 8 bits.

use std::fs::File;
use std::io::BufWriter;
use std::path::Path;

use anyhow::Result;
use fast_image_resize::images::{Image, ImageRef};
use fast_image_resize::{FilterType, PixelType, ResizeAlg, ResizeOptions, Resizer};
use font8x8::legacy::BASIC_LEGACY;
use warpfeed::SampleRng;

pub(crate) type Color = [u8; 3];
pub(crate) const GREEN: Color = [40, 220, 60];
pub(crate) const RED: Color = [240, 50, 40];
pub(crate) const WHITE: Color = [255; 3];

/// Height of a line of text with its margin.
pub(crate) const LINE: usize = 10;

/// `width` × `height` pixels.
#[derive(Debug, Clone)]
pub(crate) struct Canvas {
    pub(crate) width: usize,
    pub(crate) height: usize,
    /// Red, green, blue, row by row.
    pub(crate) pixels: Vec<u8>,
}

impl Canvas {
    pub(crate) fn plain(width: usize, height: usize, color: Color) -> Self {
        Self { width, height, pixels: color.repeat(width * height) }
    }

    /// Soft blots of colour with a finer grain over them: something for objects to lie on.
    pub(crate) fn blots(width: usize, height: usize, rng: &mut SampleRng) -> Result<Self> {
        let mut octave = |columns: usize, contrast: f32| {
            let rows = (columns * height / width).max(2);
            let grain: Vec<u8> =
                (0..columns * rows * 3).map(|_| (128.0 + rng.uniform(-contrast, contrast)) as u8).collect();
            scaled(&grain, [columns, rows], [width, height], PixelType::U8x3)
        };
        let (coarse, fine) = (octave(4, 60.0)?, octave(48, 30.0)?);
        let both = |(&a, &b): (&u8, &u8)| (i16::from(a) + i16::from(b) - 128).clamp(0, 255) as u8;
        Ok(Self { width, height, pixels: coarse.iter().zip(&fine).map(both).collect() })
    }

    pub(crate) fn pixel(&mut self, x: usize, y: usize) -> Option<&mut [u8]> {
        let at = 3 * (y * self.width + x);
        (x < self.width).then(|| self.pixels.get_mut(at..at + 3)).flatten()
    }

    /// Copies another picture here, its upper left corner at `x`, `y`; what does not fit is cut.
    pub(crate) fn draw(&mut self, other: &Self, x: usize, y: usize) {
        for (k, color) in other.pixels.chunks_exact(3).enumerate() {
            if let Some(pixel) = self.pixel(x + k % other.width, y + k / other.width) {
                pixel.copy_from_slice(color);
            }
        }
    }

    /// The outline of a box, 2 pixels thick; `corners` are left, top, right and bottom.
    pub(crate) fn outline(&mut self, corners: [f32; 4], color: Color) {
        let [left, top, right, bottom] = corners.map(|c| c.max(0.0).round() as usize);
        let near = |a: usize, b: usize| a.abs_diff(b) < 2;
        for y in top..bottom.max(top + 1) {
            for x in left..right.max(left + 1) {
                let edge = near(x, left) || near(x + 1, right) || near(y, top) || near(y + 1, bottom);
                if let Some(pixel) = edge.then(|| self.pixel(x, y)).flatten() {
                    pixel.copy_from_slice(&color);
                }
            }
        }
    }

    /// Text on a black ground, from `x`, `y` to the right.
    pub(crate) fn write(&mut self, text: &str, x: usize, y: usize, color: Color) {
        for (n, letter) in text.chars().enumerate() {
            let glyph = BASIC_LEGACY.get(letter as usize).copied().unwrap_or_default();
            for (row, column) in (0..LINE).flat_map(|row| (0..8).map(move |column| (row, column))) {
                let dots = row.checked_sub(1).and_then(|row| glyph.get(row)).map_or(0, |&dots| dots);
                if let Some(pixel) = self.pixel(x + 8 * n + column, y + row) {
                    pixel.copy_from_slice(if dots >> column & 1 == 1 { &color } else { &[0; 3] });
                }
            }
        }
    }

    /// The same picture at another size.
    pub(crate) fn resized(&self, width: usize, height: usize) -> Result<Self> {
        let pixels = scaled(&self.pixels, [self.width, self.height], [width, height], PixelType::U8x3)?;
        Ok(Self { width, height, pixels })
    }

    /// Writes a JPEG file of usual quality.
    pub(crate) fn save_jpeg(&self, path: &Path) -> Result<()> {
        let encoder = jpeg_encoder::Encoder::new_file(path, 90)?;
        Ok(encoder.encode(
            &self.pixels,
            self.width as u16,
            self.height as u16,
            jpeg_encoder::ColorType::Rgb,
        )?)
    }

    /// Writes a PNG file.
    pub(crate) fn save_png(&self, path: &Path) -> Result<()> {
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        let file = BufWriter::new(File::create(path)?);
        let mut encoder = png::Encoder::new(file, self.width as u32, self.height as u32);
        encoder.set_color(png::ColorType::Rgb);
        let mut writer = encoder.write_header()?;
        writer.write_image_data(&self.pixels)?;
        Ok(writer.finish()?)
    }
}

/// Pixels at another size, bilinear with antialiasing.
pub(crate) fn scaled(
    pixels: &[u8],
    [from_width, from_height]: [usize; 2],
    [width, height]: [usize; 2],
    kind: PixelType,
) -> Result<Vec<u8>> {
    let from = ImageRef::new(from_width as u32, from_height as u32, pixels, kind)?;
    let mut to = Image::new(width as u32, height as u32, kind);
    let options = ResizeOptions::new().resize_alg(ResizeAlg::Convolution(FilterType::Bilinear));
    Resizer::new().resize(&from, &mut to, &options)?;
    Ok(to.into_vec())
}

/// Pictures of one size side by side, `columns` to a row.
pub(crate) fn sheet(pictures: &[Canvas], columns: usize) -> Canvas {
    const GAP: usize = 4;
    let (width, height) = pictures.first().map_or((0, 0), |p| (p.width + GAP, p.height + GAP));
    let rows = pictures.len().div_ceil(columns);
    let mut sheet = Canvas::plain(columns * width + GAP, rows * height + GAP, [24; 3]);
    for (k, picture) in pictures.iter().enumerate() {
        sheet.draw(picture, GAP + k % columns * width, GAP + k / columns * height);
    }
    sheet
}

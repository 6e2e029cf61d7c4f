//! Objects cut out of their background: photographs with alpha, and shapes that are drawn.

use std::fs::File;
use std::io::BufReader;
use std::path::Path;

use anyhow::{Context, Result};
use fast_image_resize::PixelType;
use warpfeed::SampleRng;

use super::canvas::{Canvas, Color, scaled};

/// What is drawn where there are no photographs.
pub(crate) const SHAPES: [&str; 5] = ["crosses", "disks", "rings", "squares", "triangles"];

/// An object of `width` × `height` pixels; it touches all four sides.
#[derive(Debug, Clone)]
pub(crate) struct Cutout {
    pub(crate) width: usize,
    pub(crate) height: usize,
    /// Red, green, blue, alpha, row by row.
    rgba: Vec<u8>,
}

impl Cutout {
    /// Reads a PNG file, of whatever colours.
    pub(crate) fn read(path: &Path) -> Result<Self> {
        let read = || -> Result<Self> {
            let mut decoder = png::Decoder::new(BufReader::new(File::open(path)?));
            decoder.set_transformations(
                png::Transformations::normalize_to_color8() | png::Transformations::ALPHA,
            );
            let mut reader = decoder.read_info()?;
            let mut bytes = vec![0; reader.output_buffer_size().context("too large")?];
            let info = reader.next_frame(&mut bytes)?;
            bytes.truncate(info.buffer_size());
            let rgba = match info.color_type {
                png::ColorType::GrayscaleAlpha => {
                    bytes.chunks_exact(2).flat_map(|p| [p[0], p[0], p[0], p[1]]).collect()
                }
                _ => bytes,
            };
            Ok(Self { width: info.width as usize, height: info.height as usize, rgba }.trimmed())
        };
        read().with_context(|| path.display().to_string())
    }

    /// One of [`SHAPES`], turned, in the colours of its kind, with some grain.
    pub(crate) fn drawn(shape: usize, rng: &mut SampleRng) -> Self {
        let side = 48 + rng.below(80) as usize;
        let hue = shape as f32 / SHAPES.len() as f32 + rng.uniform(-0.04, 0.04);
        let (strength, light) = (rng.uniform(0.6, 1.0), rng.uniform(150.0, 255.0));
        // How far from the hues of red, green and blue, which lie a third apart.
        let away = [0.0, 1.0, 2.0].map(|third: f32| ((hue - third / 3.0 + 1.5).rem_euclid(1.0) - 0.5).abs());
        let color = away.map(|a| (light * (1.0 - strength * (6.0 * a - 1.0).clamp(0.0, 1.0))) as u8);
        let (sin, cos) = rng.uniform(0.0, std::f32::consts::TAU).sin_cos();
        let stroke = rng.uniform(0.2, 0.34);
        // A pixel's place is -1 to 1; a shape fits in the unit circle however it is turned.
        let inside = |x: f32, y: f32| match SHAPES[shape % SHAPES.len()] {
            "crosses" => x.abs().min(y.abs()) < stroke && x.abs().max(y.abs()) < 0.92,
            "disks" => x.hypot(y) < 0.9,
            "rings" => x.hypot(y) < 0.9 && x.hypot(y) > 1.0 - 1.6 * stroke,
            "squares" => x.abs().max(y.abs()) < 0.68,
            _ => y < 0.48 && y > 3f32.sqrt() * x.abs() - 0.96,
        };
        let mut rgba = Vec::with_capacity(4 * side * side);
        for (row, column) in (0..side).flat_map(|row| (0..side).map(move |column| (row, column))) {
            let [x, y] = [column, row].map(|p| (2 * p + 1) as f32 / side as f32 - 1.0);
            let grain = rng.below(33) as i16 - 16;
            rgba.extend(color.map(|c| (i16::from(c) + grain).clamp(0, 255) as u8));
            rgba.push(if inside(cos * x - sin * y, sin * x + cos * y) { 255 } else { 0 });
        }
        Self { width: side, height: side, rgba }.trimmed()
    }

    /// Without the margins that can't be seen.
    fn trimmed(self) -> Self {
        let seen = |x: usize, y: usize| self.rgba[4 * (y * self.width + x) + 3] >= 128;
        let row = |&y: &usize| (0..self.width).any(|x| seen(x, y));
        let column = |&x: &usize| (0..self.height).any(|y| seen(x, y));
        let rows = ((0..self.height).find(row), (0..self.height).rfind(row));
        let columns = ((0..self.width).find(column), (0..self.width).rfind(column));
        let ((Some(top), Some(bottom)), (Some(left), Some(right))) = (rows, columns) else { return self };
        let lines = self.rgba.chunks_exact(4 * self.width).skip(top).take(bottom + 1 - top);
        let rgba = lines.flat_map(|line| &line[4 * left..4 * (right + 1)]).copied().collect();
        Self { width: right + 1 - left, height: bottom + 1 - top, rgba }
    }

    /// The object at another size.
    pub(crate) fn resized(&self, width: usize, height: usize) -> Result<Self> {
        let rgba = scaled(&self.rgba, [self.width, self.height], [width, height], PixelType::U8x4)?;
        Ok(Self { width, height, rgba })
    }

    /// The object seen in a mirror.
    pub(crate) fn flipped(mut self) -> Self {
        for line in self.rgba.chunks_exact_mut(4 * self.width) {
            let mirrored: Vec<u8> = line.chunks_exact(4).rev().flatten().copied().collect();
            line.copy_from_slice(&mirrored);
        }
        self
    }

    /// The object alone on a plain ground, with a small margin around it.
    pub(crate) fn on(&self, ground: Color) -> Canvas {
        let margin = self.width.max(self.height) / 16 + 1;
        let mut canvas = Canvas::plain(self.width + 2 * margin, self.height + 2 * margin, ground);
        self.paste(&mut canvas, margin, margin);
        canvas
    }

    /// Lays the object over a picture, its upper left corner at `x`, `y`.
    pub(crate) fn paste(&self, canvas: &mut Canvas, x: usize, y: usize) {
        for (k, rgba) in self.rgba.chunks_exact(4).enumerate() {
            let Some(pixel) = canvas.pixel(x + k % self.width, y + k / self.width) else { continue };
            let alpha = u16::from(rgba[3]);
            for (under, &over) in pixel.iter_mut().zip(rgba) {
                *under = ((u16::from(over) * alpha + u16::from(*under) * (255 - alpha) + 127) / 255) as u8;
            }
        }
    }
}

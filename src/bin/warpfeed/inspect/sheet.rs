//! A batch as a picture.

use std::fs::File;
use std::io::{BufWriter, Read};
use std::path::Path;

use anyhow::anyhow;
use font8x8::legacy::BASIC_LEGACY;
use warpfeed::decode::Geometry;
use warpfeed::source::{Labels, Pictures, Source};
use warpfeed::{Batch, Device, Loader, OnError};

use crate::images::{Found, Recipe, line};

type Rgb = [u8; 3];

/// Colours of the classes, over and over again.
const CLASSES: [Rgb; 12] = [
    [255, 64, 64],
    [64, 220, 64],
    [80, 140, 255],
    [255, 220, 0],
    [255, 64, 255],
    [0, 230, 230],
    [255, 150, 0],
    [170, 110, 255],
    [190, 255, 90],
    [255, 160, 190],
    [0, 170, 120],
    [200, 150, 90],
];
const GROUND: Rgb = [24; 3];
const TEXT: Rgb = [235; 3];
/// Over what shows nothing of an image, a line each [`HATCH`] pixels.
const HATCHING: Rgb = [60; 3];
const HATCH: usize = 12;
/// Samples that failed are crossed out.
const CROSS: Rgb = [255, 0, 0];
/// Between tiles.
const GAP: usize = 4;
/// A character's width and height.
const GLYPH: usize = 8;
/// The height of a line of text below each tile.
const CAPTION: usize = GLYPH + 4;
/// The thickness of a box's line.
const LINE: usize = 2;

/// What every PNG file begins with.
const SIGNATURE: [u8; 8] = *b"\x89PNG\r\n\x1a\n";

/// Refuses to overwrite what is no PNG, and what lies at `data`, be it in its folder or one of its images elsewhere.
///
/// # Errors
/// Where it refuses to.
pub(super) fn check(path: &Path, data: &Path, found: &Found) -> anyhow::Result<()> {
    let refused = |why: &str| Err(anyhow!("the contact sheet {} {why}", line(&path.to_string_lossy())));
    if !path.extension().is_some_and(|e| e.eq_ignore_ascii_case("png")) {
        return refused("must be called .png");
    }
    if path.symlink_metadata().is_err() {
        return Ok(());
    }
    let Ok(full) = path.canonicalize() else { return refused("is a link to nothing") };
    let folder = if data.is_dir() { Some(data) } else { data.parent() };
    let folder = folder.map(|folder| if folder.as_os_str().is_empty() { Path::new(".") } else { folder });
    let inside = folder.and_then(|folder| folder.canonicalize().ok()).is_some_and(|f| full.starts_with(f));
    let is_sample = || {
        let paths = (0..found.set.len().unwrap_or(0)).filter_map(|index| found.set.describe(index).path);
        let mut alike = paths.filter(|sample| sample.file_name() == full.file_name());
        alike.any(|sample| sample.canonicalize().is_ok_and(|sample| sample == full))
    };
    if inside || is_sample() {
        return refused("would overwrite a file of the data: name another one, or remove it");
    }
    let mut start = [0; SIGNATURE.len()];
    let read = full.is_file().then(|| File::open(&full).and_then(|mut file| file.read_exact(&mut start)));
    match read {
        Some(Ok(())) if start == SIGNATURE => Ok(()),
        _ => refused("would overwrite what is no PNG: name another file, or remove it"),
    }
}

/// Loads `size` samples, shuffled by `seed`, and draws them as they are in their rows.
///
/// # Errors
/// What the loader meets; a file that can't be written.
pub(super) fn write(
    path: &Path,
    found: &Found,
    recipe: Recipe,
    size: usize,
    seed: u64,
) -> anyhow::Result<()> {
    let len = usize::try_from(found.set.len().unwrap_or(0)).unwrap_or(usize::MAX);
    let device = Device::cpu();
    let stream = device.new_stream()?;
    let loader = Loader::builder(found.set.clone())
        .decode(recipe.decoder())
        .batch_size(size.min(len).max(1))
        .shuffle(seed)
        .on_error(OnError::Skip { limit: u64::MAX })
        .host_slots(1)
        .device_slots(1)
        .epochs(1)
        .build(&device)?;
    let mut epoch = loader.epoch(&stream)?;
    let batch = epoch.next().ok_or_else(|| anyhow!("there is no sample to draw"))??;
    let canvas = draw(&batch, found)?;
    canvas
        .save(path)
        .map_err(|e| anyhow!("the contact sheet {} can't be written: {e}", line(&path.to_string_lossy())))
}

fn draw(batch: &Batch, found: &Found) -> anyhow::Result<Canvas> {
    let images = batch.host::<u8>("image")?;
    let shape = batch.view::<u8>("image")?.shape().to_vec();
    let [_, height, width, 3] = *shape.as_slice() else { return Err(anyhow!("rows of the shape {shape:?}")) };
    let rows = batch.len();
    let columns = (rows as f64).sqrt().ceil() as usize;
    let tile = [width + GAP, height + CAPTION + GAP];
    let mut canvas = Canvas::new(columns * tile[0] + GAP, rows.div_ceil(columns.max(1)) * tile[1] + GAP);
    let geometry = batch.host::<f32>("geometry")?;
    let classed = found.set.labels() == Labels::Class;
    let labels = if classed { batch.host::<i64>("label")?.into_owned() } else { Vec::new() };
    let drawable = |name: &&String| name.is_ascii(); // all that the font has
    let name = |class: usize| {
        found.class_names().get(class).filter(drawable).cloned().unwrap_or_else(|| class.to_string())
    };
    for (row, pixels) in images.chunks_exact(height * width * 3).enumerate().take(rows) {
        let at = [GAP + row % columns * tile[0], GAP + row / columns * tile[1]];
        let place = Tile { at, size: [width, height] };
        canvas.paint(place, pixels);
        let index = batch.indices().get(row).copied().unwrap_or(0);
        let under = [at[0], at[1] + height + 2];
        if !batch.valid().get(row).copied().unwrap_or(false) {
            canvas.cross(place);
            canvas.text(under, &format!("#{index} could not be loaded"), width, TEXT);
            continue;
        }
        let numbers = geometry.get(row * Geometry::LEN..(row + 1) * Geometry::LEN).unwrap_or_default();
        canvas.hatch(place, Geometry::from_row(numbers)?.target());
        let mut caption = labels.get(row).map_or(String::new(), |class| name(*class as usize));
        if matches!(found.set.labels(), Labels::Boxes { .. }) {
            let values = batch.host_ragged::<f32>("boxes", row)?;
            let boxes = values.as_chunks::<5>().0;
            caption = format!("{} box{}", boxes.len(), if boxes.len() == 1 { "" } else { "es" });
            for &[class, x, y, w, h] in boxes {
                let [x, w] = [x, w].map(|v| v * width as f32);
                let [y, h] = [y, h].map(|v| v * height as f32);
                let corners = [x - w / 2.0, y - h / 2.0, x + w / 2.0, y + h / 2.0];
                canvas.rectangle(place, corners, colour(class as usize), &name(class as usize));
            }
        }
        canvas.text(under, &format!("#{index} {caption}"), width, TEXT);
    }
    Ok(canvas)
}

fn colour(class: usize) -> Rgb {
    CLASSES[class % CLASSES.len()]
}

/// Where one row is drawn.
#[derive(Clone, Copy)]
struct Tile {
    at: [usize; 2],
    size: [usize; 2],
}

struct Canvas {
    width: usize,
    height: usize,
    pixels: Vec<Rgb>,
}

impl Canvas {
    fn new(width: usize, height: usize) -> Self {
        Self { width, height, pixels: vec![GROUND; width * height] }
    }

    fn set(&mut self, x: usize, y: usize, colour: Rgb) {
        if x < self.width
            && let Some(pixel) = self.pixels.get_mut(y * self.width + x)
        {
            *pixel = colour;
        }
    }

    fn paint(&mut self, tile: Tile, pixels: &[u8]) {
        for (number, pixel) in pixels.as_chunks::<3>().0.iter().enumerate() {
            self.set(tile.at[0] + number % tile.size[0], tile.at[1] + number / tile.size[0], *pixel);
        }
    }

    /// Hatches what lies outside of `shown`: x, y, width, height in the tile.
    fn hatch(&mut self, tile: Tile, [left, top, width, height]: [i64; 4]) {
        for y in 0..tile.size[1] {
            for x in 0..tile.size[0] {
                let (px, py) = (x as i64, y as i64);
                let inside = (left..left + width).contains(&px) && (top..top + height).contains(&py);
                if !inside && (x + y) % HATCH == 0 {
                    self.set(tile.at[0] + x, tile.at[1] + y, HATCHING);
                }
            }
        }
    }

    fn cross(&mut self, tile: Tile) {
        let [width, height] = tile.size;
        for y in 0..height {
            let x = y * width / height;
            for x in [x, x + 1, width - 1 - x, (width - 1 - x).saturating_sub(1)] {
                if x < width {
                    self.set(tile.at[0] + x, tile.at[1] + y, CROSS);
                }
            }
        }
    }

    /// A box (left, top, right, bottom in the tile) within the tile, and its label.
    fn rectangle(&mut self, tile: Tile, corners: [f32; 4], colour: Rgb, label: &str) {
        let [width, height] = tile.size;
        let x = |v: f32| (v.round().max(0.0) as usize).min(width - 1);
        let y = |v: f32| (v.round().max(0.0) as usize).min(height - 1);
        let [left, top, right, bottom] = [x(corners[0]), y(corners[1]), x(corners[2]), y(corners[3])];
        for py in top..=bottom {
            for px in left..=right {
                let edge = px < left + LINE || px + LINE > right || py < top + LINE || py + LINE > bottom;
                if edge {
                    self.set(tile.at[0] + px, tile.at[1] + py, colour);
                }
            }
        }
        // The label lies above the box, or in it where there is no room, on a ground of the class's colour.
        let wide = (label.chars().count() * GLYPH + 2).min(width);
        let from = left.min(width - wide);
        let above = top.checked_sub(GLYPH + 2).unwrap_or(top);
        for py in above..(above + GLYPH + 2).min(height) {
            for px in from..from + wide {
                self.set(tile.at[0] + px, tile.at[1] + py, colour);
            }
        }
        self.text([tile.at[0] + from + 1, tile.at[1] + above + 1], label, wide, [0; 3]);
    }

    /// Text from its upper left corner on, as far as `room` pixels let it.
    fn text(&mut self, [left, top]: [usize; 2], text: &str, room: usize, colour: Rgb) {
        for (number, c) in text.chars().take(room / GLYPH).enumerate() {
            let glyph = BASIC_LEGACY.get(c as usize).unwrap_or(&BASIC_LEGACY[usize::from(b'?')]);
            for (y, bits) in glyph.iter().enumerate() {
                for x in (0..GLYPH).filter(|x| bits >> x & 1 == 1) {
                    self.set(left + number * GLYPH + x, top + y, colour);
                }
            }
        }
    }

    fn save(&self, path: &Path) -> anyhow::Result<()> {
        let file = BufWriter::new(File::create(path)?);
        let mut encoder = png::Encoder::new(file, u32::try_from(self.width)?, u32::try_from(self.height)?);
        encoder.set_color(png::ColorType::Rgb);
        encoder.set_depth(png::BitDepth::Eight);
        let mut writer = encoder.write_header()?;
        writer.write_image_data(self.pixels.as_flattened())?;
        writer.finish()?;
        Ok(())
    }
}

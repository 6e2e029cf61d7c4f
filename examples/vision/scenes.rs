//! Scenes made of cut-out objects, written as a detection set in Ultralytics' layout.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use anyhow::Result;
use warpfeed::SampleRng;

use super::canvas::Canvas;
use super::objects::{Class, Objects};

/// Objects of a scene, at most.
const MOST: usize = 3;

/// A picture with objects, each with its class and its left, top, right and bottom in pixels.
struct Scene {
    canvas: Canvas,
    objects: Vec<(usize, [usize; 4])>,
}

impl Scene {
    /// No object to [`MOST`] of them, whole and apart from each other, on blots of colour.
    fn compose(classes: &[Class], rng: &mut SampleRng) -> Result<Self> {
        let [width, height] = [160, 120].map(|least| least + rng.below(100) as usize);
        let mut canvas = Canvas::blots(width, height, rng)?;
        let mut objects: Vec<(usize, [usize; 4])> = Vec::new();
        for _ in 0..rng.below(MOST as u64 + 1).max(u64::from(rng.chance(0.9))) {
            let class = rng.below(classes.len() as u64) as usize;
            let Some(object) = pick(&classes[class].objects, rng) else { continue };
            let longest = rng.uniform(0.3, 0.7) * height.min(width) as f32;
            let scale = longest / object.width.max(object.height) as f32;
            let [w, h] = [object.width, object.height].map(|n| ((n as f32 * scale).round() as usize).max(8));
            let mut object = object.resized(w, h)?;
            if rng.chance(0.5) {
                object = object.flipped();
            }
            let mut place =
                || [rng.below((width - w) as u64) as usize, rng.below((height - h) as u64) as usize];
            let apart = |[x, y]: &[usize; 2]| {
                let beside = |o: &[usize; 4]| *x >= o[2] || x + w <= o[0] || *y >= o[3] || y + h <= o[1];
                objects.iter().all(|(_, other)| beside(other))
            };
            // An object for which no room is found is left out.
            if let Some([x, y]) = (0..20).map(|_| place()).find(apart) {
                object.paste(&mut canvas, x, y);
                objects.push((class, [x, y, x + w, y + h]));
            }
        }
        Ok(Self { canvas, objects })
    }

    /// The rows of a YOLO label file: class, centre x and y, width and height, in fractions of the image.
    fn labels(&self) -> Result<String> {
        let [width, height] = [self.canvas.width, self.canvas.height].map(|n| n as f64);
        let mut rows = String::new();
        for (class, corners) in &self.objects {
            let [left, top, right, bottom] = corners.map(|c| c as f64);
            let (x, y) = ((left + right) / 2.0 / width, (top + bottom) / 2.0 / height);
            writeln!(
                rows,
                "{class} {x:.6} {y:.6} {:.6} {:.6}",
                (right - left) / width,
                (bottom - top) / height
            )?;
        }
        Ok(rows)
    }
}

fn pick<'a, T>(from: &'a [T], rng: &mut SampleRng) -> Option<&'a T> {
    from.get(rng.below(from.len() as u64) as usize)
}

/// Writes `counts` scenes for training and for validation as JPEG files with their labels, and a `data.yaml`, whose path is returned. The
/// objects of the one part are not in the other.
pub(crate) fn write(objects: Objects, counts: [u64; 2], folder: &Path, seed: u64) -> Result<PathBuf> {
    let mut yaml = format!("path: {}\ntrain: images/train\nval: images/val\nnames:\n", folder.display());
    for (number, name) in objects.names().iter().enumerate() {
        writeln!(yaml, "  {number}: {name}")?;
    }
    let parts = objects.split(0.75, seed);
    for (part, (classes, name)) in parts.iter().zip(["train", "val"]).enumerate() {
        let [images, labels] = ["images", "labels"].map(|kind| folder.join(kind).join(name));
        std::fs::create_dir_all(&images)?;
        std::fs::create_dir_all(&labels)?;
        for number in 0..counts[part] {
            let scene = Scene::compose(classes, &mut SampleRng::new(seed, part as u64, number))?;
            scene.canvas.save_jpeg(&images.join(format!("{number:05}.jpg")))?;
            std::fs::write(labels.join(format!("{number:05}.txt")), scene.labels()?)?;
        }
    }
    let path = folder.join("data.yaml");
    std::fs::write(&path, yaml)?;
    Ok(path)
}

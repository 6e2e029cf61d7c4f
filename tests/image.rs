//! Encoded images into rows: fits against a model of them, what is random, boxes, options.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test stops at the first surprise")]

mod support;

use std::time::Duration;

use support::{device_and_stream, within};
use warpfeed::Loader;
use warpfeed::decode::{Decode, Geometry, Image};
use warpfeed::source::{self, Labels, Pictures};

const MINUTE: Duration = Duration::from_secs(60);

/// An image as the tests see it: height, width, RGB.
#[derive(Clone)]
struct Pixels {
    width: usize,
    height: usize,
    rgb: Vec<u8>,
}

impl Pixels {
    /// A smooth and a rough part, other in each channel.
    fn new(width: usize, height: usize) -> Self {
        let mut rgb = Vec::new();
        for y in 0..height {
            for x in 0..width {
                let noise = (x * 7919 + y * 104_729 + x * y * 31) % 97;
                rgb.push((x * 255 / width.max(2)) as u8);
                rgb.push((y * 255 / height.max(2)) as u8);
                rgb.push((noise * 255 / 96) as u8);
            }
        }
        Self { width, height, rgb }
    }

    fn at(&self, x: usize, y: usize, channel: usize) -> u8 {
        self.rgb[(y * self.width + x) * 3 + channel]
    }

    fn bmp(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let (width, height) = (self.width as u32, self.height as u32);
        let mut encoder = image::codecs::bmp::BmpEncoder::new(&mut out);
        encoder.encode(&self.rgb, width, height, image::ExtendedColorType::Rgb8).unwrap();
        out
    }

    fn cut(&self, [x, y, width, height]: [usize; 4]) -> Self {
        let rgb = (y..y + height)
            .flat_map(|y| &self.rgb[(y * self.width + x) * 3..][..width * 3])
            .copied()
            .collect();
        Self { width, height, rgb }
    }

    /// Bilinear with antialiasing, in f64: a triangle as wide as the scale, cut at the edges.
    fn resized(&self, width: usize, height: usize) -> Self {
        let weights = |from: usize, to: usize| -> Vec<Vec<(usize, f64)>> {
            let scale = from as f64 / to as f64;
            let support = scale.max(1.0);
            (0..to)
                .map(|i| {
                    let centre = (i as f64 + 0.5) * scale;
                    let weight = |k: usize| (1.0 - ((k as f64 + 0.5 - centre) / support).abs()).max(0.0);
                    let sum: f64 = (0..from).map(weight).sum();
                    (0..from).map(|k| (k, weight(k) / sum)).filter(|w| w.1 > 0.0).collect()
                })
                .collect()
        };
        let (across, down) = (weights(self.width, width), weights(self.height, height));
        let mut rgb = Vec::new();
        for rows in &down {
            for columns in &across {
                for channel in 0..3 {
                    let sum: f64 = rows
                        .iter()
                        .flat_map(|&(y, v)| columns.iter().map(move |&(x, h)| (x, y, v * h)))
                        .map(|(x, y, w)| w * f64::from(self.at(x, y, channel)))
                        .sum();
                    rgb.push(sum.round() as u8);
                }
            }
        }
        Self { width, height, rgb }
    }

    fn flipped(&self) -> Self {
        let mut out = self.clone();
        for line in out.rgb.chunks_exact_mut(self.width * 3) {
            line.as_chunks_mut::<3>().0.reverse();
        }
        out
    }

    /// Laid on a canvas of `fill`.
    fn on(&self, width: usize, height: usize, fill: u8, [left, top]: [usize; 2]) -> Self {
        let mut rgb = vec![fill; width * height * 3];
        for y in 0..self.height {
            let to = ((y + top) * width + left) * 3;
            rgb[to..to + self.width * 3].copy_from_slice(&self.rgb[y * self.width * 3..][..self.width * 3]);
        }
        Self { width, height, rgb }
    }
}

/// A row as it was delivered.
#[derive(Debug, Clone, PartialEq, Default)]
struct Delivered {
    index: u64,
    image: Vec<u8>,
    geometry: Vec<f32>,
    boxes: Vec<f32>,
    label: Option<i64>,
    key: Option<String>,
}

/// All rows of one epoch, in the order of the samples.
fn deliver<S: Pictures>(source: S, image: Image, workers: usize) -> Vec<Delivered> {
    let (device, stream) = device_and_stream();
    let labels = source.labels();
    let fields: Vec<String> =
        image.fields(&source).unwrap().iter().map(|field| field.name().to_string()).collect();
    let has = |name: &str| fields.iter().any(|field| field == name);
    let loader =
        Loader::builder(source).decode(image).batch_size(4).workers(workers).seed(3).build(&device).unwrap();
    let mut rows = Vec::new();
    for batch in loader.epoch(&stream).unwrap() {
        let batch = batch.unwrap();
        batch.synchronize().unwrap();
        let images = batch.host::<u8>("image").unwrap();
        let each = images.len() / batch.len();
        for (row, &index) in batch.indices().iter().enumerate() {
            let mut delivered = Delivered { index, ..Delivered::default() };
            delivered.image = images[row * each..][..each].to_vec();
            if has("geometry") {
                let all = batch.host::<f32>("geometry").unwrap();
                delivered.geometry = all[row * Geometry::LEN..][..Geometry::LEN].to_vec();
            }
            match labels {
                Labels::Class => delivered.label = Some(batch.host::<i64>("label").unwrap()[row]),
                Labels::Boxes { .. } => {
                    delivered.boxes = batch.host_ragged::<f32>("boxes", row).unwrap().to_vec();
                }
                _ => {}
            }
            if has("key") {
                delivered.key = batch.text("key").unwrap().nth(row).map(str::to_string);
            }
            rows.push(delivered);
        }
    }
    rows.sort_by_key(|row| row.index);
    rows
}

fn one(pixels: &Pixels, image: Image) -> Delivered {
    deliver(source::from_vec(vec![pixels.bmp()]), image, 0).remove(0)
}

#[track_caller]
fn close(delivered: &[u8], expected: &Pixels, most: u8, what: &str) {
    assert_eq!(delivered.len(), expected.rgb.len(), "{what}");
    let worst = delivered.iter().zip(&expected.rgb).map(|(a, b)| a.abs_diff(*b)).max().unwrap();
    assert!(worst <= most, "{what}: differs by {worst}");
}

const SIZES: [(usize, usize); 9] =
    [(48, 36), (36, 48), (37, 23), (1, 1), (1, 90), (90, 1), (20, 20), (7, 5), (133, 64)];
const ROWS: [(usize, usize); 5] = [(24, 24), (17, 31), (1, 1), (50, 40), (20, 20)];

#[test]
fn a_stretched_image_is_the_models() {
    within(MINUTE, || {
        for (width, height) in SIZES {
            let pixels = Pixels::new(width, height);
            for (w, h) in ROWS {
                let row = one(&pixels, Image::rgb8(h, w).stretch());
                close(&row.image, &pixels.resized(w, h), 2, &format!("{width}x{height} to {w}x{h}"));
                let [width, height, w, h] = [width, height, w, h].map(|v| v as f32);
                assert_eq!(row.geometry, [width, height, 0., 0., width, height, 0., 0., w, h, 0.]);
            }
        }
    });
}

#[test]
fn by_default_the_middle_of_the_covering_image_is_taken() {
    within(MINUTE, || {
        for (width, height) in SIZES {
            let pixels = Pixels::new(width, height);
            for (w, h) in ROWS {
                let row = one(&pixels, Image::rgb8(h, w));
                let scale = (w as f64 / width as f64).max(h as f64 / height as f64);
                let full = [width, height].map(|v| (v as f64 * scale).round_ties_even() as usize);
                let left = ((full[0] - w) as f64 / 2.0).round_ties_even() as usize;
                let top = ((full[1] - h) as f64 / 2.0).round_ties_even() as usize;
                let expected = pixels.resized(full[0], full[1]).cut([left, top, w, h]);
                close(&row.image, &expected, 2, &format!("{width}x{height} to {w}x{h}"));
                let target = [-(left as f32), -(top as f32), full[0] as f32, full[1] as f32];
                assert_eq!(row.geometry[6..10], target);
            }
        }
    });
}

#[test]
fn a_letterbox_shows_all_of_the_image_and_fills_around_it() {
    within(MINUTE, || {
        for (width, height) in SIZES {
            let pixels = Pixels::new(width, height);
            for (w, h) in ROWS {
                for (up, fill) in [(true, 114), (false, 7)] {
                    let image = Image::rgb8(h, w).letterbox();
                    let image = if up { image } else { image.scale_up(false).fill(fill) };
                    let row = one(&pixels, image);
                    let scale = (w as f64 / width as f64).min(h as f64 / height as f64);
                    let scale = if up { scale } else { scale.min(1.0) };
                    let new = [width, height].map(|v| (v as f64 * scale).round_ties_even().max(1.0) as usize);
                    let [left, top] = [(w - new[0]) / 2, (h - new[1]) / 2];
                    let expected = pixels.resized(new[0], new[1]).on(w, h, fill, [left, top]);
                    close(&row.image, &expected, 2, &format!("{width}x{height} to {w}x{h}"));
                    assert_eq!(row.geometry[6..10], [left, top, new[0], new[1]].map(|v| v as f32));
                }
            }
        }
    });
}

#[test]
fn random_crops_are_the_models_crop_and_resize_and_flip() {
    within(MINUTE, || {
        let pixels = Pixels::new(61, 45);
        let source = || source::from_vec(vec![pixels.bmp(); 40]);
        let image = Image::rgb8(19, 23).random_resized_crop(Image::SCALE, Image::RATIO).flip(0.5);
        let rows = deliver(source(), image.clone(), 1);
        assert_eq!(rows, deliver(source(), image.clone(), 4), "the same on any number of workers");
        let mut crops = std::collections::BTreeSet::new();
        for row in &rows {
            let crop: [usize; 4] = std::array::from_fn(|k| row.geometry[2 + k] as usize);
            let expected = pixels.cut(crop).resized(23, 19);
            let flip = row.geometry[10] == 1.0;
            let expected = if flip { expected.flipped() } else { expected };
            close(&row.image, &expected, 2, &format!("{:?}", row.geometry));
            crops.insert((crop, flip));
        }
        assert!(crops.len() > 30);
        assert!((8..32).contains(&crops.iter().filter(|crop| crop.1).count()));

        let window = deliver(source(), Image::rgb8(19, 23).random_crop().flip(1.0), 2);
        for row in &window {
            let crop: [usize; 4] = std::array::from_fn(|k| row.geometry[2 + k] as usize);
            assert_eq!(crop[2..], [23, 19]);
            assert_eq!(row.image, pixels.cut(crop).flipped().rgb, "not a pixel changed");
        }
    });
}

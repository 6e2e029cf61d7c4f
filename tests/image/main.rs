//! Encoded images into rows: the fits against a model and against Pillow, what is random, boxes, options.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test stops at the first surprise")]

mod boxes;
mod fits;
mod options;
mod pillow;
mod pixels;
#[cfg(feature = "tar")]
mod shards;
#[path = "../support/mod.rs"]
mod support;

use std::time::Duration;

use support::device_and_stream;
use warpfeed::Loader;
use warpfeed::decode::{Decode, Geometry, Image};
use warpfeed::source::{self, Labels, Pictures};

use pixels::Pixels;

const MINUTE: Duration = Duration::from_secs(60);

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
    let loader = Loader::builder(source)
        .decode(image)
        .batch_size(4)
        .workers(workers)
        .epochs(1)
        .seed(3)
        .build(&device)
        .unwrap();
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

//! Each fit against the model.

use warpfeed::decode::Image;
use warpfeed::source;

use super::{MINUTE, Pixels, close, deliver, one};
use crate::support::within;

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

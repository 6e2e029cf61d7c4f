//! How an image of any size is brought to the row's size.

use super::codec::Rect;
use super::geometry::{Geometry, Target};
use crate::error::{Error, ErrorKind, Result};
use crate::random::SampleRng;

/// How an image of any size comes into a row of one size. Sizes are width, then height.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Fit {
    /// Resized, its aspect kept, so that it covers the row; the middle of it.
    Cover,
    /// Resized to the row's size, whatever its aspect.
    Stretch,
    /// torchvision's `Resize(short)` and `CenterCrop`.
    ResizeThenCenterCrop { short: u32 },
    /// torchvision's `RandomResizedCrop`.
    RandomResizedCrop { scale: (f64, f64), ratio: (f64, f64) },
    /// A window of the row's size, at a random place.
    RandomCrop,
    /// Resized, its aspect kept, so that all of it is seen.
    Letterbox { scale_up: bool },
}

/// The longest side of an image that is resized: a filter as long has 16 MiB of weights.
const LONGEST: u32 = 1 << 20;

impl Fit {
    /// What nothing of the image covers is filled with, unless said otherwise.
    pub(super) fn fill(&self) -> u8 {
        match self {
            Self::Letterbox { .. } => 114,
            _ => 0,
        }
    }

    /// # Errors
    /// [`ErrorKind::InvalidConfig`] for numbers that make no sense.
    pub(super) fn check(&self) -> Result<()> {
        let config = |text: String| Err(Error::new(ErrorKind::InvalidConfig, text));
        match *self {
            Self::ResizeThenCenterCrop { short: 0 } => {
                config("resize_then_center_crop: the short side has no pixels".to_string())
            }
            Self::RandomResizedCrop { scale, ratio } => {
                let ordered = |(low, high): (f64, f64), most: f64| 0.0 < low && low <= high && high <= most;
                if !ordered(scale, 1.0) {
                    return config(format!(
                        "random_resized_crop: scale is {scale:?}, not 0 < low ≤ high ≤ 1"
                    ));
                }
                if !ordered(ratio, f64::MAX) {
                    return config(format!("random_resized_crop: ratio is {ratio:?}, not 0 < low ≤ high"));
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Where an image of this size goes in a row of size `out`. What is random is drawn from `rng`: for a random resized
    /// crop the area, the aspect (both anew in each try), y, x; for a random crop y, then x, each where there is a choice.
    ///
    /// # Errors
    /// [`ErrorKind::LimitExceeded`] for an image with a side of over a million pixels.
    pub(super) fn place(&self, image: [u32; 2], out: [u32; 2], rng: &mut SampleRng) -> Result<Geometry> {
        let [width, height] = image;
        if width.max(height) > LONGEST {
            let text = format!("the image has {width} × {height} pixels, and a side at most {LONGEST}");
            return Err(Error::new(ErrorKind::LimitExceeded, text));
        }
        let whole = Rect { x: 0, y: 0, width, height };
        let row = Target { x: 0, y: 0, width: out[0], height: out[1] };
        let (crop, target) = match *self {
            Self::Stretch => (whole, row),
            Self::Cover => (whole, centred(cover(image, out), out)),
            Self::ResizeThenCenterCrop { short } => (whole, centred(short_side(image, short), out)),
            Self::RandomResizedCrop { scale, ratio } => (random_resized(image, scale, ratio, rng), row),
            Self::RandomCrop => random_window(image, out, rng),
            Self::Letterbox { scale_up } => (whole, letterbox(image, out, scale_up)),
        };
        Ok(Geometry { image, crop, target, flip: [false; 2] })
    }
}

/// A length in pixels that is at least 1: the images that the formulas come from fail at 0.
fn pixels(v: f64) -> u32 {
    v.clamp(1.0, u32::MAX.into()) as u32
}

/// The smallest size with the image's aspect that covers `out`: one side is equal, the other one rounded.
fn cover([width, height]: [u32; 2], out: [u32; 2]) -> [u32; 2] {
    let scales = [f64::from(out[0]) / f64::from(width), f64::from(out[1]) / f64::from(height)];
    if scales[0] >= scales[1] {
        [out[0], pixels((f64::from(height) * scales[0]).round_ties_even()).max(out[1])]
    } else {
        [pixels((f64::from(width) * scales[1]).round_ties_even()).max(out[0]), out[1]]
    }
}

/// torchvision's `_compute_resized_output_size`: the short side as asked, the long one rounded down.
fn short_side([width, height]: [u32; 2], short: u32) -> [u32; 2] {
    let long = |a: u32, b: u32| pixels((u64::from(short) * u64::from(b) / u64::from(a)) as f64);
    if width <= height { [short, long(width, height)] } else { [long(height, width), short] }
}

/// torchvision's `center_crop`, whose padding is a target inside the row: half the difference, rounded to the even
/// pixel where it is cut, down where it is padded.
fn centred(size: [u32; 2], out: [u32; 2]) -> Target {
    let start = |size: u32, out: u32| {
        if out > size {
            i64::from((out - size) / 2)
        } else {
            -((f64::from(size - out) / 2.0).round_ties_even() as i64)
        }
    };
    let [x, y] = [start(size[0], out[0]), start(size[1], out[1])];
    Target { x, y, width: size[0], height: size[1] }
}

/// torchvision's `RandomResizedCrop.get_params`: 10 tries, then the largest central crop whose aspect is allowed.
fn random_resized(image: [u32; 2], scale: (f64, f64), ratio: (f64, f64), rng: &mut SampleRng) -> Rect {
    let [width, height] = image.map(f64::from);
    let (log_low, log_high) = (ratio.0.ln(), ratio.1.ln());
    for _ in 0..10 {
        let area = width * height * (scale.0 + (scale.1 - scale.0) * rng.f64());
        let aspect = (log_low + (log_high - log_low) * rng.f64()).exp();
        let w = (area * aspect).sqrt().round_ties_even();
        let h = (area / aspect).sqrt().round_ties_even();
        if (1.0..=width).contains(&w) && (1.0..=height).contains(&h) {
            let y = rng.below((height - h) as u64 + 1) as u32;
            let x = rng.below((width - w) as u64 + 1) as u32;
            return Rect { x, y, width: w as u32, height: h as u32 };
        }
    }
    let aspect = width / height;
    let [w, h] = if aspect < ratio.0 {
        [image[0], pixels((width / ratio.0).round_ties_even()).min(image[1])]
    } else if aspect > ratio.1 {
        [pixels((height * ratio.1).round_ties_even()).min(image[0]), image[1]]
    } else {
        image
    };
    Rect { x: (image[0] - w) / 2, y: (image[1] - h) / 2, width: w, height: h }
}

/// A window of the row's size; along a side where the image is smaller, all of it in the middle of the row.
fn random_window(image: [u32; 2], out: [u32; 2], rng: &mut SampleRng) -> (Rect, Target) {
    let mut side = |image: u32, out: u32| {
        let start = if image > out { rng.below(u64::from(image - out) + 1) as u32 } else { 0 };
        (start, image.min(out), i64::from(out.saturating_sub(image) / 2))
    };
    let (y, height, to_y) = side(image[1], out[1]);
    let (x, width, to_x) = side(image[0], out[0]);
    (Rect { x, y, width, height }, Target { x: to_x, y: to_y, width, height })
}

/// Ultralytics' `LetterBox` (`auto=False`, `center=True`): the size by the smaller ratio, rounded; the padding halved, a
/// half pixel going to the right and the bottom.
fn letterbox(image: [u32; 2], out: [u32; 2], scale_up: bool) -> Target {
    let [width, height] = image.map(f64::from);
    let [to_width, to_height] = out.map(f64::from);
    let ratio = (to_height / height).min(to_width / width);
    let ratio = if scale_up { ratio } else { ratio.min(1.0) };
    let side = |v: f64, most: u32| pixels((v * ratio).round_ties_even()).min(most);
    let [w, h] = [side(width, out[0]), side(height, out[1])];
    let start = |out: u32, side: u32| (f64::from(out - side) / 2.0 - 0.1).round_ties_even() as i64;
    Target { x: start(out[0], w), y: start(out[1], h), width: w, height: h }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    /// What torchvision and Ultralytics' formulas make of many sizes: `tests/data/pillow.py` wrote it.
    fn arithmetic(fit: &str) -> Vec<Vec<i64>> {
        let text = include_str!("../../../tests/data/pillow/cases.json");
        let all: Value = serde_json::from_str(text).unwrap();
        let cases = all["arithmetic"][fit].as_array().unwrap();
        assert!(!cases.is_empty());
        cases
            .iter()
            .map(|case| case.as_array().unwrap().iter().map(|v| v.as_i64().unwrap()).collect())
            .collect()
    }

    fn place(fit: Fit, image: [i64; 2], out: [i64; 2], index: u64) -> Geometry {
        let mut rng = SampleRng::new(1, 0, index);
        fit.place(image.map(|v| v as u32), out.map(|v| v as u32), &mut rng).unwrap()
    }

    #[test]
    fn a_resized_middle_is_torchvisions() {
        for case in arithmetic("resize_then_center_crop") {
            let &[width, height, short, w, h, new_width, new_height, left, top] = &case[..] else {
                panic!("{case:?}")
            };
            let fit = Fit::ResizeThenCenterCrop { short: short as u32 };
            let placed = place(fit, [width, height], [w, h], 0);
            assert_eq!(placed.target(), [-left, -top, new_width, new_height], "{case:?}");
            assert_eq!(placed.crop().map(i64::from), [0, 0, width, height]);
        }
    }

    #[test]
    fn a_letterbox_is_ultralytics() {
        for case in arithmetic("letterbox") {
            let &[width, height, w, h, up, new_width, new_height, left, top] = &case[..] else {
                panic!("{case:?}")
            };
            let placed = place(Fit::Letterbox { scale_up: up == 1 }, [width, height], [w, h], 0);
            assert_eq!(placed.target(), [left, top, new_width, new_height], "{case:?}");
        }
    }

    const DEFAULT: Fit = Fit::RandomResizedCrop { scale: (0.08, 1.0), ratio: (3.0 / 4.0, 4.0 / 3.0) };

    #[test]
    fn where_no_try_fits_the_crop_is_torchvisions_fallback() {
        for case in arithmetic("fallback") {
            let &[width, height, x, y, w, h] = &case[..] else { panic!("{case:?}") };
            let placed = place(DEFAULT, [width, height], [9, 9], 0);
            assert_eq!(placed.crop().map(i64::from), [x, y, w, h], "{case:?}");
        }
    }

    #[test]
    fn random_crops_have_the_areas_aspects_and_places_that_were_asked_for() {
        const N: u64 = 4000;
        let (width, height) = (2000.0, 1500.0);
        let (mut area, mut aspect, mut to_right, mut to_bottom) = (0.0, 0.0, 0.0, 0.0);
        for index in 0..N {
            let crop = place(DEFAULT, [2000, 1500], [9, 9], index).crop().map(f64::from);
            let [x, y, w, h] = crop;
            assert!(x + w <= width && y + h <= height);
            let (part, ratio) = (w * h / width / height, w / h);
            assert!((0.0795..=1.0).contains(&part) && (0.748..1.336).contains(&ratio), "{crop:?}");
            area += part;
            aspect += ratio.ln();
            to_right += (x + 0.5) / (width - w + 1.0);
            to_bottom += (y + 0.5) / (height - h + 1.0);
        }
        // What 4,000 calls of torchvision's get_params give: 0.433 and 0.029, as the largest crops rarely fit.
        let n = N as f64;
        assert!((area / n - 0.433).abs() < 0.015, "{}", area / n);
        assert!((aspect / n - 0.029).abs() < 0.02, "{}", aspect / n);
        assert!((to_right / n - 0.5).abs() < 0.02 && (to_bottom / n - 0.5).abs() < 0.02);
    }

    #[test]
    fn numbers_without_sense_are_refused() {
        let crop = |scale, ratio| Fit::RandomResizedCrop { scale, ratio }.check();
        assert!(crop((0.08, 1.0), (0.75, 1.3)).is_ok());
        for (scale, ratio) in [
            ((1.0, 0.5), (0.75, 1.3)),
            ((0.0, 1.0), (0.75, 1.3)),
            ((0.1, 1.5), (0.75, 1.3)),
            ((0.1, 1.0), (1.3, 0.75)),
            ((0.1, 1.0), (0.0, 0.75)),
            ((f64::NAN, 1.0), (0.5, 0.75)),
            ((0.1, 1.0), (0.5, f64::INFINITY)),
        ] {
            assert_eq!(
                crop(scale, ratio).unwrap_err().kind(),
                ErrorKind::InvalidConfig,
                "{scale:?} {ratio:?}"
            );
        }
        assert!(Fit::ResizeThenCenterCrop { short: 0 }.check().is_err());
        let long = Fit::Stretch.place([LONGEST + 1, 1], [9, 9], &mut SampleRng::new(0, 0, 0));
        assert_eq!(long.unwrap_err().kind(), ErrorKind::LimitExceeded);
    }
}

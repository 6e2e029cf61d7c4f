//! Handwritten digits of the UCI collection "Optical Recognition of Handwritten Digits".

use std::array;

use smartcore::dataset::digits::load_dataset;
use warpfeed::SampleRng;

/// Width and height of an image.
pub(crate) const SIDE: usize = 8;
/// Pixels of an image.
pub(crate) const PIXELS: usize = SIDE * SIDE;
/// The darkest ink; paper is 0.
pub(crate) const INK: u8 = 16;

/// A scanned digit and what its writer meant.
#[derive(Debug, Clone)]
pub(crate) struct Digit {
    /// Ink from 0 to [`INK`], row by row.
    pub(crate) image: [u8; PIXELS],
    /// 0 to 9.
    pub(crate) label: u8,
}

/// All 1,797 digits, which are compiled into the program.
pub(crate) fn load() -> Vec<Digit> {
    let set = load_dataset();
    let images = set.data.chunks_exact(PIXELS).map(|image| array::from_fn(|p| image[p] as u8));
    images.zip(&set.target).map(|(image, &label)| Digit { image, label: label as u8 }).collect()
}

/// Deals the labels out anew (Fisher and Yates), so that there is nothing left to learn.
pub(crate) fn shuffle_labels(digits: &mut [Digit], seed: u64) {
    let mut rng = SampleRng::new(seed, 0, 0);
    for k in (1..digits.len()).rev() {
        let other = rng.below(k as u64 + 1) as usize;
        (digits[k].label, digits[other].label) = (digits[other].label, digits[k].label);
    }
}

impl Digit {
    /// The image, a little shifted and turned, darker or lighter, and with noise: what another scan of
    /// the same hand might look like.
    pub(crate) fn augmented(&self, rng: &mut SampleRng) -> [u8; PIXELS] {
        const CENTRE: f32 = (SIDE as f32 - 1.0) / 2.0;
        let (sin, cos) = rng.uniform(-0.2, 0.2).sin_cos();
        let shift = [rng.uniform(-0.5, 0.5), rng.uniform(-0.5, 0.5)];
        let gain = rng.uniform(0.85, 1.15);
        array::from_fn(|p| {
            let (x, y) = ((p % SIDE) as f32 - CENTRE, (p / SIDE) as f32 - CENTRE);
            let ink =
                self.ink_at(cos * x - sin * y + shift[0] + CENTRE, sin * x + cos * y + shift[1] + CENTRE);
            (gain * ink + rng.uniform(-0.5, 0.5)).round().clamp(0.0, f32::from(INK)) as u8
        })
    }

    /// The ink between pixels, bilinear; outside of the image there is none.
    fn ink_at(&self, x: f32, y: f32) -> f32 {
        let (left, top) = (x.floor(), y.floor());
        let (right, down) = (x - left, y - top);
        let ink = |dx: f32, dy: f32| {
            let (x, y) = (left + dx, top + dy);
            let inside = 0.0..SIDE as f32;
            if inside.contains(&x) && inside.contains(&y) {
                f32::from(self.image[y as usize * SIDE + x as usize])
            } else {
                0.0
            }
        };
        let row = |dy| (1.0 - right) * ink(0.0, dy) + right * ink(1.0, dy);
        (1.0 - down) * row(0.0) + down * row(1.0)
    }
}

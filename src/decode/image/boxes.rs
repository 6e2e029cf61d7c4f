//! Boxes that follow their image into the row.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::geometry::Geometry;
use crate::source::{LabelBox, Unit};

/// The four numbers of a box in the field `boxes`, after its class.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum BoxFormat {
    /// The centre's x and y, width and height, as fractions of the row's width and height: YOLO's.
    #[default]
    Center,
    /// Left, top, right and bottom in pixels of the row.
    Corners,
}

/// Which boxes are kept, and how they are written.
#[derive(Debug, Clone, Copy)]
pub(super) struct BoxRules {
    pub(super) format: BoxFormat,
    /// Width and height in pixels of the row.
    pub(super) min_size: f32,
    /// Of the area that lies in the image.
    pub(super) min_visibility: f32,
}

/// What became of the boxes of one image.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct BoxTally {
    pub(super) kept: u64,
    pub(super) clipped: u64,
    pub(super) dropped: u64,
}

/// Numbers of the values of one box: the class and the four of its [`BoxFormat`].
pub(super) const VALUES: usize = 5;

impl BoxRules {
    /// Writes the boxes that are kept into `out`, [`VALUES`] each, for a row of this width and height.
    pub(super) fn apply(
        &self,
        boxes: &[LabelBox],
        unit: Unit,
        geometry: &Geometry,
        size: [u32; 2],
        out: &mut Vec<f32>,
    ) -> BoxTally {
        let mut tally = BoxTally::default();
        out.clear();
        let [width, height] = size.map(f64::from);
        let image = geometry.image.map(f64::from);
        let seen = geometry.visible(size).map(|v| v as f64);
        for label in boxes {
            let [x0, y0, x1, y1] = label.corners.map(f64::from);
            let [sx, sy] = if unit == Unit::Fractions { image } else { [1.0, 1.0] };
            let inside = clip([x0 * sx, y0 * sy, x1 * sx, y1 * sy], [0.0, 0.0, image[0], image[1]]);
            let whole = inside.map(|corners| geometry.forward_f64(corners));
            let Some((whole, kept)) = whole.and_then(|whole| Some((whole, clip(whole, seen)?))) else {
                tally.dropped += 1;
                continue;
            };
            let [x0, y0, x1, y1] = kept;
            let (w, h) = (x1 - x0, y1 - y0);
            let small = w < self.min_size.into() || h < self.min_size.into();
            if small || w * h < f64::from(self.min_visibility) * area(whole) {
                tally.dropped += 1;
                continue;
            }
            tally.kept += 1;
            tally.clipped += u64::from(kept != whole);
            let values = match self.format {
                BoxFormat::Corners => kept,
                BoxFormat::Center => {
                    [(x0 + x1) / 2.0 / width, (y0 + y1) / 2.0 / height, w / width, h / height]
                }
            };
            out.push(label.class as f32);
            out.extend(values.map(|v| v as f32));
        }
        tally
    }
}

/// The part of a box inside of another one; `None` where there is none, or where a corner is no number.
fn clip([x0, y0, x1, y1]: [f64; 4], bounds: [f64; 4]) -> Option<[f64; 4]> {
    let inside = [x0.max(bounds[0]), y0.max(bounds[1]), x1.min(bounds[2]), y1.min(bounds[3])];
    let numbers = [x0, y0, x1, y1].iter().all(|v| !v.is_nan());
    (numbers && inside[0] < inside[2] && inside[1] < inside[3]).then_some(inside)
}

fn area([x0, y0, x1, y1]: [f64; 4]) -> f64 {
    (x1 - x0) * (y1 - y0)
}

/// What an [`Image`](super::Image) has come across so far, in all samples that it decoded, whether or not they were delivered. A
/// handle: clones share the counts.
#[derive(Debug, Clone, Default)]
pub struct ImageCounts(Arc<Counters>);

#[derive(Debug, Default)]
struct Counters {
    kept: AtomicU64,
    clipped: AtomicU64,
    dropped: AtomicU64,
    partial: AtomicU64,
}

impl ImageCounts {
    /// Boxes that were delivered, whole or clipped.
    pub fn boxes_kept(&self) -> u64 {
        self.0.kept.load(Relaxed)
    }

    /// Boxes that were delivered and of which a part was cut off by the edge of the row.
    pub fn boxes_clipped(&self) -> u64 {
        self.0.clipped.load(Relaxed)
    }

    /// Boxes that were not delivered: outside of the row, too small, or of which too little was visible.
    pub fn boxes_dropped(&self) -> u64 {
        self.0.dropped.load(Relaxed)
    }

    /// Files that ended early and whose pixels were delivered as far as they went.
    pub fn partial(&self) -> u64 {
        self.0.partial.load(Relaxed)
    }

    /// Relaxed: each count stands by itself.
    pub(super) fn add(&self, tally: BoxTally, partial: bool) {
        for (to, n) in [
            (&self.0.kept, tally.kept),
            (&self.0.clipped, tally.clipped),
            (&self.0.dropped, tally.dropped),
            (&self.0.partial, u64::from(partial)),
        ] {
            if n > 0 {
                to.fetch_add(n, Relaxed);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::fit::Fit;
    use super::*;
    use crate::random::SampleRng;

    fn fit() -> impl Strategy<Value = Fit> {
        prop_oneof![
            Just(Fit::Cover),
            Just(Fit::Stretch),
            Just(Fit::RandomCrop),
            any::<bool>().prop_map(|scale_up| Fit::Letterbox { scale_up }),
            (1u32..300).prop_map(|short| Fit::ResizeThenCenterCrop { short }),
            Just(Fit::RandomResizedCrop { scale: (0.01, 1.0), ratio: (0.2, 5.0) }),
        ]
    }

    proptest! {
        #[test]
        fn what_is_kept_lies_in_the_row_and_nothing_is_lost_uncounted(
            fit in fit(),
            image in [1u32..2000, 1u32..2000],
            size in [1u32..300, 1u32..300],
            corners in proptest::collection::vec(any::<[i16; 4]>(), 0..20),
            flip in any::<[bool; 2]>(),
            min_visibility in 0f32..1.0,
            min_size in 0f32..20.0,
            seed in any::<u64>(),
        ) {
            let mut rng = SampleRng::new(seed, 0, 0);
            let geometry = fit.place(image, size, &mut rng).unwrap().flipped(flip, size);
            // From a tenth before the image to a tenth behind it.
            let at = |v: i16| (f32::from(v) / 65536.0 + 0.5) * 1.2 - 0.1;
            let labels: Vec<LabelBox> =
                corners.iter().map(|c| LabelBox { class: 3, corners: c.map(at) }).collect();
            let rules = BoxRules { format: BoxFormat::Corners, min_size, min_visibility };
            let (mut out, mut centres) = (Vec::new(), Vec::new());
            let tally = rules.apply(&labels, Unit::Fractions, &geometry, size, &mut out);
            prop_assert_eq!(tally.kept + tally.dropped, labels.len() as u64);
            prop_assert_eq!(tally.kept as usize * VALUES, out.len());
            prop_assert!(tally.clipped <= tally.kept);
            let [width, height] = size.map(|v| v as f32);
            for kept in out.chunks_exact(VALUES) {
                let &[class, x0, y0, x1, y1] = kept else { unreachable!() };
                prop_assert_eq!(class, 3.0);
                prop_assert!(0.0 <= x0 && x0 <= x1 && x1 <= width, "{:?}", kept);
                prop_assert!(0.0 <= y0 && y0 <= y1 && y1 <= height, "{:?}", kept);
                prop_assert!(x1 - x0 >= min_size - 1e-3 && y1 - y0 >= min_size - 1e-3);
            }
            let rules = BoxRules { format: BoxFormat::Center, ..rules };
            prop_assert_eq!(rules.apply(&labels, Unit::Fractions, &geometry, size, &mut centres), tally);
            for (corners, centre) in out.chunks_exact(VALUES).zip(centres.chunks_exact(VALUES)) {
                let &[_, cx, cy, w, h] = centre else { unreachable!() };
                let back = [cx - w / 2.0, cy - h / 2.0, cx + w / 2.0, cy + h / 2.0];
                let sizes = [width, height, width, height];
                for k in 0..4 {
                    prop_assert!((back[k] * sizes[k] - corners[k + 1]).abs() < 1e-2);
                }
            }
        }

        /// The share of a box that is visible, counted in pixels of the image, is what is compared with the bound.
        #[test]
        fn a_box_is_kept_where_enough_of_it_is_visible(
            x in 0u32..90,
            y in 0u32..90,
            w in 1u32..10,
            h in 1u32..10,
            crop in [0u32..50, 0u32..50],
            bound in 1u32..10,
        ) {
            // A window of 50 × 50 of an image of 100 × 100, not resized.
            let rect = super::super::codec::Rect { x: crop[0], y: crop[1], width: 50, height: 50 };
            let target = super::super::geometry::Target { x: 0, y: 0, width: 50, height: 50 };
            let geometry = Geometry { image: [100, 100], crop: rect, target, flip: [false; 2] };
            let seen = (x..x + w).filter(|v| (crop[0]..crop[0] + 50).contains(v)).count()
                * (y..y + h).filter(|v| (crop[1]..crop[1] + 50).contains(v)).count();
            let (seen, all) = (seen as u32, w * h);
            prop_assume!(seen * 10 != all * bound); // at the bound rounding decides
            let min_visibility = bound as f32 / 10.0;
            let rules = BoxRules { format: BoxFormat::Corners, min_size: 0.0, min_visibility };
            let label = LabelBox { class: 0, corners: [x, y, x + w, y + h].map(|v| v as f32) };
            let tally = rules.apply(&[label], Unit::Pixels, &geometry, [50, 50], &mut Vec::new());
            prop_assert_eq!(tally.kept == 1, seen * 10 > all * bound);
            prop_assert_eq!(tally.clipped == 1, tally.kept == 1 && seen < all);
        }
    }
}

//! Boxes through each fit.

use proptest::prelude::*;
use warpfeed::decode::{BoxFormat, Geometry, Image};
use warpfeed::source::{self, LabelBox, Labels, Picture, PictureRecord, Unit};

use super::{Delivered, MINUTE, Pixels, deliver};
use crate::support::within;

/// An image file with boxes.
#[derive(Clone)]
struct Labelled {
    bytes: Vec<u8>,
    boxes: Vec<LabelBox>,
    unit: Unit,
}

impl PictureRecord for Labelled {
    const LABELS: Labels = Labels::Boxes { most: 8 };

    fn picture(&self) -> warpfeed::Result<Picture<'_>> {
        Ok(Picture { bytes: &self.bytes, boxes: &self.boxes, unit: self.unit, ..Picture::default() })
    }
}

/// Black, with a white rectangle: left, top, right, bottom.
fn painted(width: usize, height: usize, [x0, y0, x1, y1]: [usize; 4]) -> Labelled {
    let mut rgb = vec![0; width * height * 3];
    for y in y0..y1 {
        rgb[(y * width + x0) * 3..(y * width + x1) * 3].fill(255);
    }
    let boxes = vec![LabelBox { class: 7, corners: [x0, y0, x1, y1].map(|v| v as f32) }];
    Labelled { bytes: Pixels { width, height, rgb }.bmp(), boxes, unit: Unit::Pixels }
}

/// Left, top, right, bottom of what is bright.
fn bright(row: &Delivered, width: usize) -> Option<[usize; 4]> {
    let lit = (0..row.image.len() / 3).filter(|&k| row.image[k * 3] > 127);
    lit.map(|k| (k % width, k / width)).fold(None, |all, (x, y)| {
        let [x0, y0, x1, y1] = all.unwrap_or([x, y, x + 1, y + 1]);
        Some([x0.min(x), y0.min(y), x1.max(x + 1), y1.max(y + 1)])
    })
}

fn fits(height: usize, width: usize) -> Vec<Image> {
    let image =
        || Image::rgb8(height, width).boxes_as(BoxFormat::Corners).min_box_size(0.0).min_visibility(0.0);
    vec![
        image(),
        image().stretch(),
        image().letterbox().fill(0),
        image().letterbox().scale_up(false).fill(0),
        image().resize_then_center_crop(50),
        image().resize_then_center_crop(30),
        image().random_crop(),
        image().random_resized_crop((0.2, 1.0), Image::RATIO),
    ]
}

#[test]
fn a_box_lies_where_what_it_encloses_is_seen() {
    within(MINUTE, || {
        let mut cut = 0;
        for (width, height) in [(100, 80), (61, 97), (35, 30)] {
            for rectangle in [[5, 6, 30, 25], [10, 3, 12 + width / 3, 28], [0, 0, width, height]] {
                for fit in fits(40, 52) {
                    for flip in [[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.5, 0.5]] {
                        let image = fit.clone().flip(flip[0]).vertical_flip(flip[1]);
                        let what = format!("{image:?} of {width}x{height} with {rectangle:?}");
                        let counts = image.counts(); // those of all clones of the fit
                        let before = counts.boxes_kept() + counts.boxes_dropped();
                        let source = source::from_vec(vec![painted(width, height, rectangle); 5]);
                        let rows = deliver(source, image, 1);
                        for row in &rows {
                            let seen = bright(row, 52);
                            let geometry = Geometry::from_row(&row.geometry).unwrap();
                            let Some(found) = row.boxes.get(..5) else {
                                // At most a sliver of it is in the row.
                                assert!(seen.is_none_or(|b| b[2] - b[0] <= 1 || b[3] - b[1] <= 1), "{what}");
                                continue;
                            };
                            assert_eq!((row.boxes.len(), found[0]), (5, 7.0));
                            for (k, bound) in [52.0, 40.0, 52.0, 40.0].into_iter().enumerate() {
                                assert!((0.0..=bound).contains(&found[k + 1]), "{what}: {found:?}");
                            }
                            let Some(seen) = seen else {
                                let (w, h) = (found[3] - found[1], found[4] - found[2]);
                                assert!(w <= 1.5 || h <= 1.5, "{what}: {found:?} and nothing there");
                                continue;
                            };
                            for k in 0..4 {
                                let apart = (found[k + 1] - seen[k] as f32).abs();
                                assert!(apart <= 1.0, "{what}: {found:?} for {seen:?}");
                            }
                            let back = geometry.invert_clipped(found[1..].try_into().unwrap());
                            let whole = geometry.forward_box(rectangle.map(|v| v as f32));
                            if whole == found[1..] {
                                for k in 0..4 {
                                    assert!((back[k] - rectangle[k] as f32).abs() < 1e-3, "{what}: {back:?}");
                                }
                            } else {
                                cut += 1;
                            }
                        }
                        assert_eq!(counts.boxes_kept() + counts.boxes_dropped() - before, 5, "{what}");
                        assert!(counts.boxes_clipped() <= counts.boxes_kept());
                    }
                }
            }
        }
        assert!(cut > 200, "{cut} boxes were clipped");
    });
}

#[test]
fn fractions_and_pixels_corners_and_centres_say_the_same() {
    within(MINUTE, || {
        let record = painted(80, 40, [8, 4, 40, 24]);
        let corners = record.boxes[0].corners;
        let fractions = [corners[0] / 80.0, corners[1] / 40.0, corners[2] / 80.0, corners[3] / 40.0];
        let as_fractions = Labelled {
            boxes: vec![LabelBox { class: 7, corners: fractions }],
            unit: Unit::Fractions,
            ..record.clone()
        };
        let source = || source::from_vec(vec![record.clone(), as_fractions.clone()]);
        let image = Image::rgb8(64, 64).letterbox();
        let corners = deliver(source(), image.clone().boxes_as(BoxFormat::Corners), 0);
        let centres = deliver(source(), image, 0);
        // 80 × 40 in 64 × 64: 4/5 of the size, 16 rows above.
        assert_eq!(corners[0].boxes, [7.0, 6.4, 19.2, 32.0, 35.2]);
        assert_eq!(centres[0].boxes, [7.0, 0.3, 0.425, 0.4, 0.25]);
        for rows in [corners, centres] {
            for (a, b) in rows[0].boxes.iter().zip(&rows[1].boxes) {
                assert!((a - b).abs() < 1e-4, "{rows:?}");
            }
        }
    });
}

#[test]
fn small_hidden_and_senseless_boxes_are_dropped_and_counted_and_the_image_stays() {
    within(MINUTE, || {
        let of = |corners| LabelBox { class: 1, corners };
        let mut record = painted(100, 100, [0, 0, 10, 10]);
        record.boxes = vec![
            of([40.0, 40.0, 60.0, 60.0]),            // whole
            of([10.0, 10.0, 30.0, 30.0]),            // 5 of 20 columns and rows: 1/16
            of([10.0, 40.0, 30.0, 60.0]),            // 5 of 20 columns: 1/4, clipped
            of([50.0, 50.0, 51.5, 80.0]),            // 1.5 wide
            of([0.0, 0.0, 20.0, 20.0]),              // outside
            of([f32::NAN, 40.0, 60.0, 60.0]),        // no number
            of([60.0, 60.0, 40.0, 40.0]),            // from right to left
            of([-1e30, -1e30, f32::INFINITY, 1e30]), // the whole image: 1/4 of it is visible, clipped
        ];
        let background = Labelled { boxes: Vec::new(), ..record.clone() };
        let image = Image::rgb8(50, 50).resize_then_center_crop(100).boxes_as(BoxFormat::Corners);
        let (counts, loose) = (image.counts(), image.clone().min_box_size(0.0).min_visibility(0.0));
        let rows = deliver(source::from_vec(vec![record.clone(), background]), image, 1);
        let expected: [&[f32]; 3] =
            [&[1., 15., 15., 35., 35.], &[1., 0., 15., 5., 35.], &[1., 0., 0., 50., 50.]];
        assert_eq!(rows[0].boxes, expected.concat());
        assert_eq!(rows[1].boxes, [0.0; 0]);
        assert_eq!(rows[0].image, rows[1].image);
        assert_eq!((counts.boxes_kept(), counts.boxes_clipped(), counts.boxes_dropped()), (3, 2, 5));

        let rows = deliver(source::from_vec(vec![record]), loose, 0);
        assert_eq!(rows[0].boxes.len(), 5 * 5, "the hidden one and the narrow one too");
        assert_eq!(counts.boxes_dropped(), 5 + 3, "a clone shares the counts");
    });
}

fn geometry() -> impl Strategy<Value = Geometry> {
    let side = 1u32..5000;
    let image = (side.clone(), side.clone());
    (image, any::<[u32; 4]>(), -3000i32..3000, -3000i32..3000, (side.clone(), side), 0u8..4).prop_map(
        |((width, height), cut, x, y, (w, h), flip)| {
            let (left, top) = (cut[0] % width, cut[1] % height);
            let (cw, ch) = (1 + cut[2] % (width - left), 1 + cut[3] % (height - top));
            let row = [width, height, left, top, cw, ch].map(|v| v as f32);
            let row: Vec<f32> =
                row.into_iter().chain([x as f32, y as f32, w as f32, h as f32, flip.into()]).collect();
            Geometry::from_row(&row).unwrap()
        },
    )
}

proptest! {
    #[test]
    fn a_row_of_a_geometry_is_the_geometry(geometry in geometry()) {
        prop_assert_eq!(Geometry::from_row(&geometry.to_row()).unwrap(), geometry);
    }

    /// Up to what an f32 holds of a coordinate of some thousand pixels, and the scale.
    #[test]
    fn there_and_back_is_the_same(geometry in geometry(), u in 0f32..1.0, v in 0f32..1.0) {
        let [x, y, w, h] = geometry.crop().map(|v| v as f32);
        let point = [x + u * w, y + v * h];
        let there = geometry.forward(point);
        let back = geometry.invert(there);
        let [tx, ty, tw, th] = geometry.target().map(|v| v as f32);
        let slack = |crop: f32, at: f32, target: f32| {
            1e-3 + 2.0 * f32::EPSILON * (crop + (at.abs() + target) * crop / target)
        };
        prop_assert!((back[0] - point[0]).abs() <= slack(x + w, tx, tw), "{:?} {:?}", back, point);
        prop_assert!((back[1] - point[1]).abs() <= slack(y + h, ty, th), "{:?} {:?}", back, point);
        prop_assert!(there[0] >= tx - 1e-2 && there[0] <= tx + tw + 1e-2);
        prop_assert!(there[1] >= ty - 1e-2 && there[1] <= ty + th + 1e-2);
    }

    #[test]
    fn a_box_stays_a_box_and_keeps_its_share_of_the_area(geometry in geometry(), a in any::<[u16; 4]>()) {
        let [x, y, w, h] = geometry.crop().map(|v| v as f64);
        let at = |k: usize| f64::from(a[k]) / 65536.0;
        let corners = [x + at(0).min(at(2)) * w, y + at(1).min(at(3)) * h, x + at(0).max(at(2)) * w, y + at(1).max(at(3)) * h];
        let there = geometry.forward_box(corners.map(|v| v as f32));
        prop_assert!(there[0] <= there[2] && there[1] <= there[3]);
        let share = |b: [f64; 4], [w, h]: [f64; 2]| (b[2] - b[0]) * (b[3] - b[1]) / w / h;
        let [_, _, tw, th] = geometry.target().map(|v| v as f64);
        let (before, after) = (share(corners, [w, h]), share(there.map(f64::from), [tw, th]));
        // An f32 of some thousand pixels is off by up to 1/2,000 of a pixel at each edge.
        let slack = 2e-3 / tw.min(w) + 2e-3 / th.min(h);
        prop_assert!((before - after).abs() <= slack, "{} {}", before, after);
    }
}

#[test]
fn a_hole_has_no_geometry() {
    for bad in
        [&[0f32; 11][..], &[1.0; 10], &[f32::NAN; 11], &[10., 10., 5., 0., 6., 10., 0., 0., 4., 4., 0.]]
    {
        assert!(Geometry::from_row(bad).is_err(), "{bad:?}");
    }
}

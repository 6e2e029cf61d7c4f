//! What was found in a detection set.

use std::collections::BTreeMap;
use std::fmt;

/// What was found in a detection set when it was opened, and what became of it. Every row that a label file or a list of annotations has is
/// counted once: as a box, or as dropped for one reason. Of an image that is an error when read only the malformed rows are.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DetectionCounts {
    /// The samples.
    pub images: u64,
    /// The boxes of all samples.
    pub boxes: u64,
    /// Images that have no label file; in COCO, no annotation. They are background.
    pub missing_labels: u64,
    /// Images whose label file has no row. They are background.
    pub empty_labels: u64,
    /// Images that had rows, all of which were dropped. They are background now.
    pub emptied: u64,
    /// Malformed rows; what became of them says [`OnBadLabel`](super::OnBadLabel).
    pub bad_rows: u64,
    /// Images that are errors when read, for a malformed row.
    pub bad_images: u64,
    /// Dropped: width or height is 0.
    pub no_area: u64,
    /// Dropped: wholly outside the image.
    pub outside: u64,
    /// Dropped: a region of many objects (COCO's `iscrowd`).
    pub crowd: u64,
    /// Dropped: the same class and box again in the same image.
    pub duplicates: u64,
    /// Boxes that stuck out of the image by more than rounding (1/1000 of its width or height), and were cut at its edge.
    pub clipped: u64,
    /// Boxes that stuck out by no more than that, and were cut at the edge too.
    pub rounded: u64,
    /// Polygons, of which the bounding box was taken.
    pub polygons: u64,
    /// Label files without an image.
    pub orphans: u64,
    /// Files among the images that are neither an image of a format that is read nor a label.
    pub other_files: u64,
    /// The boxes of each class that has any.
    pub per_class: BTreeMap<u32, u64>,
}

impl DetectionCounts {
    /// Images without a box, for whatever reason.
    pub fn background(&self) -> u64 {
        self.missing_labels + self.empty_labels + self.emptied
    }

    /// Rows that did not become boxes.
    pub fn dropped(&self) -> u64 {
        self.bad_rows + self.no_area + self.outside + self.crowd + self.duplicates
    }

    pub(super) fn add(&mut self, other: &Self) {
        macro_rules! sum { ($($f:ident),*) => { $( self.$f += other.$f; )* } }
        sum!(images, boxes, missing_labels, empty_labels, emptied, bad_rows, bad_images, no_area, outside);
        sum!(crowd, duplicates, clipped, rounded, polygons, orphans, other_files);
        for (class, boxes) in &other.per_class {
            *self.per_class.entry(*class).or_default() += boxes;
        }
    }
}

/// In a few lines; counts of 0 are left out.
impl fmt::Display for DetectionCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let line = |f: &mut fmt::Formatter<'_>, title: &str, parts: &[(u64, &str)]| {
            let parts = parts.iter().filter(|(n, _)| *n > 0);
            let parts: Vec<String> = parts.map(|(n, what)| format!("{n} {what}")).collect();
            if parts.is_empty() { Ok(()) } else { write!(f, "\n{title}: {}", parts.join(", ")) }
        };
        write!(f, "{} images, {} boxes", self.images, self.boxes)?;
        if let (Some((few, n)), Some((many, m))) = (
            self.per_class.iter().min_by_key(|(_, n)| **n),
            self.per_class.iter().rev().max_by_key(|(_, n)| **n),
        ) {
            let classes = self.per_class.len();
            write!(f, " of {classes} classes (from {n} of class {few} to {m} of class {many})")?;
        }
        line(
            f,
            "background",
            &[
                (self.missing_labels, "images without labels"),
                (self.empty_labels, "with an empty label file"),
                (self.emptied, "whose rows were all dropped"),
            ],
        )?;
        let bad = (self.bad_rows, "malformed");
        line(
            f,
            "dropped rows",
            &[
                bad,
                (self.no_area, "without area"),
                (self.outside, "outside the image"),
                (self.crowd, "crowds"),
                (self.duplicates, "duplicates"),
            ],
        )?;
        line(
            f,
            "changed boxes",
            &[
                (self.clipped, "cut at the image's edge"),
                (self.rounded, "cut there by rounding"),
                (self.polygons, "made from polygons"),
            ],
        )?;
        line(
            f,
            "beside them",
            &[
                (self.bad_images, "images that are errors when read"),
                (self.orphans, "label files without an image"),
                (self.other_files, "files that are no image"),
            ],
        )
    }
}

/// How far a box may stick out of its image by rounding, as a fraction of the image's width or height.
pub(super) const ROUNDING: f64 = 1e-3;

/// Takes the box with these corners into an image of `size`, infinite where that is not known. `None` where nothing is left of it.
pub(super) fn fit(corners: [f64; 4], size: [f64; 2], counts: &mut DetectionCounts) -> Option<[f32; 4]> {
    let has_area = |left: f64, top: f64, right: f64, bottom: f64| right > left && bottom > top;
    let [left, top, right, bottom] = corners;
    if !has_area(left, top, right, bottom) {
        counts.no_area += 1;
        return None;
    }
    let [width, height] = size;
    let kept =
        [left.clamp(0.0, width), top.clamp(0.0, height), right.clamp(0.0, width), bottom.clamp(0.0, height)];
    if !has_area(kept[0], kept[1], kept[2], kept[3]) {
        counts.outside += 1;
        return None;
    }
    let narrow = kept.map(|x| x as f32 + 0.0); // + 0 makes 0 of -0
    let [a, b, c, d] = narrow;
    if !(c > a && d > b) {
        counts.no_area += 1; // narrower than f32 can tell
        return None;
    }
    let sides = [width, height, width, height].map(|s| if s.is_finite() { s } else { 1.0 });
    let out = corners.iter().zip(kept).zip(sides).map(|((x, kept), side)| (x - kept).abs() / side);
    let out = out.fold(0.0, f64::max);
    if out > ROUNDING {
        counts.clipped += 1;
    } else if out > 0.0 {
        counts.rounded += 1;
    }
    Some(narrow)
}

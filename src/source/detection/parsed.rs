//! A set whose labels have been read.

use std::path::PathBuf;

use rayon::prelude::*;

use super::counts::DetectionCounts;
use super::yolo::KEPT;
use super::{BadLabel, Detection, Found, OnBadLabel, at, label_files};
use crate::error::{Error, ErrorKind, Result};
use crate::random::{key, key_of_bytes};
use crate::source::path_list::PathList;
use crate::source::whole_files::WholeFiles;
use crate::source::{LabelBox, Unit};

/// What was read of a set, before the policy.
pub(super) struct Parsed {
    pub(super) found: String,
    pub(super) root: PathBuf,
    pub(super) paths: Vec<PathBuf>,
    /// What the labels say of the images' widths and heights; none of YOLO's do.
    pub(super) sizes: Vec<[u32; 2]>,
    pub(super) unit: Unit,
    pub(super) labels: Vec<Found>,
    pub(super) firsts: Vec<u64>,
    pub(super) boxes: Vec<LabelBox>,
    pub(super) counts: DetectionCounts,
    pub(super) bad: Vec<BadLabel>,
    pub(super) bad_images: Vec<(u64, BadLabel)>,
    pub(super) names: Vec<String>,
    pub(super) classes: Option<u32>,
    pub(super) category_ids: Vec<i64>,
}

impl Parsed {
    /// What is the same for all sets.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidLabel`] by the policy; [`ErrorKind::Io`] where files are to be looked for and are not there.
    pub(super) fn finish(self, policy: OnBadLabel, look: bool) -> Result<Detection> {
        let mut set = self;
        match policy {
            OnBadLabel::Fail if set.counts.bad_rows > 0 => return Err(refused(&set)),
            OnBadLabel::Fail | OnBadLabel::DropRow => set.bad_images.clear(),
            OnBadLabel::FailSample => set.forget_bad_images(),
        }
        if look {
            check_files(&set)?;
        }
        set.count();
        let mut list = PathList::default();
        set.paths.iter().for_each(|path| list.push(path));
        set.boxes.shrink_to_fit();
        Ok(Detection {
            fingerprint: set.fingerprint(),
            most: set.lens().max().unwrap_or(0),
            files: WholeFiles::new(set.root, list),
            sizes: set.sizes.into(),
            firsts: set.firsts,
            boxes: set.boxes,
            unit: set.unit,
            bad_images: set.bad_images.into_iter().collect(),
            counts: set.counts,
            bad: set.bad.into(),
            found: set.found,
            names: set.names.into(),
            classes: set.classes,
            category_ids: set.category_ids.into(),
        })
    }

    /// How many boxes each image has.
    fn lens(&self) -> impl Iterator<Item = usize> {
        self.firsts.windows(2).map(|pair| (pair[1] - pair[0]) as usize)
    }

    /// An image that is an error has no boxes.
    fn forget_bad_images(&mut self) {
        let mut bad = self.bad_images.iter().map(|(image, _)| *image as usize).peekable();
        let (mut from, mut to) = (0, 0);
        for image in 0..self.paths.len() {
            let end = self.firsts[image + 1] as usize;
            if bad.next_if_eq(&image).is_none() {
                self.boxes.copy_within(from..end, to);
                to += end - from;
            }
            from = end;
            self.firsts[image + 1] = to as u64;
        }
        self.boxes.truncate(to);
    }

    fn count(&mut self) {
        let mut bad = self.bad_images.iter().map(|(image, _)| *image as usize).peekable();
        let counts = &mut self.counts;
        for (image, (pair, found)) in self.firsts.windows(2).zip(&self.labels).enumerate() {
            if bad.next_if_eq(&image).is_some() {
                counts.bad_images += 1;
                continue;
            }
            match found {
                Found::Missing => counts.missing_labels += 1,
                Found::Empty => counts.empty_labels += 1,
                Found::Rows => counts.emptied += u64::from(pair[0] == pair[1]),
            }
        }
        counts.images = self.paths.len() as u64;
        counts.boxes = self.boxes.len() as u64;
        for b in &self.boxes {
            *counts.per_class.entry(b.class).or_default() += 1;
        }
    }

    /// Made of the images' names and their boxes.
    fn fingerprint(&self) -> u64 {
        let start = key(&[u64::from_le_bytes(*b"boxes\0\0\0"), self.unit as u64]);
        let named = self.paths.iter().zip(self.firsts.windows(2)).fold(start, |h, (path, pair)| {
            key(&[h, key_of_bytes(path.as_os_str().as_encoded_bytes()), pair[1]])
        });
        let boxes = self.boxes.iter().fold(named, |h, b| {
            let [left, top, right, bottom] = b.corners.map(|x| u64::from(x.to_bits()));
            key(&[h, u64::from(b.class), left << 32 | top, right << 32 | bottom])
        });
        self.bad_images.iter().fold(boxes, |h, (image, _)| key(&[h, *image]))
    }
}

/// The error of a set with malformed rows.
fn refused(set: &Parsed) -> Error {
    let (n, shown) = (set.counts.bad_rows, set.bad.len());
    let list: Vec<String> = set.bad.iter().map(|bad| format!("\n  {bad}")).collect();
    let text = format!(
        "{n} rows of labels are malformed; the first {shown}:{}\n`on_bad_label` says what else may become of them",
        list.concat()
    );
    let place = set.bad.first().map(|bad| bad.error().place().clone()).unwrap_or_default();
    Error::new(ErrorKind::InvalidLabel, text).at(place)
}

fn check_files(set: &Parsed) -> Result<()> {
    let missing = |path: &PathBuf| Some(set.root.join(path)).filter(|path| !path.is_file());
    let missing: Vec<PathBuf> =
        label_files::pool()?.install(|| set.paths.par_iter().filter_map(missing).collect());
    let Some(first) = missing.first() else { return Ok(()) };
    let list: Vec<String> = missing.iter().take(KEPT).map(|path| format!("\n  {}", path.display())).collect();
    let text = format!("{} of {} images are not there:{}", missing.len(), set.paths.len(), list.concat());
    Err(Error::new(ErrorKind::Io, text).at(at(first)))
}

//! Images with boxes: YOLO label files and COCO annotations.

mod coco;
mod counts;
mod data_yaml;
/// Calls of the parsers, for fuzz targets.
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod label_files;
mod layout;
mod listing;
mod options;
mod parsed;
mod yolo;

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

pub use counts::DetectionCounts;
pub use options::{DetectionOptions, OnBadLabel};

use super::whole_files::WholeFiles;
use super::{Bundle, LabelBox, Labels, Picture, Pictures, Source, Unit, out_of_range};
use crate::error::{Error, ErrorKind, Place, Result};

/// A malformed row.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct BadLabel {
    /// The label file.
    pub path: PathBuf,
    /// Its line, from 1. `None` for an annotation of a JSON file, which the text names.
    pub line: Option<u64>,
    /// What is wrong with it.
    pub text: String,
}

impl fmt::Display for BadLabel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.path.display())?;
        self.line.map_or(Ok(()), |line| write!(f, ":{line}"))?;
        write!(f, ": {}", self.text)
    }
}

impl BadLabel {
    fn error(&self) -> Error {
        let place = Place { path: Some(self.path.clone()), line: self.line, ..Place::default() };
        Error::new(ErrorKind::InvalidLabel, self.text.clone()).at(place)
    }
}

fn at(path: &Path) -> Place {
    Place { path: Some(path.to_path_buf()), ..Place::default() }
}

/// What an image has for labels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Found {
    /// No label file, no annotation.
    Missing,
    /// A label file without a row.
    Empty,
    /// At least one row, whatever became of it.
    Rows,
}

/// A source of images with boxes, from YOLO label files or COCO annotations. All labels are read and checked when the set is opened, and kept in
/// 20 bytes a box; images are read when they are asked for. Its records are [`Bundle`]s: the image's file, and its boxes.
///
/// ```no_run
/// use warpfeed::source::{Detection, OnBadLabel};
/// let set = Detection::open("coco8/data.yaml")?; // a folder, a list of images or COCO's JSON would do as well
/// println!("{}\n{}", set.found(), set.counts());
/// let val = Detection::options().split("val").on_bad_label(OnBadLabel::DropRow).open("coco8/data.yaml")?;
/// let coco = Detection::coco("annotations/instances_val2017.json", "val2017")?;
/// # Ok::<(), warpfeed::Error>(())
/// ```
///
/// A box that sticks out of its image is cut at the edge; one without area or wholly outside is dropped, and so is one that the image has already.
/// All of that is [counted](Detection::counts). An image without boxes is background, and stays.
///
/// The fingerprint is made from the names of the images, relative to the set's folder, and their boxes.
#[derive(Debug)]
pub struct Detection {
    files: WholeFiles,
    /// Width and height of each image as COCO's annotations have them, 0 where they don't; else empty.
    sizes: Box<[[u32; 2]]>,
    /// The boxes of image `i` are `boxes[firsts[i]..firsts[i + 1]]`.
    firsts: Vec<u64>,
    boxes: Vec<LabelBox>,
    unit: Unit,
    most: usize,
    bad_images: BTreeMap<u64, BadLabel>,
    counts: DetectionCounts,
    bad: Box<[BadLabel]>,
    found: String,
    names: Box<[String]>,
    classes: Option<u32>,
    category_ids: Box<[i64]>,
    fingerprint: u64,
}

impl Detection {
    /// Options, to open a set otherwise than by default.
    pub fn options() -> DetectionOptions {
        DetectionOptions::default()
    }

    /// Opens whatever `path` is, and [says](Detection::found) what it found:
    ///
    /// * a `data.yaml`: `path`, `train`, `val`, `test` (folders of images, or text files that list images, or several of them), `names`, `nc`, `kpt_shape`;
    /// * a folder with one, with `images/` and `labels/`, with `train/images/`, or with images and `.txt` files beside them;
    /// * a text file that lists images, a path a line;
    /// * COCO annotations, a JSON file, or a folder with `annotations/instances_train….json`. The images are looked for beside the file, in
    ///   `images/`, and in folders named for the file.
    ///
    /// # Errors
    /// As [`Detection::yolo`] and [`Detection::coco`]; [`ErrorKind::Unsupported`] where it is none of these,
    /// [`ErrorKind::InvalidArgument`] where it does not have the split, [`ErrorKind::Corrupt`] for a `data.yaml` that makes no sense.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Self::options().open(path)
    }

    /// The images in a folder and below it, sorted by path, with the labels that YOLO's tools would take: in the path of an image the last folder
    /// `images` becomes `labels`, and the extension `.txt`. Where there is no such folder the label files lie beside the images. Boxes are in
    /// fractions of the image. Images whose names differ in the extension alone share a label file.
    ///
    /// A row is `class cx cy w h`, or `class x y x y x y …` for a polygon, of which the bounding box is taken. Between
    /// the values are blanks or single commas.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidLabel`] for malformed rows (see [`OnBadLabel`]) and where there is no label file; [`ErrorKind::Empty`] where
    /// there is no image; [`ErrorKind::Io`].
    pub fn yolo(images: impl AsRef<Path>) -> Result<Self> {
        Self::options().yolo(images)
    }

    /// The images that COCO annotations list, in that order, with their boxes in pixels. The classes are the categories in ascending order of their
    /// ids, so that they go from 0 without gaps: [`Detection::category_ids`] is the way back.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] and [`ErrorKind::Truncated`] for what is no JSON, with line and column;
    /// [`ErrorKind::InvalidLabel`] for what is no COCO and for malformed annotations (see [`OnBadLabel`]); [`ErrorKind::DuplicateKey`] where two
    /// images or categories have the same id, or two images the same `file_name`; [`ErrorKind::Empty`], [`ErrorKind::Io`].
    pub fn coco(annotations: impl AsRef<Path>, images: impl AsRef<Path>) -> Result<Self> {
        Self::options().coco(annotations, images)
    }

    /// What was opened, in words.
    pub fn found(&self) -> &str {
        &self.found
    }

    /// What was found, and what became of it.
    pub fn counts(&self) -> &DetectionCounts {
        &self.counts
    }

    /// The first malformed rows, ten at most. [`DetectionCounts::bad_rows`] is how many there are.
    pub fn bad_labels(&self) -> &[BadLabel] {
        &self.bad
    }

    /// The names of the classes, where the set has them; else empty.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// How many classes there are, where that is known.
    pub fn classes(&self) -> Option<u32> {
        self.classes
    }

    /// The id that COCO has for each class; empty for other sets.
    pub fn category_ids(&self) -> &[i64] {
        &self.category_ids
    }

    /// The boxes of image `index`, and what they are measured in. None where there is no such image, and where it
    /// is an error ([`OnBadLabel::FailSample`]).
    pub fn boxes(&self, index: u64) -> (&[LabelBox], Unit) {
        let first = |image: Option<usize>| Some(*self.firsts.get(image?)? as usize);
        let image = usize::try_from(index).ok();
        let range = first(image).zip(first(image.and_then(|i| i.checked_add(1))));
        let boxes = range.and_then(|(start, end)| self.boxes.get(start..end));
        (boxes.unwrap_or_default(), self.unit)
    }

    /// The number of an image's file.
    fn number(&self, index: u64) -> Option<usize> {
        usize::try_from(index).ok().filter(|&number| number < self.files.len())
    }
}

impl Source for Detection {
    type Record = Bundle;
    type Scratch = Bundle;

    fn len(&self) -> Option<u64> {
        Some(self.files.len() as u64)
    }

    fn fingerprint(&self) -> u64 {
        self.fingerprint
    }

    fn describe(&self, index: u64) -> Place {
        Place { path: self.number(index).map(|number| self.files.path(number)), ..Place::of_index(index) }
    }

    fn read<'a>(&'a self, index: u64, scratch: &'a mut Bundle) -> Result<&'a Bundle> {
        let number = self.number(index).ok_or_else(|| out_of_range(index, self.files.len() as u64))?;
        if let Some(bad) = self.bad_images.get(&index) {
            return Err(bad.error().at(Place::of_index(index)));
        }
        let name = self.files.name(number);
        scratch.restart(&name.to_string_lossy());
        let extension = name.extension().unwrap_or_default().to_string_lossy();
        let read = self.files.read(number, |bytes| scratch.add(&extension, bytes));
        read.map_err(|e| e.at(Place::of_index(index)))?;
        let (boxes, unit) = self.boxes(index);
        let declared = self.sizes.get(number).copied().filter(|size| !size.contains(&0));
        scratch.set_boxes(boxes, unit, declared);
        Ok(scratch)
    }

    fn hint(&self, upcoming: &[u64]) {
        self.files.hint(upcoming.iter().filter_map(|&index| self.number(index)));
    }
}

impl Pictures for Detection {
    fn labels(&self) -> Labels {
        Labels::Boxes { most: self.most }
    }

    fn picture<'r>(&self, record: &'r Bundle) -> Result<Picture<'r>> {
        record.picture()
    }
}

#[cfg(test)]
mod tests;

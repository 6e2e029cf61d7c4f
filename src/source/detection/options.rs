//! How a detection set is opened.

use std::io::BufReader;
use std::path::{Path, PathBuf};

use super::data_yaml::DataYaml;
use super::layout::{self, Layout, Yolo};
use super::parsed::Parsed;
use super::yolo::{BadRow, Rules};
use super::{BadLabel, Detection, Found, at, coco, label_files, listing};
use crate::error::{Error, ErrorKind, Result};
use crate::source::{Unit, files};

/// What becomes of malformed rows of labels: values that are no numbers or outside the image, classes that there are not, rows with
/// too few or too many columns; in COCO, annotations of images or categories that there are not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnBadLabel {
    /// The set is not opened. The error lists the first ten by file and line.
    #[default]
    Fail,
    /// The row is dropped and counted. The image and its other rows stay.
    DropRow,
    /// The image is an error when it is read, which the loader handles by its fault policy, and is counted. Annotations of images that
    /// there are not are dropped and counted.
    FailSample,
}

/// How a detection set is opened: see [`Detection::options`].
#[derive(Debug, Clone, Default)]
pub struct DetectionOptions {
    on_bad_label: OnBadLabel,
    classes: Option<u32>,
    split: Option<String>,
    crowd: bool,
    check_files: bool,
    unlabelled: bool,
}

impl DetectionOptions {
    /// What becomes of malformed rows; [`OnBadLabel::Fail`] unless set.
    #[must_use]
    pub fn on_bad_label(mut self, policy: OnBadLabel) -> Self {
        self.on_bad_label = policy;
        self
    }

    /// How many classes YOLO labels may name, where no `data.yaml` or `classes.txt` says it; it overrides what they say.
    #[must_use]
    pub fn classes(mut self, classes: u32) -> Self {
        self.classes = Some(classes);
        self
    }

    /// Which split [`open`](DetectionOptions::open) takes of a set that has several; `train` unless set.
    #[must_use]
    pub fn split(mut self, name: impl Into<String>) -> Self {
        self.split = Some(name.into());
        self
    }

    /// Whether COCO's regions of many objects (`iscrowd`) are boxes too. Unless set they are dropped and counted, as torchvision's
    /// reference training and YOLO's converters do.
    #[must_use]
    pub fn crowd(mut self, keep: bool) -> Self {
        self.crowd = keep;
        self
    }

    /// Whether every image file is looked for when the set is opened, where that is not known anyway (COCO, lists of images). Else one that is
    /// missing is an error when it is read.
    #[must_use]
    pub fn check_files(mut self, check: bool) -> Self {
        self.check_files = check;
        self
    }

    /// Whether a YOLO set may have no label file at all. Unless set that is an error: labels were looked for in the wrong place.
    #[must_use]
    pub fn unlabelled(mut self, allow: bool) -> Self {
        self.unlabelled = allow;
        self
    }

    /// Opens whatever `path` is: see [`Detection::open`].
    ///
    /// # Errors
    /// As [`Detection::open`].
    pub fn open(&self, path: impl AsRef<Path>) -> Result<Detection> {
        let path = absolute(path.as_ref())?;
        match layout::recognise(&path, self.split.as_deref())? {
            Layout::Yolo(set) => self.open_yolo(&set),
            Layout::Coco { annotations, folders } => self.open_coco(&annotations, &folders),
        }
    }

    /// Opens a folder of images with YOLO labels: see [`Detection::yolo`].
    ///
    /// # Errors
    /// As [`Detection::yolo`].
    pub fn yolo(&self, images: impl AsRef<Path>) -> Result<Detection> {
        let root = absolute(images.as_ref())?;
        let found = format!("{} with YOLO labels", root.display());
        self.open_yolo(&Yolo { found, images: vec![root.clone()], root, data: DataYaml::default() })
    }

    /// Opens COCO annotations: see [`Detection::coco`].
    ///
    /// # Errors
    /// As [`Detection::coco`].
    pub fn coco(&self, annotations: impl AsRef<Path>, images: impl AsRef<Path>) -> Result<Detection> {
        self.open_coco(&absolute(annotations.as_ref())?, &[absolute(images.as_ref())?])
    }

    fn open_yolo(&self, set: &Yolo) -> Result<Detection> {
        let images = set.list()?;
        let classes = self.classes.or(set.data.classes);
        let rules = Rules { classes, keypoints: set.data.keypoints };
        let mut labelled = label_files::read(&set.root, &images.paths, &rules)?;
        if !self.unlabelled && labelled.found.iter().all(|found| *found == Found::Missing) {
            let first = set.root.join(images.paths.first().map_or(Path::new(""), |path| path));
            let folder = first.parent().unwrap_or(&set.root);
            let text = format!(
                "none of the {} images has a label file; looked in {} (`unlabelled(true)` allows it)",
                images.paths.len(),
                listing::label_folder(folder).display()
            );
            return Err(Error::new(ErrorKind::InvalidLabel, text).at(at(folder)));
        }
        if let Some(first) = images.orphans.first() {
            let (n, first) = (images.orphans.len(), first.display());
            tracing::warn!("{n} label files are of no image, the first of them {first}");
        }
        labelled.counts.orphans = images.orphans.len() as u64;
        labelled.counts.other_files = images.others;
        let mut firsts = Vec::with_capacity(labelled.lens.len() + 1);
        firsts.push(0);
        firsts.extend(labelled.lens.iter().scan(0, |sum, len| {
            *sum += len;
            Some(*sum)
        }));
        let parsed = Parsed {
            found: set.found.clone(),
            root: set.root.clone(),
            paths: images.paths,
            sizes: Vec::new(),
            unit: Unit::Fractions,
            labels: labelled.found,
            firsts,
            boxes: labelled.boxes,
            counts: labelled.counts,
            bad: labelled.bad,
            bad_images: labelled.bad_images,
            names: set.data.names.clone(),
            classes,
            category_ids: Vec::new(),
        };
        parsed.finish(self.on_bad_label, self.check_files)
    }

    fn open_coco(&self, annotations: &Path, folders: &[PathBuf]) -> Result<Detection> {
        let (file, _) = files::open(annotations)?;
        let coco = coco::parse(BufReader::with_capacity(1 << 20, file), self.crowd)
            .map_err(|e| e.at(at(annotations)))?;
        if coco.names.is_empty() {
            return Err(
                Error::new(ErrorKind::Empty, "there are no images in the annotations").at(at(annotations))
            );
        }
        // What is absolute says nothing of the folder; where all are, any folder will do.
        let relative = |name: &&String| Path::new(name).is_relative();
        let mut sought: Vec<&String> = coco.names.iter().filter(relative).take(10).collect();
        if sought.is_empty() {
            sought.extend(coco.names.iter().take(10));
        }
        let has_images = |folder: &&PathBuf| sought.iter().any(|name| folder.join(name).exists());
        let root = match folders {
            [only] => only,
            all => all.iter().find(has_images).ok_or_else(|| {
                let tried: Vec<String> = all.iter().map(|folder| folder.display().to_string()).collect();
                let text = format!(
                    "the images were not found; looked in {} (`Detection::coco` takes their folder)",
                    tried.join(", ")
                );
                Error::new(ErrorKind::Io, text).at(at(annotations))
            })?,
        };
        let bad = |BadRow { line, text }| BadLabel { path: annotations.to_path_buf(), line, text };
        let found = |labelled: &bool| if *labelled { Found::Rows } else { Found::Missing };
        let parsed = Parsed {
            found: format!("COCO annotations {} of {}", annotations.display(), root.display()),
            root: root.clone(),
            paths: coco.names.iter().map(PathBuf::from).collect(),
            sizes: coco.sizes,
            unit: Unit::Pixels,
            labels: coco.labelled.iter().map(found).collect(),
            firsts: coco.firsts,
            boxes: coco.boxes,
            counts: coco.counts,
            bad: coco.bad.into_iter().map(bad).collect(),
            bad_images: coco.bad_images.into_iter().map(|(image, row)| (image as u64, bad(row))).collect(),
            classes: u32::try_from(coco.category_ids.len()).ok(),
            names: coco.category_names,
            category_ids: coco.category_ids,
        };
        parsed.finish(self.on_bad_label, self.check_files)
    }
}

/// So that a rule for the folders in a path sees all of them, and the set stays where it is when the working directory changes.
fn absolute(path: &Path) -> Result<PathBuf> {
    std::path::absolute(path).map_err(|e| Error::io(path, "the path can't be made absolute", e))
}

//! What lies at a path, opened so that flaws are found rather than in the way.

#[cfg(feature = "tar")]
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use serde_json::{Value, json};
use warpfeed::source::{Dataset, Detection, ImageFolder, OnBadLabel, Source, open};
#[cfg(feature = "tar")]
use warpfeed::source::{OnDamage, Shards};
use warpfeed::{Error, ErrorKind, Result};

/// A set, and what is wrong with it that no image of it shows.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) set: Arc<Dataset>,
    /// Malformed labels, damaged shards.
    pub(crate) flaws: Vec<Error>,
}

impl Found {
    fn of(set: Dataset, flaws: Vec<Error>) -> Self {
        Self { set: Arc::new(set), flaws }
    }

    /// Opens whatever lies at `path`. A set that a loader would refuse for its labels, for a damaged shard or for an empty class is
    /// opened all the same.
    ///
    /// # Errors
    /// As [`open`], where nothing can be read.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let error = match open(path) {
            Ok(set) => return Ok(Self::of(set, Vec::new())),
            Err(error) => error,
        };
        match error.kind() {
            ErrorKind::InvalidLabel => Self::of_detection(path, error),
            ErrorKind::InvalidArgument => match ImageFolder::options().allow_empty(true).open(path) {
                Ok(folder) if !folder.report().empty_classes.is_empty() => {
                    Ok(Self::of(Dataset::Folder(folder), Vec::new()))
                }
                _ => Err(error),
            },
            #[cfg(feature = "tar")]
            ErrorKind::Truncated | ErrorKind::Corrupt | ErrorKind::Empty | ErrorKind::LimitExceeded => {
                Self::of_shards(path, error)
            }
            _ => Err(error),
        }
    }

    /// A set with malformed labels, or with none.
    fn of_detection(path: &Path, error: Error) -> Result<Self> {
        let options = Detection::options().unlabelled(true);
        let Ok(set) = options.clone().on_bad_label(OnBadLabel::DropRow).open(path) else { return Err(error) };
        let mut flaws = Vec::new();
        if set.counts().bad_rows == 0 {
            flaws.push(error); // there are no labels at all
        } else {
            // Under this policy an image with a malformed row has no boxes, and to read it says which row.
            let strict = options.on_bad_label(OnBadLabel::FailSample).open(path)?;
            let mut scratch = Default::default();
            for index in (0..strict.len().unwrap_or(0)).filter(|&index| strict.boxes(index).0.is_empty()) {
                match strict.read(index, &mut scratch) {
                    Err(e) if e.kind() == ErrorKind::InvalidLabel => flaws.push(e),
                    _ => {}
                }
            }
            // More rows of an image, and those of no image.
            for bad in set.bad_labels() {
                let known = |e: &Error| {
                    let place = e.place();
                    place.path.as_ref() == Some(&bad.path)
                        && place.line == bad.line
                        && e.message() == bad.text
                };
                if !flaws.iter().any(known) {
                    let mut place = warpfeed::Place::default();
                    (place.path, place.line) = (Some(bad.path.clone()), bad.line);
                    flaws.push(Error::new(ErrorKind::InvalidLabel, bad.text.clone()).at(place));
                }
            }
        }
        Ok(Self::of(Dataset::Detection(set), flaws))
    }

    /// Shards of which at least one is damaged.
    #[cfg(feature = "tar")]
    fn of_shards(path: &Path, error: Error) -> Result<Self> {
        let Ok(set) = Shards::options().on_damage(OnDamage::Skip).open(path) else { return Err(error) };
        let all = 0..set.len().unwrap_or(0);
        let paths: BTreeSet<_> = all.filter_map(|index| set.describe(index).path).collect();
        let mut flaws: Vec<Error> = paths.iter().filter_map(|path| Shards::open(path).err()).collect();
        if error.place().path.as_ref().is_none_or(|path| !paths.contains(path)) {
            flaws.push(error); // one without a whole sample
        }
        Ok(Self::of(Dataset::Shards(set), flaws))
    }

    /// The names of the classes; none where they are numbers alone.
    pub(crate) fn class_names(&self) -> &[String] {
        match &*self.set {
            Dataset::Folder(folder) => folder.classes(),
            Dataset::Detection(set) => set.names(),
            _ => &[],
        }
    }

    /// What opening found, for programs.
    pub(crate) fn facts(&self) -> Value {
        match &*self.set {
            Dataset::Folder(folder) => {
                let report = folder.report();
                let skipped = report.skipped.iter().map(|left| {
                    json!({
                        "reason": left.reason.to_string(),
                        "count": left.count,
                        "first": left.first.to_string_lossy(),
                    })
                });
                json!({
                    "kind": "folder",
                    "classes": folder.classes().len(),
                    "empty_classes": report.empty_classes,
                    "skipped": skipped.collect::<Vec<_>>(),
                })
            }
            Dataset::Detection(set) => {
                let counts = set.counts();
                let skipped = [
                    ("label files without an image", counts.orphans),
                    ("files that are no image", counts.other_files),
                ];
                let skipped = skipped.iter().filter(|(_, count)| *count > 0);
                json!({
                    "kind": "detection",
                    "format": if set.category_ids().is_empty() { "yolo" } else { "coco" },
                    "classes": set.classes(),
                    "skipped": skipped.map(|(reason, count)| json!({ "reason": reason, "count": count }))
                        .collect::<Vec<_>>(),
                    "labels": {
                        "boxes": counts.boxes,
                        "missing_labels": counts.missing_labels,
                        "empty_labels": counts.empty_labels,
                        "emptied": counts.emptied,
                        "bad_rows": counts.bad_rows,
                        "no_area": counts.no_area,
                        "outside": counts.outside,
                        "crowd": counts.crowd,
                        "duplicates": counts.duplicates,
                        "clipped": counts.clipped,
                        "rounded": counts.rounded,
                        "polygons": counts.polygons,
                    },
                })
            }
            #[cfg(feature = "tar")]
            Dataset::Shards(set) => {
                let report = set.report();
                let skipped = report
                    .skipped()
                    .map(|(reason, count)| json!({ "reason": reason.name(), "count": count }));
                json!({
                    "kind": "shards",
                    "shards": report.shards(),
                    "bytes": report.bytes(),
                    "members": report.members().collect::<std::collections::BTreeMap<_, _>>(),
                    "damaged": report.damaged(),
                    "unmarked": report.unmarked(),
                    "skipped": skipped.collect::<Vec<_>>(),
                })
            }
            _ => json!({ "kind": "other" }),
        }
    }
}

/// A flaw or a bad sample, for programs.
pub(crate) fn error_json(error: &Error) -> Value {
    let place = error.place();
    json!({
        "index": place.index,
        "path": place.path.as_ref().map(|path| path.to_string_lossy()),
        "shard": place.shard,
        "member": place.member,
        "line": place.line,
        "offset": place.offset,
        "error": format!("{:?}", error.kind()),
        "message": error.message(),
    })
}

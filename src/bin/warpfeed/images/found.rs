//! What lies at a path, opened so that flaws are found rather than in the way.

#[cfg(feature = "tar")]
use std::collections::BTreeSet;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use serde_json::{Value, json};
use warpfeed::source::{Dataset, Detection, ImageFolder, OnBadLabel, Source, open};
#[cfg(feature = "tar")]
use warpfeed::source::{OnDamage, Shards};
use warpfeed::{Error, ErrorKind, Place, Result};

use super::splits::Splits;
use super::{line, lines};

/// A set, and what is wrong with it that no image of it shows.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) set: Arc<Dataset>,
    /// Which split it is, where there are several.
    pub(crate) split: Option<String>,
    /// The other ones.
    pub(crate) others: Vec<String>,
    /// Malformed labels, damaged shards.
    pub(crate) flaws: Vec<Error>,
    /// How a loader opens the set as it is, where it does not by default.
    pub(crate) advice: Option<String>,
}

/// The splits of a set.
#[derive(Debug, Default)]
pub(crate) struct FoundAll {
    pub(crate) sets: Vec<Found>,
    /// Those that can't be opened, by name.
    pub(crate) unopened: Vec<(String, Error)>,
}

impl Found {
    fn of(set: Dataset) -> Self {
        Self { set: Arc::new(set), split: None, others: Vec::new(), flaws: Vec::new(), advice: None }
    }

    /// Opens whatever lies at `path`, of a detection set the split that is asked for, or the one for training. A set that a loader would refuse
    /// for its labels, for a damaged shard or for an empty class is opened all the same.
    ///
    /// # Errors
    /// As [`open`], where nothing can be read; where there is no such split.
    pub(crate) fn open(path: &Path, split: Option<&str>) -> Result<Self> {
        match split {
            Some(name) if path.exists() => Self::open_split(path, name),
            _ => Self::open_default(path),
        }
    }

    /// Opens whatever lies at `path`, of a detection set all splits.
    ///
    /// # Errors
    /// As [`open`], where nothing can be read.
    pub(crate) fn open_all(path: &Path) -> Result<FoundAll> {
        let mut all = FoundAll::default();
        let (names, error) = match Self::open_default(path) {
            Ok(found) => {
                let others = found.others.clone();
                all.sets.push(found);
                (others, None)
            }
            Err(error) if is_of_folder(path, &error) || error.place().shard.is_some() => return Err(error),
            Err(error) => (Splits::of(path).names, Some(error)),
        };
        for name in names {
            match Self::open_split(path, &name) {
                Ok(found) => all.sets.push(found),
                Err(error) => all.unopened.push((name, error)),
            }
        }
        match error {
            Some(error) if all.sets.is_empty() => Err(error),
            _ => Ok(all),
        }
    }

    fn open_default(path: &Path) -> Result<Self> {
        let error = match open(path) {
            Ok(set @ Dataset::Detection(_)) => return Ok(Self::of(set).among(&Splits::of(path), None)),
            Ok(set) => return Ok(Self::of(set)),
            Err(error) => error,
        };
        if is_of_folder(path, &error) {
            return match ImageFolder::options().allow_empty(true).open(path) {
                Ok(folder) if !folder.report().empty_classes.is_empty() => {
                    let advice = Some("open it with `ImageFolder::options().allow_empty(true)`".to_string());
                    Ok(Self { advice, ..Self::of(Dataset::Folder(folder)) })
                }
                _ => Err(error),
            };
        }
        let splits = Splits::of(path);
        match error.kind() {
            ErrorKind::InvalidArgument | ErrorKind::InvalidLabel | ErrorKind::Unsupported
                if splits.must_be_named() =>
            {
                Err(no_split("train", path, &splits))
            }
            ErrorKind::InvalidLabel => {
                Self::of_detection(path, None, error).map(|found| found.among(&splits, None))
            }
            #[cfg(feature = "tar")]
            ErrorKind::Truncated | ErrorKind::Corrupt | ErrorKind::Empty | ErrorKind::LimitExceeded => {
                Self::of_shards(path, error)
            }
            _ => Err(error),
        }
    }

    fn open_split(path: &Path, name: &str) -> Result<Self> {
        let splits = Splits::of(path);
        if !splits.has(name) {
            return Err(no_split(name, path, &splits));
        }
        let found = match Detection::options().split(name).open(path) {
            Ok(set) => Self::of(Dataset::Detection(set)),
            Err(error) if error.kind() == ErrorKind::InvalidLabel => {
                Self::of_detection(path, Some(name), error)?
            }
            Err(error) => return Err(error),
        };
        Ok(found.among(&splits, Some(name)))
    }

    /// Tells which of the splits it is.
    fn among(mut self, splits: &Splits, asked: Option<&str>) -> Self {
        self.others = splits.others(asked);
        self.split = asked.map(str::to_string).or_else(|| splits.usual());
        if let (Some(name), true) = (asked, splits.must_be_named()) {
            let own = format!("Detection::options().split({name:?})");
            let advice = self.advice.unwrap_or_else(|| "open it with `Detection::options()`".to_string());
            self.advice = Some(advice.replacen("Detection::options()", &own, 1));
        }
        self
    }

    /// A set with malformed labels, or with none.
    fn of_detection(path: &Path, split: Option<&str>, error: Error) -> Result<Self> {
        let mut options = Detection::options().unlabelled(true);
        if let Some(name) = split {
            options = options.split(name);
        }
        let Ok(set) = options.clone().on_bad_label(OnBadLabel::DropRow).open(path) else { return Err(error) };
        let mut flaws = Vec::new();
        let advice;
        if set.counts().bad_rows == 0 {
            flaws.push(error); // there are no labels at all
            advice = "open it with `Detection::options().unlabelled(true)`";
        } else {
            advice = "open it with `Detection::options().on_bad_label(OnBadLabel::DropRow)` or `FailSample`";
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
                    let mut place = Place::default();
                    (place.path, place.line) = (Some(bad.path.clone()), bad.line);
                    flaws.push(Error::new(ErrorKind::InvalidLabel, bad.text.clone()).at(place));
                }
            }
        }
        Ok(Self { flaws, advice: Some(advice.to_string()), ..Self::of(Dataset::Detection(set)) })
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
        let advice = Some("open them with `Shards::options().on_damage(OnDamage::Skip)`".to_string());
        Ok(Self { flaws, advice, ..Self::of(Dataset::Shards(set)) })
    }

    /// What was found, for people. Of names with control characters those are escaped.
    pub(crate) fn text(&self) -> String {
        let mut text = self.set.to_string();
        let names = match &*self.set {
            Dataset::Folder(folder) => {
                let report = folder.report();
                let paths = report.skipped.iter().map(|left| &left.first).chain([&report.root]);
                let paths = paths.map(|path| path.display().to_string());
                paths.chain(report.empty_classes.iter().cloned()).collect()
            }
            Dataset::Detection(set) => vec![set.found().to_string()],
            _ => vec![text.clone()],
        };
        // Else a name could end a line.
        for name in names.iter().filter(|name| name.contains('\n')) {
            text = text.replace(name.as_str(), &line(name));
        }
        let split = self.split.as_ref().map_or(String::new(), |name| format!("split {}: ", line(name)));
        split + &lines(&text)
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
                    let mut json = json!({ "reason": left.reason.to_string(), "count": left.count });
                    path_json(&mut json, "first", &left.first);
                    json
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
                    "split": self.split,
                    "samples": counts.images,
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

/// Whether `error` is what a folder of images says of itself, and not what a set of another kind does.
fn is_of_folder(path: &Path, error: &Error) -> bool {
    let own = ImageFolder::open(path).err();
    own.is_some_and(|own| (own.kind(), own.message()) == (error.kind(), error.message()))
}

fn no_split(name: &str, path: &Path, splits: &Splits) -> Error {
    let text = match splits.names.as_slice() {
        [] => format!("there is no split `{name}`: there are no splits here"),
        names => format!("there is no split `{name}`; `--split` takes {}", names.join(", ")),
    };
    let mut place = Place::default();
    place.path = Some(path.to_path_buf());
    Error::new(ErrorKind::InvalidArgument, text).at(place)
}

/// A flaw or a bad sample, for programs.
pub(crate) fn error_json(error: &Error) -> Value {
    let place = error.place();
    let mut json = json!({
        "index": place.index,
        "path": null,
        "shard": place.shard,
        "member": place.member,
        "line": place.line,
        "offset": place.offset,
        "error": format!("{:?}", error.kind()),
        "message": error.message(),
    });
    if let Some(path) = &place.path {
        path_json(&mut json, "path", path);
    }
    json
}

/// Sets `key` to `path`, and `key_bytes` to its bytes in hexadecimal where it is no UTF-8.
pub(crate) fn path_json(json: &mut Value, key: &str, path: &Path) {
    json[key] = path.to_string_lossy().into();
    if path.to_str().is_none() {
        let bytes = path.as_os_str().as_bytes();
        json[format!("{key}_bytes")] = bytes.iter().map(|b| format!("{b:02x}")).collect::<String>().into();
    }
}

//! The splits of a detection set.

use std::path::Path;

use warpfeed::ErrorKind;
use warpfeed::source::Detection;

/// Files that list the splits of a folder.
const YAMLS: [&str; 3] = ["data.yaml", "data.yml", "dataset.yaml"];
/// COCO annotations of a folder of images.
const COCO: &str = "_annotations.coco.json";
/// The split that is opened where none is asked for.
const DEFAULT: &str = "train";
/// No split is called so.
const NONE: &str = "?";

/// The names of the splits that a detection set has.
#[derive(Debug, Default)]
pub(super) struct Splits {
    pub(super) names: Vec<String>,
    /// Whether they are COCO's, whose names may go on (`train2017`).
    coco: bool,
    /// Whether there are annotations that are of no split.
    rest: bool,
}

impl Splits {
    /// Of whatever lies at `path`; none where it is no detection set, or one without splits. No label is read.
    pub(super) fn of(path: &Path) -> Self {
        let is_yaml = path.extension().is_some_and(|e| e == "yaml" || e == "yml");
        let has_yaml = YAMLS.iter().any(|name| path.join(name).exists());
        if path.is_dir() && !has_yaml {
            let names = if path.join("labels").is_dir() { Vec::new() } else { coco(path) };
            if !names.is_empty() {
                return Self { names, coco: true, rest: path.join(COCO).exists() };
            }
            if !folders(path).iter().any(|name| name == "images" || path.join(name).join("images").is_dir()) {
                return Self::default();
            }
        } else if !is_yaml && !has_yaml {
            return Self::default();
        }
        // Asked for one that there is not, the library names those that there are.
        let names = match Detection::options().split(NONE).open(path) {
            Err(e) if e.kind() == ErrorKind::InvalidArgument => {
                let listed = e.message().split_once("there are: ").map_or("", |(_, listed)| listed);
                listed.split(", ").filter(|name| !name.is_empty()).map(str::to_string).collect()
            }
            _ => Vec::new(),
        };
        Self { names, coco: false, rest: false }
    }

    /// Whether the split `name` means the one called `other`.
    fn means(&self, name: &str, other: &str) -> bool {
        if self.coco { other.starts_with(name) } else { other == name }
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.names.iter().any(|other| self.means(name, other))
    }

    /// The one that is opened where none is asked for.
    pub(super) fn usual(&self) -> Option<String> {
        self.names.iter().find(|name| self.means(DEFAULT, name)).cloned()
    }

    /// Whether there are some, and none is opened unless it is asked for.
    pub(super) fn must_be_named(&self) -> bool {
        !self.names.is_empty() && self.usual().is_none() && !self.rest
    }

    /// Those that are not opened where `asked` is.
    pub(super) fn others(&self, asked: Option<&str>) -> Vec<String> {
        if asked.is_none() && !self.coco && self.usual().is_none() {
            return Vec::new(); // the folder is opened as a whole
        }
        let opened = asked.unwrap_or(DEFAULT);
        self.names.iter().filter(|name| !self.means(opened, name)).cloned().collect()
    }
}

/// The names of the folders right inside.
fn folders(path: &Path) -> Vec<String> {
    entries(path).into_iter().filter(|name| path.join(name).is_dir()).collect()
}

fn entries(path: &Path) -> Vec<String> {
    let entries = path.read_dir().into_iter().flatten().filter_map(Result::ok);
    let mut names: Vec<_> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    names
}

/// `x` for `x/_annotations.coco.json` and for `annotations/instances_x.json`.
fn coco(path: &Path) -> Vec<String> {
    let mut names = folders(path);
    names.retain(|name| path.join(name).join(COCO).is_file());
    let files = entries(&path.join("annotations"));
    let stem = |file: &String| Some(file.strip_prefix("instances_")?.strip_suffix(".json")?.to_string());
    names.extend(files.iter().filter_map(stem));
    names
}

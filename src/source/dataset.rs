//! A data set of files, whatever kind it is of.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io::ErrorKind::{NotADirectory, NotFound};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::bundle::{Bundle, IMAGE_EXTENSIONS};
#[cfg(feature = "image")]
use super::detection::Detection;
use super::image_folder::ImageFolder;
use super::picture::{Labels, Picture, Pictures};
#[cfg(feature = "tar")]
use super::shards::Shards;
use super::walk::Skips;
use super::walk::{Choice, Listing, Walk, python_order};
use super::{Source, files, image_folder};
use crate::error::{Error, ErrorKind, Place, Result};

/// What [`open`] looks for.
const SOUGHT: &str = "a folder of class folders or of images, tar shards (a file, a folder of them, a pattern as in train-{000..147}.tar), \
    a detection set (data.yaml, images/ beside labels/, COCO's annotations)";
/// What the names of tar archives end with.
const TARS: [&str; 6] = [".tar", ".tar.gz", ".tgz", ".tar.zst", ".tar.zstd", ".tzst"];
const YAMLS: [&str; 3] = ["data.yaml", "data.yml", "dataset.yaml"];
const COCO: &str = "_annotations.coco.json";
/// So many names are listed in a message.
const NAMED: usize = 8;

/// A data set of files, as [`open`] has found it: a source of [`Bundle`]s. Printed, it says what was found in a few lines.
#[derive(Debug)]
#[non_exhaustive]
pub enum Dataset {
    /// Images in folders.
    Folder(ImageFolder),
    /// Tar shards.
    #[cfg(feature = "tar")]
    Shards(Shards),
    /// Images with boxes.
    #[cfg(feature = "image")]
    Detection(Detection),
}

/// Opens the data set that lies at `path`, or that a pattern of shards means:
///
/// * a tar archive, a folder of them, or a pattern: [`Shards`](super::Shards);
/// * a `data.yaml`, a list of images (`.txt`), COCO annotations (`.json`), or a folder that holds one of these, `images/` beside `labels/`, or images with
///   label files beside them: [`Detection`](super::Detection);
/// * any other folder of class folders or images: [`ImageFolder`].
///
/// Each is opened with its default options.
///
/// ```no_run
/// let set = warpfeed::source::open("data/train")?;
/// println!("{set}");
/// # Ok::<(), warpfeed::Error>(())
/// ```
///
/// # Errors
/// [`ErrorKind::Io`] where nothing is there, with the nearest folder that is and what lies in it; [`ErrorKind::Unsupported`] where nothing of the above is, with
/// what was looked for and what is there, and where it needs a feature that is off; [`ErrorKind::InvalidArgument`] for a folder of
/// parts (`train`, `val`), and one that holds nothing but a folder: open what is in it. Else as the source that was found.
pub fn open(path: impl AsRef<Path>) -> Result<Dataset> {
    let path = path.as_ref();
    match path.metadata() {
        Ok(meta) if meta.is_dir() => open_folder(path),
        Ok(_) => open_file(path),
        Err(_) if path.as_os_str().as_bytes().contains(&b'{') && path.symlink_metadata().is_err() => {
            shards(path)
        }
        Err(e) if matches!(e.kind(), NotFound | NotADirectory) => Err(missing(path)),
        Err(e) => Err(Error::io(path, "the path can't be examined", e)),
    }
}

fn refused(kind: ErrorKind, path: &Path, text: impl Into<String>) -> Error {
    Error::new(kind, text).at(Place { path: Some(path.to_path_buf()), ..Place::default() })
}

#[cfg(feature = "tar")]
fn shards(path: &Path) -> Result<Dataset> {
    Shards::open(path).map(Dataset::Shards)
}

#[cfg(not(feature = "tar"))]
fn shards(path: &Path) -> Result<Dataset> {
    Err(refused(ErrorKind::Unsupported, path, "tar shards need the feature `tar`"))
}

#[cfg(feature = "image")]
fn detection(path: &Path) -> Result<Dataset> {
    Detection::open(path).map(Dataset::Detection)
}

#[cfg(not(feature = "image"))]
fn detection(path: &Path) -> Result<Dataset> {
    Err(refused(ErrorKind::Unsupported, path, "detection sets need the feature `image`"))
}

fn open_file(path: &Path) -> Result<Dataset> {
    let name = path.file_name().unwrap_or_default();
    if is_tar(name) || has_tar_magic(path) {
        return shards(path);
    }
    if ends_with(name, &[".yaml", ".yml", ".json", ".txt"]) {
        return detection(path);
    }
    let text = match is_image(name) {
        true => "this is one image; open the folder that it lies in".to_string(),
        false => format!("this file is no data set; looked for {SOUGHT}"),
    };
    Err(refused(ErrorKind::Unsupported, path, text))
}

fn open_folder(path: &Path) -> Result<Dataset> {
    let inside = Inside::of(path)?;
    if inside.files.iter().any(|name| is_tar(name)) {
        return shards(path);
    }
    if inside.is_detection() {
        return detection(path);
    }
    let has_images = inside.files.iter().any(|name| is_image(name));
    if let ([only], false) = (inside.folders.as_slice(), has_images) {
        let inner = Inside::of(&path.join(only))?;
        let is_set = inner.is_detection() || inner.files.iter().any(|name| is_tar(name));
        if is_set || (!inner.folders.is_empty() && !inner.files.iter().any(|name| is_image(name))) {
            let text = format!(
                "there is nothing but one folder here, and that holds {inner}: open {:?}",
                inner.path.as_path()
            );
            return Err(refused(ErrorKind::InvalidArgument, path, text));
        }
    }
    ImageFolder::open(path).map(Dataset::Folder).map_err(|error| match error.kind() {
        ErrorKind::Empty => {
            let text = format!("there is no data set here; looked for {SOUGHT}; here are {inside}");
            refused(ErrorKind::Unsupported, path, text).caused_by(error)
        }
        _ => error,
    })
}

fn ends_with(name: &OsStr, endings: &[&str]) -> bool {
    let name = name.as_bytes();
    endings.iter().any(|ending| {
        let start = name.len().checked_sub(ending.len());
        start
            .and_then(|start| name.get(start..))
            .is_some_and(|end| end.eq_ignore_ascii_case(ending.as_bytes()))
    })
}

fn is_tar(name: &OsStr) -> bool {
    ends_with(name, &TARS)
}

fn is_image(name: &OsStr) -> bool {
    let extension = Path::new(name).extension().unwrap_or_default();
    IMAGE_EXTENSIONS.iter().any(|known| extension.eq_ignore_ascii_case(known))
}

/// Whether a file has what POSIX and GNU archives have in their first header.
fn has_tar_magic(path: &Path) -> bool {
    let mut magic = [0; 5];
    let read = files::open(path).is_ok_and(|(file, _)| file.read_exact_at(&mut magic, 257).is_ok());
    read && &magic == b"ustar"
}

/// The entries of one folder, but for hidden ones.
struct Inside {
    path: PathBuf,
    folders: Vec<OsString>,
    files: BTreeSet<OsString>,
}

impl Inside {
    fn of(path: &Path) -> Result<Self> {
        let walk = Walk::new(path, true, &|_| Choice::Take)?;
        let Listing { mut folders, files } = walk.list(Path::new(""), &mut Skips::default())?;
        folders.sort_unstable_by(|a, b| python_order(a, b));
        Ok(Self { path: path.to_path_buf(), folders, files: files.into_iter().collect() })
    }

    fn is_detection(&self) -> bool {
        let has_file = |name: &str| self.files.contains(OsStr::new(name));
        let has_folder = |name: &str| self.folders.iter().any(|folder| folder == name);
        let json = |name: &OsString| ends_with(name, &[".json"]);
        let has_annotations =
            || Self::of(&self.path.join("annotations")).is_ok_and(|inside| inside.files.iter().any(json));
        let is_part = |name: &&OsString| image_folder::is_split(name);
        let labelled = |name: &OsString| {
            let part = self.path.join(name);
            part.join(COCO).is_file() || (part.join("images").is_dir() && part.join("labels").is_dir())
        };
        let has_label = |name: &OsString| {
            let label = Path::new(name).with_extension("txt");
            is_image(name) && self.files.contains(label.as_os_str())
        };
        YAMLS.iter().any(|name| has_file(name))
            || has_file(COCO)
            || (has_folder("images") && has_folder("labels"))
            || (has_folder("annotations") && has_annotations())
            || self.folders.iter().filter(is_part).any(labelled)
            || self.files.iter().any(has_label)
    }
}

/// What lies in a folder, in words.
impl fmt::Display for Inside {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut kinds = BTreeMap::<String, usize>::new();
        for name in &self.files {
            let extension = Path::new(name).extension().unwrap_or_default();
            *kinds.entry(extension.to_string_lossy().to_lowercase()).or_default() += 1;
        }
        let mut kinds: Vec<_> = kinds.into_iter().collect();
        kinds.sort_by_key(|&(_, n)| std::cmp::Reverse(n));
        if self.folders.is_empty() && kinds.is_empty() {
            return f.write_str("nothing (hidden files aside)");
        }
        let mut parts = Vec::new();
        if !self.folders.is_empty() {
            let names: Vec<_> = self.folders.iter().take(NAMED).map(|name| name.to_string_lossy()).collect();
            let more = if self.folders.len() > NAMED { ", …" } else { "" };
            parts.push(format!("folders ({}): {}{more}", self.folders.len(), names.join(", ")));
        }
        if !kinds.is_empty() {
            let kind = |(extension, n): &(String, usize)| match extension.as_str() {
                "" => format!("{n} without an extension"),
                _ => format!("{n} .{extension}"),
            };
            let more = if kinds.len() > NAMED { ", …" } else { "" };
            let kinds: Vec<_> = kinds.iter().take(NAMED).map(kind).collect();
            parts.push(format!("files ({}): {}{more}", self.files.len(), kinds.join(", ")));
        }
        f.write_str(&parts.join("; "))
    }
}

/// The error of a path that does not exist: where the way to it ends, and what is there instead.
fn missing(path: &Path) -> Error {
    if path.symlink_metadata().is_ok() {
        return refused(ErrorKind::Io, path, "this is a link to nothing");
    }
    let full = std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
    let Some(parent) = full.ancestors().skip(1).find(|parent| parent.exists()) else {
        return refused(ErrorKind::Io, path, "there is no such file or folder");
    };
    let wanted = full.strip_prefix(parent).ok().and_then(|rest| rest.iter().next()).unwrap_or_default();
    let wanted = wanted.to_string_lossy();
    let text = match Inside::of(parent) {
        Ok(inside) => {
            let all = inside.folders.iter().chain(&inside.files).map(|name| name.to_string_lossy());
            let mut all: Vec<_> = all.collect();
            let alike = |name: &str| {
                let chars = name.chars().zip(wanted.chars());
                chars.take_while(|(a, b)| a.eq_ignore_ascii_case(b)).count()
            };
            all.sort_by_cached_key(|name| std::cmp::Reverse(alike(name))); // what begins alike first
            let names: Vec<_> = all.iter().take(NAMED).map(AsRef::as_ref).collect();
            let more = if all.len() > NAMED { ", …" } else { "" };
            let there = if names.is_empty() { "nothing".to_string() } else { names.join(", ") + more };
            format!("there is no {wanted:?} in {parent:?}; there is {there}")
        }
        Err(_) if !parent.is_dir() => format!("{parent:?} is a file and holds no {wanted:?}"),
        Err(_) => format!("there is no {wanted:?} in {parent:?}"),
    };
    refused(ErrorKind::Io, path, text)
}

/// Calls a method of the source that was found.
macro_rules! found {
    ($set:expr, $source:ident => $call:expr) => {
        match $set {
            Dataset::Folder($source) => $call,
            #[cfg(feature = "tar")]
            Dataset::Shards($source) => $call,
            #[cfg(feature = "image")]
            Dataset::Detection($source) => $call,
        }
    };
}

impl fmt::Display for Dataset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Folder(folder) => folder.fmt(f),
            #[cfg(feature = "tar")]
            Self::Shards(shards) => write!(f, "tar shards: {}", shards.report()),
            #[cfg(feature = "image")]
            Self::Detection(set) => write!(f, "detection set, {}: {}", set.found(), set.counts()),
        }
    }
}

impl Source for Dataset {
    type Record = Bundle;
    type Scratch = Bundle;

    fn len(&self) -> Option<u64> {
        found!(self, source => source.len())
    }

    /// That of the source that was found.
    fn fingerprint(&self) -> u64 {
        found!(self, source => source.fingerprint())
    }

    fn describe(&self, index: u64) -> Place {
        found!(self, source => source.describe(index))
    }

    fn read<'a>(&'a self, index: u64, scratch: &'a mut Bundle) -> Result<&'a Bundle> {
        found!(self, source => source.read(index, scratch))
    }

    fn hint(&self, upcoming: &[u64]) {
        found!(self, source => source.hint(upcoming));
    }
}

impl Pictures for Dataset {
    fn labels(&self) -> Labels {
        found!(self, source => source.labels())
    }

    fn picture<'r>(&self, record: &'r Bundle) -> Result<Picture<'r>> {
        found!(self, source => source.picture(record))
    }
}

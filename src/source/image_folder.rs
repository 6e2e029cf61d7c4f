//! Folders of images.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rayon::iter::{IntoParallelRefIterator, ParallelIterator};

use super::bundle::{Bundle, IMAGE_EXTENSIONS};
use super::path_list::PathList;
use super::picture::{Labels, Picture, Pictures};
use super::walk::{Choice, LeftOut, Listing, SkipReason, Skips, Tree, Walk, python_order};
use super::whole_files::WholeFiles;
use super::{Source, out_of_range};
use crate::error::{Error, ErrorKind, Place, Result};
use crate::random::{key, key_of_bytes};

/// Names of images that are not read here. They are counted apart from files that are no images.
const OTHER_IMAGES: [&str; 18] = [
    "tif", "tiff", "ppm", "pgm", "pbm", "pnm", "jp2", "j2k", "jxl", "avif", "heic", "heif", "psd", "tga",
    "ico", "exr", "hdr", "dng",
];
/// Folders that are called so are parts of a set rather than classes.
const SPLITS: [&str; 10] =
    ["train", "training", "val", "valid", "validation", "test", "testing", "eval", "dev", "trainval"];
/// So many names are listed in a message.
const NAMED: usize = 8;

/// A source of images in folders, one folder a class: the samples, classes and order of torchvision's `ImageFolder`.
///
/// The classes are the names of the folders right inside, sorted; a class has all images in and below its folder, by
/// folder, then by name. Extensions tell what is an image, whatever their case; what it really is the decoder finds in its bytes.
/// Where there are no folders, the images right inside are samples without a class.
///
/// ```no_run
/// use warpfeed::source::ImageFolder;
/// let train = ImageFolder::open("data/train")?;
/// println!("{train}"); // images, classes, what was left out and why
/// // The same class has the same number, whatever folders the other part has.
/// let val = ImageFolder::options().classes(train.classes()).allow_empty(true).open("data/val")?;
/// # Ok::<(), warpfeed::Error>(())
/// ```
///
/// It differs from torchvision's in what is left out, all of it counted in [`ImageFolder::report`]: hidden files and folders, broken
/// links, links to a folder that they lie in. TIFF and PPM are not read here; GIF, `.jpe` and `.jfif` are.
///
/// Opening lists folders, several at a time, and looks at no file. A file is opened, read whole and closed for
/// its sample; one that has vanished is an error of that sample. Nothing is written anywhere. Memory: the paths below the
/// folder and 8 bytes each.
///
/// The record is a [`Bundle`] with one member, named for the file's extension in lower case. The fingerprint is made of
/// the files' names and the classes, so that the folder may be moved; it does not see what is in the files.
#[derive(Debug)]
pub struct ImageFolder {
    files: WholeFiles,
    classes: Vec<String>,
    /// The first sample and the class of each run of samples; none where the samples have no class.
    runs: Vec<(usize, usize)>,
    report: FolderReport,
    fingerprint: u64,
}

/// What opening an [`ImageFolder`] has found. Printed, it takes a few lines.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct FolderReport {
    /// The folder that was opened.
    pub root: PathBuf,
    /// The number of samples.
    pub images: u64,
    /// How many images each class has, in the order of the classes. Empty where the images have no classes.
    pub class_counts: Vec<u64>,
    /// The names of the classes without images.
    pub empty_classes: Vec<String>,
    /// What was left out.
    pub skipped: Vec<LeftOut>,
}

/// How to open an [`ImageFolder`]; made by [`ImageFolder::options`].
#[derive(Debug, Clone)]
pub struct ImageFolderOptions {
    extensions: Vec<String>,
    classes: Option<Vec<String>>,
    allow_empty: bool,
    follow_links: bool,
    flat: bool,
    max_file_bytes: Option<u64>,
}

impl ImageFolderOptions {
    /// Takes files with these extensions, with or without the dot, in whatever case. Default: `jpg`, `jpeg`, `jpe`, `jfif`,
    /// `png`, `webp`, `bmp`, `gif`.
    #[must_use]
    pub fn extensions(mut self, extensions: impl IntoIterator<Item = impl AsRef<str>>) -> Self {
        let plain = |extension: &str| extension.trim_start_matches('.').to_lowercase();
        self.extensions = extensions.into_iter().map(|e| plain(e.as_ref())).collect();
        self
    }

    /// Numbers the classes by this list instead of by the sorted names of the folders. A folder that is not in the list is an
    /// error, and so is a class without a folder, unless [allowed](Self::allow_empty). The order of the samples stays.
    #[must_use]
    pub fn classes(mut self, classes: impl IntoIterator<Item = impl AsRef<str>>) -> Self {
        self.classes = Some(classes.into_iter().map(|class| class.as_ref().to_string()).collect());
        self
    }

    /// Whether a class may have no images. Default: no.
    #[must_use]
    pub fn allow_empty(mut self, allow: bool) -> Self {
        self.allow_empty = allow;
        self
    }

    /// Whether links to files and folders are followed. Default: yes, but for those that lead back to where they lie.
    #[must_use]
    pub fn follow_links(mut self, follow: bool) -> Self {
        self.follow_links = follow;
        self
    }

    /// Takes all images in and below the folder as samples without a class. Default: no.
    #[must_use]
    pub fn flat(mut self, flat: bool) -> Self {
        self.flat = flat;
        self
    }

    /// A file of more bytes is an error of its sample ([`ErrorKind::LimitExceeded`]). Default: 256 MiB.
    #[must_use]
    pub fn max_file_bytes(mut self, bytes: u64) -> Self {
        self.max_file_bytes = Some(bytes);
        self
    }

    /// Lists the folder.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] for options that make no sense together; [`ErrorKind::Io`] where a folder can't be listed;
    /// [`ErrorKind::Empty`] where there are no images, with what was left out; [`ErrorKind::InvalidArgument`] where a class has none, where a
    /// folder is not in the list of classes, and where folders are called as the parts of a set are (`train`, `val`): open one of those.
    pub fn open(&self, root: impl AsRef<Path>) -> Result<ImageFolder> {
        let root = root.as_ref();
        let numbers = self.check()?;
        let choose = |name: &OsStr| self.choose(name);
        let walk = Walk::new(root, self.follow_links, &choose)?;
        let mut skips = Skips::default();
        let refused = |text| refused(ErrorKind::InvalidArgument, root, text);
        let Listing { mut folders, files } = walk.list(Path::new(""), &mut skips)?;
        folders.sort_unstable_by(|a, b| python_order(a, b));
        if self.flat || (folders.is_empty() && numbers.is_none()) {
            let Tree { folders, skips } = walk.tree(Path::new(""))?;
            let mut paths = PathList::default();
            push_all(&mut paths, &folders);
            let found = Found { paths, runs: Vec::new(), classes: Vec::new(), skips };
            return self.finish(root, found);
        }
        let splits = splits(&folders);
        if numbers.is_none() && !splits.is_empty() {
            let names = listed(&splits, |name| format!("{:?}", root.join(name)));
            return refused(format!(
                "the folders here are parts of a set and not classes: open one of them, {names} (or list them as classes)"
            ));
        }
        files.iter().for_each(|name| skips.add(SkipReason::Loose, Path::new(name)));

        let numbers = match numbers {
            Some(numbers) => {
                let unknown: Vec<_> =
                    folders.iter().filter(|f| !numbers.contains_key(f.as_os_str())).collect();
                if !unknown.is_empty() {
                    let names = listed(&unknown, |name| name.to_string_lossy().into_owned());
                    return refused(format!(
                        "{} of {} folders here are not in the list of classes: {names}",
                        unknown.len(),
                        folders.len()
                    ));
                }
                numbers
            }
            None => folders.iter().enumerate().map(|(number, name)| (name.clone(), number)).collect(),
        };
        let names = self.classes.clone();
        let classes =
            names.unwrap_or_else(|| folders.iter().map(|name| name.to_string_lossy().into_owned()).collect());
        let mut found = Found { paths: PathList::default(), runs: Vec::new(), classes, skips };
        for (folder, tree) in folders.iter().zip(trees(&walk, &folders)?) {
            found.skips.merge(&tree.skips);
            if let (false, Some(&class)) = (tree.folders.is_empty(), numbers.get(folder)) {
                found.runs.push((found.paths.len(), class));
                push_all(&mut found.paths, &tree.folders);
            }
        }
        self.finish(root, found)
    }

    /// Checks what does not depend on the folder. The number of each class of the list, by name.
    fn check(&self) -> Result<Option<HashMap<OsString, usize>>> {
        let refused = |text: &str| Err(Error::new(ErrorKind::InvalidConfig, text));
        if self.extensions.is_empty() || self.extensions.iter().any(String::is_empty) {
            return refused(
                "files are chosen by their extensions: list at least one, and none that is empty",
            );
        }
        let Some(classes) = &self.classes else { return Ok(None) };
        if self.flat {
            return refused("a flat folder has no classes: leave out `flat` or `classes`");
        }
        let numbers: HashMap<_, _> =
            classes.iter().enumerate().map(|(number, name)| (OsString::from(name), number)).collect();
        if numbers.len() < classes.len() || classes.is_empty() {
            return refused("a list of classes has at least one, and each once");
        }
        Ok(Some(numbers))
    }

    fn choose(&self, name: &OsStr) -> Choice {
        let is = |extension: &str| ends_with_extension(name.as_bytes(), extension.as_bytes());
        if self.extensions.iter().any(|extension| is(extension)) {
            Choice::Take
        } else if OTHER_IMAGES.into_iter().chain(IMAGE_EXTENSIONS).any(is) {
            Choice::Skip(SkipReason::Format)
        } else {
            Choice::Skip(SkipReason::NotAnImage)
        }
    }

    fn finish(&self, root: &Path, found: Found) -> Result<ImageFolder> {
        let Found { paths, runs, classes, skips } = found;
        let ends = runs.iter().skip(1).map(|&(first, _)| first).chain([paths.len()]);
        let mut class_counts = vec![0; classes.len()];
        for (&(first, class), end) in runs.iter().zip(ends) {
            if let Some(count) = class_counts.get_mut(class) {
                *count = (end - first) as u64;
            }
        }
        let empty = classes.iter().zip(&class_counts).filter(|(_, count)| **count == 0);
        let report = FolderReport {
            root: root.to_path_buf(),
            images: paths.len() as u64,
            empty_classes: empty.map(|(name, _)| name.clone()).collect(),
            class_counts,
            skipped: skips.list(),
        };
        let extensions = self.extensions.join(", ");
        if report.images == 0 {
            let text = format!("there are no images here by their extensions ({extensions}); {report}");
            return refused(ErrorKind::Empty, root, text);
        }
        if !self.allow_empty && !report.empty_classes.is_empty() {
            let (empty, all) = (report.empty_classes.len(), classes.len());
            let names = listed(&report.empty_classes, Clone::clone);
            let text = format!(
                "{empty} of {all} classes have no images by their extensions ({extensions}): {names}; `allow_empty` takes them"
            );
            return refused(ErrorKind::InvalidArgument, root, text);
        }
        let fingerprint = fingerprint(&paths, &classes, &runs);
        let mut files = WholeFiles::new(root, paths);
        if let Some(bytes) = self.max_file_bytes {
            files = files.limit(bytes);
        }
        Ok(ImageFolder { files, classes, runs, report, fingerprint })
    }
}

fn refused<T>(kind: ErrorKind, root: &Path, text: String) -> Result<T> {
    Err(Error::new(kind, text).at(Place { path: Some(root.to_path_buf()), ..Place::default() }))
}

/// What opening puts together.
struct Found {
    paths: PathList,
    runs: Vec<(usize, usize)>,
    classes: Vec<String>,
    skips: Skips,
}

/// The trees of `folders`, several at a time: where nothing is cached a listing waits for the disk.
fn trees(walk: &Walk<'_>, folders: &[OsString]) -> Result<Vec<Tree>> {
    let threads =
        std::thread::available_parallelism().map_or(1, usize::from).max(8).min(folders.len().max(1));
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(threads)
        .thread_name(|number| format!("warpfeed-list-{number}"))
        .build()
        .map_err(|e| Error::new(ErrorKind::Io, "threads that list folders can't be started").caused_by(e))?;
    pool.install(|| folders.par_iter().map(|folder| walk.tree(Path::new(folder))).collect())
}

fn push_all(paths: &mut PathList, folders: &[(PathBuf, Vec<OsString>)]) {
    for (folder, names) in folders {
        names.iter().for_each(|name| paths.push(&folder.join(name)));
    }
}

fn ends_with_extension(name: &[u8], extension: &[u8]) -> bool {
    let Some(at) = name.len().checked_sub(extension.len()) else { return false };
    let (stem, end) = name.split_at(at);
    stem.ends_with(b".") && end.eq_ignore_ascii_case(extension)
}

/// Whether a folder of this name is a part of a set.
pub(super) fn is_split(name: &OsStr) -> bool {
    SPLITS.iter().any(|split| name.eq_ignore_ascii_case(split))
}

/// The folders that are parts of a set, where there is nothing else, or one for training and another.
fn splits(folders: &[OsString]) -> Vec<&OsString> {
    let splits: Vec<_> = folders.iter().filter(|name| is_split(name)).collect();
    let trains = |name: &&&OsString| name.to_string_lossy().to_lowercase().starts_with("train");
    let train = splits.iter().filter(trains).count();
    let are_parts = splits.len() == folders.len() || (train > 0 && splits.len() > train);
    if are_parts { splits } else { Vec::new() }
}

/// The first names of a list, and how many more there are.
fn listed<T>(names: &[T], show: impl Fn(&T) -> String) -> String {
    let mut text = names.iter().take(NAMED).map(show).collect::<Vec<_>>().join(", ");
    if names.len() > NAMED {
        text += &format!(" and {} more", names.len() - NAMED);
    }
    text
}

fn fingerprint(paths: &PathList, classes: &[String], runs: &[(usize, usize)]) -> u64 {
    let start = key(&[u64::from_le_bytes(*b"imagedir"), paths.len() as u64, classes.len() as u64]);
    let named = classes.iter().fold(start, |h, name| key(&[h, key_of_bytes(name.as_bytes())]));
    let labelled = runs.iter().fold(named, |h, &(first, class)| key(&[h, first as u64, class as u64]));
    let name = |number| key_of_bytes(paths.get(number).as_os_str().as_bytes());
    (0..paths.len()).fold(labelled, |h, number| key(&[h, name(number)]))
}

impl ImageFolder {
    /// Opens a folder of class folders, or a folder of images, with the default options.
    ///
    /// # Errors
    /// As [`ImageFolderOptions::open`].
    pub fn open(root: impl AsRef<Path>) -> Result<Self> {
        Self::options().open(root)
    }

    /// The default options, to be changed.
    pub fn options() -> ImageFolderOptions {
        ImageFolderOptions {
            extensions: IMAGE_EXTENSIONS.map(String::from).to_vec(),
            classes: None,
            allow_empty: false,
            follow_links: true,
            flat: false,
            max_file_bytes: None,
        }
    }

    /// The folder that was opened.
    pub fn root(&self) -> &Path {
        self.files.root()
    }

    /// The names of the classes, by number. None where the images have no classes. A name that is not UTF-8 has U+FFFD where
    /// it is not.
    pub fn classes(&self) -> &[String] {
        &self.classes
    }

    /// How many images each class has.
    pub fn class_counts(&self) -> &[u64] {
        &self.report.class_counts
    }

    /// The path of each sample below the root, and its class.
    pub fn samples(&self) -> impl ExactSizeIterator<Item = (&Path, Option<i64>)> {
        (0..self.files.len()).map(|number| (self.files.name(number), self.class_of(number)))
    }

    /// What was found and what was left out.
    pub fn report(&self) -> &FolderReport {
        &self.report
    }

    fn class_of(&self, number: usize) -> Option<i64> {
        let run = self.runs.partition_point(|&(first, _)| first <= number).checked_sub(1)?;
        self.runs.get(run).map(|&(_, class)| class as i64)
    }

    fn number(&self, index: u64) -> Option<usize> {
        usize::try_from(index).ok().filter(|&number| number < self.files.len())
    }
}

impl fmt::Display for ImageFolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.report.fmt(f)
    }
}

impl fmt::Display for FolderReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "folder {}: {} images", self.root.display(), self.images)?;
        match (self.class_counts.iter().min(), self.class_counts.iter().max()) {
            (Some(least), Some(most)) => {
                write!(f, " in {} classes, {least} to {most} a class", self.class_counts.len())?;
            }
            _ => f.write_str(" without classes")?,
        }
        if !self.empty_classes.is_empty() {
            let names = listed(&self.empty_classes, Clone::clone);
            write!(f, "\n  {} classes have no images: {names}", self.empty_classes.len())?;
        }
        for LeftOut { reason, count, first } in &self.skipped {
            write!(f, "\n  left out: {count} {reason}, the first {}", first.display())?;
        }
        Ok(())
    }
}

impl Source for ImageFolder {
    type Record = Bundle;
    type Scratch = Bundle;

    fn len(&self) -> Option<u64> {
        Some(self.files.len() as u64)
    }

    fn fingerprint(&self) -> u64 {
        self.fingerprint
    }

    fn describe(&self, index: u64) -> Place {
        let path = self.number(index).map(|number| self.files.path(number));
        Place { path, ..Place::of_index(index) }
    }

    fn read<'a>(&'a self, index: u64, scratch: &'a mut Bundle) -> Result<&'a Bundle> {
        let number = self.number(index).ok_or_else(|| out_of_range(index, self.files.len() as u64))?;
        let name = self.files.name(number);
        scratch.restart(&name.to_string_lossy());
        if let Some(class) = self.class_of(number) {
            scratch.set_class(class);
        }
        let extension = name.extension().unwrap_or_default().to_ascii_lowercase();
        let read = self.files.read(number, |bytes| scratch.add(&extension.to_string_lossy(), bytes));
        read.map_err(|e| e.at(Place::of_index(index)))?;
        Ok(scratch)
    }

    fn hint(&self, upcoming: &[u64]) {
        self.files.hint(upcoming.iter().filter_map(|&index| self.number(index)));
    }
}

impl Pictures for ImageFolder {
    fn labels(&self) -> Labels {
        if self.classes.is_empty() { Labels::None } else { Labels::Class }
    }

    fn picture<'r>(&self, record: &'r Bundle) -> Result<Picture<'r>> {
        record.picture()
    }
}

#[cfg(test)]
mod tests;

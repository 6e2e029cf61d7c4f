//! Label files, read in parallel.

use std::fs::OpenOptions;
use std::io::{ErrorKind as Os, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rayon::prelude::*;

use super::counts::DetectionCounts;
use super::listing::label_folder;
use super::yolo::{self, BadRow, KEPT, Rules};
use super::{BadLabel, Found};
use crate::error::{Error, ErrorKind, Place, Result};
use crate::source::LabelBox;

/// A larger label file is refused: it is something else.
const LIMIT: u64 = 64 << 20;
/// Images of one task.
const TASK: usize = 256;

/// The labels of some images, in their order.
#[derive(Debug, Default)]
pub(super) struct Labelled {
    pub(super) found: Vec<Found>,
    /// How many boxes each image has.
    pub(super) lens: Vec<u64>,
    pub(super) boxes: Vec<LabelBox>,
    pub(super) counts: DetectionCounts,
    /// The first malformed rows.
    pub(super) bad: Vec<BadLabel>,
    /// Each image with a malformed row, with the first.
    pub(super) bad_images: Vec<(u64, BadLabel)>,
}

impl Labelled {
    fn add(&mut self, image: u64, path: &Path, labels: yolo::Labels) {
        self.found.push(if labels.rows == 0 { Found::Empty } else { Found::Rows });
        self.lens.push(labels.boxes.len() as u64);
        self.boxes.extend_from_slice(&labels.boxes);
        self.counts.add(&labels.counts);
        let mut bad = labels.bad.into_iter().map(|BadRow { line, text }| BadLabel {
            path: path.to_path_buf(),
            line,
            text,
        });
        if let Some(first) = bad.next() {
            if self.bad.len() < KEPT {
                self.bad.push(first.clone());
            }
            self.bad_images.push((image, first));
        }
        self.bad.extend(bad.take(KEPT.saturating_sub(self.bad.len())));
    }

    fn append(&mut self, mut other: Self) {
        self.found.append(&mut other.found);
        self.lens.append(&mut other.lens);
        self.boxes.append(&mut other.boxes);
        self.counts.add(&other.counts);
        self.bad.extend(other.bad.into_iter().take(KEPT.saturating_sub(self.bad.len())));
        self.bad_images.append(&mut other.bad_images);
    }
}

/// Reads the label files of `images`, which are relative to `root`.
///
/// # Errors
/// [`ErrorKind::Io`] and [`ErrorKind::LimitExceeded`] with the path of a label file that is there and can't be read.
pub(super) fn read(root: &Path, images: &[PathBuf], rules: &Rules) -> Result<Labelled> {
    let tasks = || {
        let tasks = images.par_chunks(TASK).enumerate();
        tasks.map(|(n, images)| read_some(root, images, (n * TASK) as u64, rules)).collect::<Result<Vec<_>>>()
    };
    let mut all = Labelled::default();
    pool()?.install(tasks)?.into_iter().for_each(|some| all.append(some));
    Ok(all)
}

/// Threads for as long as a set is being opened. More than cores: most of the time is spent in opening files.
pub(super) fn pool() -> Result<rayon::ThreadPool> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads((2 * cores).clamp(4, 32))
        .thread_name(|n| format!("warpfeed-open-{n}"));
    pool.build().map_err(|e| Error::new(ErrorKind::Io, format!("no threads to open the set with: {e}")))
}

fn read_some(root: &Path, images: &[PathBuf], first: u64, rules: &Rules) -> Result<Labelled> {
    let mut some = Labelled::default();
    let mut text = Vec::new();
    let mut folder: Option<(PathBuf, PathBuf)> = None;
    for (number, image) in (first..).zip(images) {
        let image = root.join(image);
        let of = image.parent().unwrap_or(root);
        if folder.as_ref().is_none_or(|(last, _)| last != of) {
            folder = Some((of.to_path_buf(), label_folder(of)));
        }
        let labels = folder.as_ref().map_or(of, |(_, labels)| labels);
        let path = labels.join(image.file_stem().unwrap_or_default()).into_os_string();
        let path = PathBuf::from({
            let mut path = path;
            path.push(".txt");
            path
        });
        if read_text(&path, &mut text)? {
            some.add(number, &path, yolo::parse(&text, rules));
        } else {
            some.found.push(Found::Missing);
            some.lens.push(0);
        }
    }
    Ok(some)
}

/// Reads a label file into `text`; `false` where there is none.
fn read_text(path: &Path, text: &mut Vec<u8>) -> Result<bool> {
    // A pipe would wait for its writer; a regular file does not care about the flag.
    let file = match OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path) {
        Ok(file) => file,
        Err(e) if matches!(e.kind(), Os::NotFound | Os::NotADirectory) => return Ok(false),
        Err(e) => return Err(Error::io(path, "the label file can't be opened", e)),
    };
    let refused = |kind, text: &str| {
        Err(Error::new(kind, text).at(Place { path: Some(path.to_path_buf()), ..Place::default() }))
    };
    let meta = file.metadata().map_err(|e| Error::io(path, "the label file can't be examined", e))?;
    if !meta.is_file() {
        return refused(ErrorKind::Io, "labels are read from regular files, and this is none");
    }
    text.clear();
    let read = file.take(LIMIT + 1).read_to_end(text);
    read.map_err(|e| Error::io(path, "the label file can't be read", e))?;
    if text.len() as u64 > LIMIT {
        return refused(ErrorKind::LimitExceeded, "the label file has more than 64 MiB");
    }
    Ok(true)
}

//! The files of a set, and which label file is an image's.

use std::ffi::OsStr;
use std::fs::Metadata;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use super::at;
use crate::error::{Error, ErrorKind, Result};
use crate::source::bundle::IMAGE_EXTENSIONS;
use crate::source::files;

/// The files below a folder, relative to it and sorted by the bytes of their paths.
#[derive(Debug, Default)]
pub(super) struct Listing {
    pub(super) images: Vec<PathBuf>,
    /// Files that end with `.txt`, or with `.TXT`.
    pub(super) texts: Vec<PathBuf>,
    /// How many other files there are.
    pub(super) others: u64,
}

pub(super) fn is_image(path: &Path) -> bool {
    let extension = path.extension().and_then(OsStr::to_str);
    extension.is_some_and(|e| IMAGE_EXTENSIONS.iter().any(|known| known.eq_ignore_ascii_case(e)))
}

fn is_hidden(name: &OsStr) -> bool {
    name.as_bytes().starts_with(b".")
}

impl Listing {
    /// Walks `root` and the folders below it. Links are followed; hidden files and folders are left out (the files among the others).
    ///
    /// # Errors
    /// [`ErrorKind::Io`] where a folder can't be read, or a link leads back to a folder above it.
    pub(super) fn of(root: &Path) -> Result<Self> {
        let mut listing = Self::default();
        let meta = std::fs::metadata(root).map_err(|e| Error::io(root, "the folder can't be read", e))?;
        listing.walk(root, Path::new(""), &mut vec![identity(&meta)])?;
        let bytes = |a: &PathBuf, b: &PathBuf| a.as_os_str().as_bytes().cmp(b.as_os_str().as_bytes());
        listing.images.sort_unstable_by(bytes);
        listing.texts.sort_unstable_by(bytes);
        Ok(listing)
    }

    /// `above`: the folders on the way here.
    fn walk(&mut self, root: &Path, relative: &Path, above: &mut Vec<(u64, u64)>) -> Result<()> {
        let folder = root.join(relative);
        let unreadable = |e| Error::io(&folder, "the folder can't be read", e);
        for entry in std::fs::read_dir(&folder).map_err(unreadable)? {
            let entry = entry.map_err(unreadable)?;
            let (name, kind) = (entry.file_name(), entry.file_type().map_err(unreadable)?);
            let path = relative.join(&name);
            // Where a link leads nowhere it counts as a file, which is missing when it is read.
            let folder = match (kind.is_dir(), kind.is_symlink()) {
                (false, false) => None,
                _ => std::fs::metadata(entry.path()).ok().filter(Metadata::is_dir),
            };
            match folder {
                Some(_) if is_hidden(&name) => {}
                Some(meta) => {
                    let this = identity(&meta);
                    if above.contains(&this) {
                        let text = "the link leads back to a folder above it";
                        return Err(Error::new(ErrorKind::Io, text).at(at(&entry.path())));
                    }
                    above.push(this);
                    self.walk(root, &path, above)?;
                    above.pop();
                }
                None if is_hidden(&name) => self.others += 1,
                None if is_image(&path) => self.images.push(path),
                None if path.extension().is_some_and(|e| e.eq_ignore_ascii_case("txt")) => {
                    self.texts.push(path)
                }
                None => self.others += 1,
            }
        }
        Ok(())
    }

    /// The text files among `texts` that are no image's label file; `classes.txt`, which tools write beside labels, is none.
    pub(super) fn orphans<'a>(&self, texts: &'a [PathBuf]) -> Vec<&'a PathBuf> {
        let stems: std::collections::HashSet<PathBuf> =
            self.images.iter().map(|i| i.with_extension("")).collect();
        let orphan = |text: &&PathBuf| {
            // A label file is looked for by the extension `txt` as it stands, and `TXT` is another.
            let read =
                text.extension() == Some(OsStr::new("txt")) && stems.contains(&text.with_extension(""));
            text.file_name() != Some(OsStr::new("classes.txt")) && !read
        };
        texts.iter().filter(orphan).collect()
    }
}

fn identity(meta: &Metadata) -> (u64, u64) {
    (meta.dev(), meta.ino())
}

/// Where the labels of the images in `folder` are by the rule of YOLO's tools: the last `images` in the path is `labels` there. The folder
/// `labels` itself comes first, then the whole path.
pub(super) fn labels_of(folder: &Path) -> Option<(PathBuf, PathBuf)> {
    let parts: Vec<Component<'_>> = folder.components().collect();
    let at = parts.iter().rposition(|part| part.as_os_str() == "images")?;
    let (before, behind) = parts.split_at_checked(at)?;
    let top: PathBuf = before.iter().collect::<PathBuf>().join("labels");
    let whole = behind.iter().skip(1).fold(top.clone(), |path, part| path.join(part));
    Some((top, whole))
}

/// The folder with the labels of the images in `folder`: by the rule, or beside them where that has no `labels`.
pub(super) fn label_folder(folder: &Path) -> PathBuf {
    match labels_of(folder) {
        Some((top, whole)) if top.is_dir() => whole,
        _ => folder.to_path_buf(),
    }
}

/// Reads a regular file of at most `limit` bytes.
///
/// # Errors
/// [`ErrorKind::Io`], [`ErrorKind::LimitExceeded`].
pub(super) fn read(path: &Path, limit: u64) -> Result<Vec<u8>> {
    let (file, stamp) = files::open(path)?;
    if stamp.bytes > limit {
        let text = format!("the file has {} bytes, the limit is {limit}", stamp.bytes);
        return Err(Error::new(ErrorKind::LimitExceeded, text).at(at(path)));
    }
    let mut bytes = Vec::new();
    file.take(limit).read_to_end(&mut bytes).map_err(|e| Error::io(path, "the file can't be read", e))?;
    Ok(bytes)
}

/// The images that a text file lists, a path a line, and how many of its lines name no image of a format that is read. A path that is not absolute is relative to the list's
/// folder, to `root`, or to the working directory: the first of them where the first image is.
///
/// # Errors
/// [`ErrorKind::Io`].
pub(super) fn listed(list: &Path, root: &Path) -> Result<(Vec<PathBuf>, u64)> {
    let text = read(list, u64::MAX)?;
    let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&text);
    let lines =
        text.split(|b| matches!(b, b'\n' | b'\r')).map(<[u8]>::trim_ascii).filter(|line| !line.is_empty());
    let mut others = 0;
    let mut paths: Vec<PathBuf> = Vec::new();
    for line in lines {
        let path = Path::new(OsStr::from_bytes(line));
        if is_image(path) {
            paths.push(path.strip_prefix("./").unwrap_or(path).to_path_buf())
        } else {
            others += 1
        }
    }
    if let Some(first) = paths.iter().find(|path| path.is_relative()) {
        let here = std::path::absolute(".").unwrap_or_default();
        let bases = [list.parent().unwrap_or(root), root, &here];
        let base = bases.into_iter().find(|base| base.join(first).exists()).unwrap_or(bases[0]).to_path_buf();
        paths.iter_mut().for_each(|path| *path = base.join(&*path));
    }
    Ok((paths, others))
}

//! Which files lie below a folder.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::Metadata;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

/// Why a file or folder gives no samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum SkipReason {
    /// Its name starts with a dot, as those of `._x.jpg` and `.DS_Store` do, or is `__MACOSX`.
    Hidden,
    /// A file without the name of an image.
    NotAnImage,
    /// An image, by its name, of a format that is not read here or was not asked for: TIFF, PPM.
    Format,
    /// A link to nothing.
    BrokenLink,
    /// A link to a folder that it lies in.
    LinkLoop,
    /// A link, where links are not followed.
    Link,
    /// A pipe, a socket, a device.
    Special,
    /// An image that lies beside the folders of the classes, in none of them.
    Loose,
}

impl fmt::Display for SkipReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Hidden => "hidden",
            Self::NotAnImage => "no image by its name",
            Self::Format => "of an image format that is not taken",
            Self::BrokenLink => "a broken link",
            Self::LinkLoop => "a link to a folder that it lies in",
            Self::Link => "a link, and links are not followed",
            Self::Special => "neither file nor folder",
            Self::Loose => "beside the folders of the classes",
        })
    }
}

/// How many entries of folders were left out for one reason.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LeftOut {
    /// The reason.
    pub reason: SkipReason,
    /// How many.
    pub count: u64,
    /// The first of them in the order of their bytes, relative to the folder that was opened.
    pub first: PathBuf,
}

/// What was left out, by reason.
#[derive(Debug, Clone, Default)]
pub(super) struct Skips(BTreeMap<SkipReason, (u64, PathBuf)>);

impl Skips {
    pub(super) fn add(&mut self, reason: SkipReason, path: &Path) {
        self.count(reason, 1, path);
    }

    fn count(&mut self, reason: SkipReason, count: u64, path: &Path) {
        let (sum, first) = self.0.entry(reason).or_insert_with(|| (0, path.to_path_buf()));
        *sum += count;
        if path.as_os_str().as_bytes() < first.as_os_str().as_bytes() {
            *first = path.to_path_buf();
        }
    }

    pub(super) fn merge(&mut self, other: &Self) {
        other.0.iter().for_each(|(&reason, (count, first))| self.count(reason, *count, first));
    }

    pub(super) fn list(&self) -> Vec<LeftOut> {
        let all = self.0.iter();
        all.map(|(&reason, (count, first))| LeftOut { reason, count: *count, first: first.clone() }).collect()
    }
}

/// The order in which Python sorts names: by code point, where a byte that is no UTF-8 counts as the surrogate that stands
/// for it. Of names in UTF-8 that is the order of their bytes.
pub(super) fn python_order(a: &OsStr, b: &OsStr) -> Ordering {
    fn code_points(name: &OsStr) -> impl Iterator<Item = u32> + '_ {
        name.as_bytes().utf8_chunks().flat_map(|chunk| {
            let escaped = chunk.invalid().iter().map(|&byte| 0xDC00 + u32::from(byte));
            chunk.valid().chars().map(u32::from).chain(escaped)
        })
    }
    match (a.to_str(), b.to_str()) {
        (Some(a), Some(b)) => a.cmp(b),
        _ => code_points(a).cmp(code_points(b)),
    }
}

/// What a walk does with a file, by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Choice {
    Take,
    Skip(SkipReason),
}

/// A folder on a file system.
type Id = (u64, u64);

fn id(meta: &Metadata) -> Id {
    (meta.dev(), meta.ino())
}

/// A walk through the folders below `root`.
pub(super) struct Walk<'a> {
    root: &'a Path,
    root_id: Id,
    follow_links: bool,
    choose: &'a (dyn Fn(&OsStr) -> Choice + Sync),
}

/// The entries of one folder, in no order.
#[derive(Debug, Default)]
pub(super) struct Listing {
    pub(super) folders: Vec<OsString>,
    pub(super) files: Vec<OsString>,
}

/// The files below a folder, by the folders that hold them, in Python's order of both.
#[derive(Debug, Default)]
pub(super) struct Tree {
    /// Paths relative to the walk's root, and the names of the files in each.
    pub(super) folders: Vec<(PathBuf, Vec<OsString>)>,
    pub(super) skips: Skips,
}

impl<'a> Walk<'a> {
    /// A walk below `root` that takes the files which `choose` does, by their names.
    ///
    /// # Errors
    /// An error of the file system, with the path.
    pub(super) fn new(
        root: &'a Path,
        follow_links: bool,
        choose: &'a (dyn Fn(&OsStr) -> Choice + Sync),
    ) -> Result<Self> {
        let meta = root.metadata().map_err(|e| Error::io(root, "the folder can't be examined", e))?;
        Ok(Self { root, root_id: id(&meta), follow_links, choose })
    }

    /// What `folder`, relative to the root, holds. What `choose` takes and what is a folder is in the listing, the rest
    /// in `skips`. A file costs no call of its own where the file system tells the type with the name.
    pub(super) fn list(&self, folder: &Path, skips: &mut Skips) -> Result<Listing> {
        let path = self.root.join(folder);
        let failed = |e| Error::io(&path, "the folder can't be listed", e);
        let mut listing = Listing::default();
        for entry in path.read_dir().map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let name = entry.file_name();
            let mut skip = |reason| skips.add(reason, &folder.join(&name));
            if name.as_bytes().starts_with(b".") || name == "__MACOSX" {
                skip(SkipReason::Hidden);
                continue;
            }
            let mut kind = match entry.file_type() {
                Ok(kind) => kind,
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => continue, // gone since
                Err(e) => return Err(Error::io(entry.path(), "the file can't be examined", e)),
            };
            if kind.is_symlink() {
                if !self.follow_links {
                    skip(SkipReason::Link);
                    continue;
                }
                kind = match std::fs::metadata(entry.path()) {
                    Ok(meta) => meta.file_type(),
                    Err(e) if e.raw_os_error() == Some(libc::ELOOP) => {
                        skip(SkipReason::LinkLoop);
                        continue;
                    }
                    Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                        skip(SkipReason::BrokenLink);
                        continue;
                    }
                    Err(e) => return Err(Error::io(entry.path(), "the link can't be followed", e)),
                };
            }
            if kind.is_dir() {
                listing.folders.push(name);
            } else if !kind.is_file() {
                skip(SkipReason::Special);
            } else {
                match (self.choose)(&name) {
                    Choice::Take => listing.files.push(name),
                    Choice::Skip(reason) => skip(reason),
                }
            }
        }
        Ok(listing)
    }

    /// All files in and below `folder`, relative to the root, in the order of
    /// `for root, _, names in sorted(os.walk(folder, followlinks=True)): for name in sorted(names)`. A folder that lies
    /// in itself, by way of links, is left out.
    ///
    /// # Errors
    /// An error of the file system, with the path: a folder that may not be read is not passed over.
    pub(super) fn tree(&self, folder: &Path) -> Result<Tree> {
        let mut tree = Tree::default();
        // The folders on the way from the root to the one at hand, and those that are still to be seen, with their depths.
        let mut way = vec![self.root_id];
        let mut ahead = vec![(1, folder.to_path_buf())];
        while let Some((depth, folder)) = ahead.pop() {
            way.truncate(depth);
            let path = self.root.join(&folder);
            let meta = path.metadata().map_err(|e| Error::io(&path, "the folder can't be examined", e))?;
            if way.contains(&id(&meta)) && !folder.as_os_str().is_empty() {
                tree.skips.add(SkipReason::LinkLoop, &folder);
                continue;
            }
            way.push(id(&meta));
            let Listing { folders, mut files } = self.list(&folder, &mut tree.skips)?;
            ahead.extend(folders.iter().map(|name| (depth + 1, folder.join(name))));
            files.sort_unstable_by(|a, b| python_order(a, b));
            if !files.is_empty() {
                tree.folders.push((folder, files));
            }
        }
        tree.folders.sort_unstable_by(|(a, _), (b, _)| python_order(a.as_os_str(), b.as_os_str()));
        Ok(tree)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::source::contract::within;

    #[test]
    fn names_are_ordered_as_python_orders_them() {
        // sorted(map(os.fsdecode, …)) in Python 3.11 gives this order.
        let sorted: [&[u8]; 10] = [
            b"",
            b"B",
            b"a",
            b"a-b",
            b"a/x",
            b"\xc3\xa9",
            b"\xed\x9f\xbf",
            b"\xff",
            b"\xef\xbf\xbd",
            b"\xf0\x9f\x90\x88",
        ];
        for (i, a) in sorted.iter().enumerate() {
            for (j, b) in sorted.iter().enumerate() {
                assert_eq!(
                    python_order(OsStr::from_bytes(a), OsStr::from_bytes(b)),
                    i.cmp(&j),
                    "{a:x?} {b:x?}"
                );
            }
        }
    }

    #[test]
    fn what_lies_in_itself_is_walked_once() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        std::fs::create_dir_all(root.join("a/deep")).unwrap();
        std::fs::create_dir(root.join("b")).unwrap();
        for file in ["a/1", "a/deep/2", "b/3"] {
            std::fs::write(root.join(file), "").unwrap();
        }
        symlink(".", root.join("a/self")).unwrap();
        symlink("..", root.join("a/deep/up")).unwrap();
        symlink("../..", root.join("a/deep/root")).unwrap();
        symlink("deep", root.join("a/twice")).unwrap(); // no loop either
        symlink("../b", root.join("a/other")).unwrap(); // no loop: its files are in both
        symlink("../a", root.join("b/back")).unwrap(); // one from a, none from b
        symlink("itself", root.join("b/itself")).unwrap();
        symlink("nothing", root.join("b/broken")).unwrap();
        let root = root.to_path_buf();
        let walk = move |follow: bool, folder: &str| {
            let (root, folder) = (root.clone(), folder.to_string());
            within(10, move || {
                Walk::new(&root, follow, &|_| Choice::Take).unwrap().tree(Path::new(&folder)).unwrap()
            })
        };
        let shape = |tree: &Tree| -> Vec<(String, usize)> {
            tree.folders.iter().map(|(folder, files)| (folder.display().to_string(), files.len())).collect()
        };
        let skips = |tree: &Tree| -> Vec<(SkipReason, u64)> {
            tree.skips.list().iter().map(|s| (s.reason, s.count)).collect()
        };
        let a = walk(true, "a");
        let expected =
            [("a", 1), ("a/deep", 1), ("a/other", 1), ("a/twice", 1)].map(|(f, n)| (f.to_string(), n));
        assert_eq!(shape(&a), expected);
        // self, deep/up, deep/root, twice/up, twice/root, other/back, other/itself; other/broken.
        assert_eq!(skips(&a), [(SkipReason::BrokenLink, 1), (SkipReason::LinkLoop, 7)]);
        let unfollowed = walk(false, "a");
        assert_eq!(shape(&unfollowed), expected[..2]);
        assert_eq!(skips(&unfollowed), [(SkipReason::Link, 5)]);
        let all = walk(false, "");
        assert_eq!(shape(&all), [("a", 1), ("a/deep", 1), ("b", 1)].map(|(f, n)| (f.to_string(), n)));
    }

    #[test]
    fn a_folder_may_lie_as_deep_as_a_path_reaches() {
        let dir = tempfile::tempdir().unwrap();
        let mut deep = dir.path().to_path_buf();
        while deep.as_os_str().len() < 2000 {
            deep.push("d");
            std::fs::create_dir(&deep).unwrap();
        }
        std::fs::write(deep.join("x"), "").unwrap();
        let tree = Walk::new(dir.path(), true, &|_| Choice::Take).unwrap().tree(Path::new("")).unwrap();
        assert_eq!(tree.folders.len(), 1);
    }
}

//! Files that are read whole.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::files;
use super::path_list::PathList;
use super::read_ahead::{Advise, ReadAhead, Residence, residence_of_file, will_need_file};
use crate::error::{Error, ErrorKind, Place, Result};

/// A larger file is refused, unless told otherwise.
const LIMIT: u64 = 256 << 20;
/// How long one hint may open files. A file whose directory and inode are cached is opened in microseconds; from a cold
/// disk each takes as long as a read of it does, and waiting for all of them would hold up the feeder.
const PATIENCE: Duration = Duration::from_millis(5);

/// Many regular files, each of which is one sample's, read whole and from any thread. None stays open: a reader has one
/// descriptor while it reads. Nothing but the paths is kept in memory.
#[derive(Debug)]
pub(super) struct WholeFiles {
    root: PathBuf,
    paths: PathList,
    limit: u64,
    ahead: ReadAhead,
}

impl WholeFiles {
    /// The files `paths`, which are relative to `root` (or absolute, then `root` says nothing).
    pub(super) fn new(root: impl Into<PathBuf>, mut paths: PathList) -> Self {
        paths.shrink();
        Self { root: root.into(), paths, limit: LIMIT, ahead: ReadAhead::default() }
    }

    /// Refuses files of more than `bytes` bytes, before any memory is taken for them.
    pub(super) fn limit(mut self, bytes: u64) -> Self {
        self.limit = bytes;
        self
    }

    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    pub(super) fn len(&self) -> usize {
        self.paths.len()
    }

    /// The path of a file as it was given.
    pub(super) fn name(&self, number: usize) -> &Path {
        self.paths.get(number)
    }

    /// Where a file is.
    pub(super) fn path(&self, number: usize) -> PathBuf {
        self.root.join(self.paths.get(number))
    }

    /// Reads file `number` into the memory that `room` gives for its size in bytes.
    ///
    /// # Errors
    /// All of them name the path: [`ErrorKind::Io`] where the file can't be opened or read or is not a regular one,
    /// [`ErrorKind::LimitExceeded`] where it is too large, [`ErrorKind::Truncated`] and [`ErrorKind::Corrupt`] where it
    /// became shorter or longer while it was read.
    pub(super) fn read<'b>(&self, number: usize, room: impl FnOnce(usize) -> &'b mut [u8]) -> Result<()> {
        let path = self.path(number);
        let (file, stamp) = files::open(&path)?;
        let refused = |kind, text: String| {
            let place = Place { path: Some(path.clone()), ..Place::default() };
            Err(Error::new(kind, text).at(place))
        };
        let bytes = match usize::try_from(stamp.bytes) {
            Ok(bytes) if stamp.bytes <= self.limit => bytes,
            _ => {
                let text = format!("the file has {} bytes, the limit is {}", stamp.bytes, self.limit);
                return refused(ErrorKind::LimitExceeded, text);
            }
        };
        match file.read_exact_at(room(bytes), 0) {
            Ok(()) => {}
            Err(e) if e.kind() == std::io::ErrorKind::UnexpectedEof => {
                let now = file.metadata().map_or(0, |meta| meta.len());
                let text = format!("the file was {bytes} bytes long when it was opened, and is {now} now");
                return refused(ErrorKind::Truncated, text);
            }
            Err(e) => return Err(Error::io(path, "the file can't be read", e)),
        }
        let mut beyond = [0];
        match file.read_at(&mut beyond, stamp.bytes) {
            Ok(0) => Ok(()),
            Ok(_) => {
                let text = format!("the file was {bytes} bytes long when it was opened, and is longer now");
                refused(ErrorKind::Corrupt, text)
            }
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => Ok(()), // all that was asked for is there
            Err(e) => Err(Error::io(path, "the file can't be read", e)),
        }
    }

    /// Tells the kernel that these files will be read next, in this order, where they are not in its cache. What can't be
    /// opened is left for the reader to tell.
    pub(super) fn hint(&self, numbers: impl Iterator<Item = usize>) {
        let until = Instant::now() + PATIENCE;
        self.ahead.advise_files(numbers, |number| {
            if Instant::now() >= until || number >= self.len() {
                return None;
            }
            let (file, stamp) = files::open(&self.path(number)).ok()?;
            (stamp.bytes > 0).then_some((Opened(file), stamp.bytes))
        });
    }
}

/// The one file that a hint is about at a time.
struct Opened(File);

impl Advise for Opened {
    fn residence(&self, _: usize, at: u64) -> Residence {
        residence_of_file(&self.0, at)
    }

    fn will_need(&self, _: usize, range: Range<u64>) {
        will_need_file(&self.0, range);
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::CString;
    use std::io::Write;
    use std::os::fd::AsRawFd;

    use super::*;
    use crate::source::contract::within;
    use crate::source::read_ahead::residence_of_map;

    fn files(root: &Path, names: &[&str]) -> WholeFiles {
        let mut list = PathList::default();
        names.iter().for_each(|name| list.push(Path::new(name)));
        WholeFiles::new(root, list)
    }

    fn read(files: &WholeFiles, number: usize) -> Result<Vec<u8>> {
        let mut buffer = Vec::new();
        files.read(number, |bytes| {
            buffer.resize(bytes, 0);
            &mut buffer
        })?;
        Ok(buffer)
    }

    #[test]
    fn a_file_is_read_whole_wherever_it_lies() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("a")).unwrap();
        std::fs::write(dir.path().join("a/x"), b"one").unwrap();
        std::fs::write(dir.path().join("y"), b"").unwrap();
        let absolute = dir.path().join("a/x");
        let files = files(dir.path(), &["a/x", "y", absolute.to_str().unwrap()]);
        assert_eq!(files.len(), 3);
        assert_eq!((read(&files, 0).unwrap(), read(&files, 1).unwrap()), (b"one".to_vec(), vec![]));
        assert_eq!(read(&files, 2).unwrap(), b"one");
        assert_eq!((files.path(0), files.name(0)), (absolute.clone(), Path::new("a/x")));
        assert_eq!(files.path(2), absolute);
    }

    #[test]
    fn what_is_no_file_or_gone_is_an_error_with_its_path() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("folder")).unwrap();
        let pipe = CString::new(dir.path().join("pipe").to_str().unwrap()).unwrap();
        // SAFETY: the name is a C string that outlives the call.
        assert_eq!(unsafe { libc::mkfifo(pipe.as_ptr(), 0o600) }, 0);
        let root = dir.path().to_path_buf();
        let errors = within(10, move || {
            let files = files(&root, &["folder", "pipe", "gone"]);
            files.hint(0..4);
            [0, 1, 2].map(|number| (read(&files, number).unwrap_err(), files.path(number)))
        });
        for (error, path) in errors {
            assert_eq!((error.kind(), error.place().path.as_ref()), (ErrorKind::Io, Some(&path)), "{error}");
        }
    }

    #[test]
    fn a_large_file_is_refused_before_memory_is_taken() {
        let dir = tempfile::tempdir().unwrap();
        let sparse = File::create(dir.path().join("sparse")).unwrap();
        sparse.set_len(LIMIT + 1).unwrap();
        std::fs::write(dir.path().join("four"), b"four").unwrap();
        let names = ["sparse", "four"];
        let refused = |files: &WholeFiles, number: usize| {
            let room = |_| -> &mut [u8] { panic!("no memory was asked for") };
            let error = files.read(number, room).unwrap_err();
            assert_eq!(
                (error.kind(), error.place().path.clone()),
                (ErrorKind::LimitExceeded, Some(files.path(number)))
            );
        };
        refused(&files(dir.path(), &names), 0);
        refused(&files(dir.path(), &names).limit(3), 1);
        assert_eq!(read(&files(dir.path(), &names).limit(4), 1).unwrap(), b"four");
    }

    #[test]
    fn a_file_that_changes_while_it_is_read_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x");
        let files = files(dir.path(), &["x"]);
        for (kind, len) in [(ErrorKind::Truncated, 2), (ErrorKind::Corrupt, 9)] {
            let mut file = File::create(&path).unwrap();
            file.write_all(b"12345").unwrap();
            let mut buffer = vec![0; 5];
            let read = files.read(0, |bytes| {
                assert_eq!(bytes, 5);
                file.set_len(len).unwrap();
                &mut buffer
            });
            let error = read.unwrap_err();
            assert_eq!((error.kind(), error.place().path.as_ref()), (kind, Some(&path)), "{error}");
        }
    }

    #[test]
    fn a_hint_brings_cold_files_into_the_cache() {
        const BYTES: usize = 1 << 20;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x");
        std::fs::write(&path, vec![7; BYTES]).unwrap();
        let file = File::open(&path).unwrap();
        file.sync_all().unwrap();
        // SAFETY: no memory is passed, and the file is open.
        let _ = unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
        // SAFETY: the file is this test's own, and nobody changes it.
        let map = unsafe { memmap2::Mmap::map(&file) }.unwrap();
        // The map is asked, for a read that may not wait lets the kernel begin one.
        let are = |wanted| [0, BYTES - 1].iter().all(|&at| residence_of_map(&map, at as u64) == wanted);
        if !are(Residence::Missing) {
            println!("skipped: this file system can't drop a page or can't say that it is missing");
            return;
        }
        files(dir.path(), &["x"]).hint(std::iter::once(0));
        let start = Instant::now();
        while !are(Residence::Resident) {
            assert!(start.elapsed() < Duration::from_secs(20), "nothing was read ahead");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

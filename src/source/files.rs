//! Open files, as many as there may be descriptors.

use std::fs::{File, Metadata, OpenOptions};
use std::ops::Deref;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::path_list::PathList;
use crate::error::{Error, ErrorKind, Place, Result};

/// Up to so many files are kept open, if a quarter of the process's limit allows.
const KEPT: usize = 1024;
/// Of more files so many stay open at a time. A reader holds the one it reads, and for a moment the one that
/// it evicts.
const SLOTS: usize = 16;

/// What a file was when it was opened first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stamp {
    pub(super) bytes: u64,
    /// Nanoseconds since 1970.
    pub(super) modified: i64,
}

impl Stamp {
    fn of(meta: &Metadata) -> Self {
        Self {
            bytes: meta.len(),
            modified: meta.mtime().wrapping_mul(1_000_000_000).wrapping_add(meta.mtime_nsec()),
        }
    }
}

/// Regular files that are read by position, from any thread. Few files are kept open, and a read takes no lock;
/// of many a bounded number is open at a time.
#[derive(Debug)]
pub(super) struct Files {
    pub(super) paths: PathList,
    stamps: Vec<Stamp>,
    open: Open,
}

#[derive(Debug)]
enum Open {
    All(Vec<File>),
    Some(Box<[Slot; SLOTS]>),
}

/// The file of one number, or none.
type Slot = Mutex<Option<(usize, Arc<File>)>>;

/// A file that can be read now.
enum Handle<'a> {
    Kept(&'a File),
    Shared(Arc<File>),
}

impl Deref for Handle<'_> {
    type Target = File;

    fn deref(&self) -> &File {
        match self {
            Self::Kept(file) => file,
            Self::Shared(file) => file,
        }
    }
}

fn at(path: &Path, offset: Option<u64>) -> Place {
    Place { path: Some(path.to_path_buf()), offset, ..Place::default() }
}

/// Opens a regular file for reading.
pub(super) fn open(path: &Path) -> Result<(File, Stamp)> {
    // A pipe would wait here for its writer; a regular file does not care about the flag.
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path);
    let file = file.map_err(|e| Error::io(path, "the file can't be opened", e))?;
    let meta = file.metadata().map_err(|e| Error::io(path, "the file can't be examined", e))?;
    if meta.is_file() {
        return Ok((file, Stamp::of(&meta)));
    }
    let what = if meta.is_dir() { "a directory" } else { "not a regular file" };
    Err(Error::new(ErrorKind::Io, format!("records are read from files, and this is {what}"))
        .at(at(path, None)))
}

fn lock(slot: &Slot) -> MutexGuard<'_, Option<(usize, Arc<File>)>> {
    slot.lock().unwrap_or_else(PoisonError::into_inner) // nothing panics under it
}

/// A quarter of the descriptors that this process may have, [`KEPT`] at most.
fn kept_limit() -> usize {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the struct is writable and outlives the call.
    let ok = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    if ok == 0 { usize::try_from(limit.rlim_cur / 4).map_or(KEPT, |n| n.min(KEPT)) } else { SLOTS }
}

impl Files {
    /// Opens every file once, in order; `check` sees what each holds.
    pub(super) fn open(
        paths: impl IntoIterator<Item = impl AsRef<Path>>,
        check: impl FnMut(&Path, Stamp) -> Result<()>,
    ) -> Result<Self> {
        Self::open_keeping(kept_limit(), paths, check)
    }

    fn open_keeping(
        most: usize,
        paths: impl IntoIterator<Item = impl AsRef<Path>>,
        mut check: impl FnMut(&Path, Stamp) -> Result<()>,
    ) -> Result<Self> {
        let mut files = Self { paths: PathList::default(), stamps: Vec::new(), open: Open::All(Vec::new()) };
        for path in paths {
            let path = path.as_ref();
            let (file, stamp) = open(path)?;
            check(path, stamp)?;
            files.paths.push(path);
            files.stamps.push(stamp);
            match &mut files.open {
                Open::All(kept) if kept.len() < most => kept.push(file),
                Open::All(_) => files.open = Open::Some(Box::default()),
                Open::Some(_) => {}
            }
        }
        files.paths.shrink();
        files.stamps.shrink_to_fit();
        Ok(files)
    }

    /// File number `number`, opened if need be. An error has the path.
    fn handle(&self, number: usize) -> Result<Handle<'_>> {
        let slots = match &self.open {
            Open::All(files) => {
                let file = files.get(number).map(Handle::Kept);
                return file
                    .ok_or_else(|| Error::new(ErrorKind::InvalidArgument, format!("no file {number}")));
            }
            Open::Some(slots) => slots,
        };
        let slot = &slots[number % SLOTS];
        if let Some((_, file)) = lock(slot).as_ref().filter(|(open, _)| *open == number) {
            return Ok(Handle::Shared(Arc::clone(file)));
        }
        let path = self.paths.get(number);
        let (file, stamp) = open(path)?;
        if Some(&stamp) != self.stamps.get(number) {
            return Err(self.changed(number, None, Some(stamp)));
        }
        let file = Arc::new(file);
        let last = lock(slot).replace((number, Arc::clone(&file)));
        drop(last); // closed outside the lock
        Ok(Handle::Shared(file))
    }

    /// The error of a file that is no longer what it was.
    fn changed(&self, number: usize, offset: Option<u64>, now: Option<Stamp>) -> Error {
        let before = self.stamps.get(number).map_or(0, |s| s.bytes);
        let (kind, what) = match now {
            Some(now) if now.bytes < before => (ErrorKind::Truncated, format!("{} bytes now", now.bytes)),
            Some(now) if now.bytes > before => (ErrorKind::Corrupt, format!("{} bytes now", now.bytes)),
            Some(_) => (ErrorKind::Corrupt, "another modification time now".to_string()),
            None => (ErrorKind::Truncated, "fewer now".to_string()),
        };
        let text = format!("the file has changed since it was opened: {before} bytes then, {what}");
        Error::new(kind, text).at(at(self.paths.get(number), offset))
    }

    /// The error of a read of `wanted` bytes at `offset` that came `found` bytes far.
    fn short(&self, file: &File, number: usize, offset: u64, wanted: usize, found: usize) -> Error {
        let now = file.metadata().ok().map(|meta| Stamp::of(&meta));
        let changed = self.changed(number, Some(offset), now);
        let text = format!("expected {wanted} bytes, found {found}; {}", changed.message());
        Error::new(ErrorKind::Truncated, text).at(changed.place().clone())
    }

    fn unreadable(&self, number: usize, offset: u64, error: std::io::Error) -> Error {
        let path = self.paths.get(number);
        Error::io(path, "the record can't be read", error).at(at(path, Some(offset)))
    }

    /// Fills each of `buffers` in turn with what follows `offset` in a file.
    pub(super) fn read(&self, number: usize, offset: u64, buffers: &mut [&mut [u8]]) -> Result<()> {
        let file = self.handle(number)?;
        let wanted = buffers.iter().map(|buffer| buffer.len()).sum();
        let mut found = 0;
        if let [_, _, ..] = buffers {
            found = read_vectored(&file, buffers, offset).map_err(|e| self.unreadable(number, offset, e))?;
        }
        // The rest of what one call did not fill; all of it where there is one buffer.
        let mut before = 0;
        for buffer in buffers.iter_mut() {
            while found < before + buffer.len() {
                match file.read_at(&mut buffer[found - before..], offset + found as u64) {
                    Ok(0) => return Err(self.short(&file, number, offset, wanted, found)),
                    Ok(n) => found += n,
                    Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                    Err(e) => return Err(self.unreadable(number, offset, e)),
                }
            }
            before += buffer.len();
        }
        Ok(())
    }

    /// Calls `f` with a file that could be opened.
    pub(super) fn with<T>(&self, number: usize, f: impl FnOnce(&File) -> T) -> Option<T> {
        self.handle(number).ok().map(|file| f(&file))
    }
}

/// One vectored read: how many bytes it has filled. 0 also where there was an end.
fn read_vectored(file: &File, buffers: &mut [&mut [u8]], offset: u64) -> std::io::Result<usize> {
    use std::os::fd::AsRawFd;
    let mut iov = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; 16];
    let count = buffers.len().min(iov.len());
    for (iov, buffer) in iov.iter_mut().zip(buffers.iter_mut()) {
        *iov = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    }
    loop {
        // SAFETY: the first `count` iovecs describe buffers that are borrowed mutably and outlive the call; the
        // descriptor is open as long as `file` is borrowed.
        let n = unsafe {
            libc::preadv(file.as_raw_fd(), iov.as_ptr(), count as libc::c_int, offset as libc::off_t)
        };
        if let Ok(n) = usize::try_from(n) {
            return Ok(n);
        }
        let error = std::io::Error::last_os_error();
        if error.kind() != std::io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

//! Host memory in whole pages.

use crate::error::{Error, ErrorKind, Result};

/// From this size on huge pages are asked for.
#[cfg(all(target_os = "linux", not(miri)))]
const HUGE_FROM: usize = 2 << 20;

/// Page-aligned anonymous memory: zero, at a fixed address until dropped. Access is through the raw pointer
/// only, under the contracts of the buffers that own it.
#[cfg(not(miri))]
#[derive(Debug)]
pub(crate) struct Pages(memmap2::MmapRaw);

#[cfg(not(miri))]
impl Pages {
    pub(crate) fn new(bytes: usize) -> Result<Self> {
        let map = memmap2::MmapMut::map_anon(bytes.max(1)).map_err(|e| out_of_memory(bytes).caused_by(e))?;
        let map = memmap2::MmapRaw::from(map);
        #[cfg(target_os = "linux")]
        if bytes >= HUGE_FROM {
            // Advice: a kernel without huge pages refuses it and the memory works all the same.
            let _ = map.advise(memmap2::Advice::HugePage);
        }
        Ok(Self(map))
    }

    /// Memory of the caller's, of at least `bytes` bytes.
    pub(super) fn from_map(map: memmap2::MmapMut, bytes: usize) -> Result<Self> {
        if map.len() < bytes {
            let text = format!("a map of {} bytes for a host slot of {bytes}", map.len());
            return Err(Error::new(ErrorKind::InvalidConfig, text));
        }
        Ok(Self(memmap2::MmapRaw::from(map)))
    }

    pub(crate) fn as_ptr(&self) -> *mut u8 {
        self.0.as_mut_ptr()
    }

    #[cfg(unix)]
    pub(super) fn lock(&self) -> std::io::Result<()> {
        self.0.lock()
    }

    #[cfg(not(unix))]
    pub(super) fn lock(&self) -> std::io::Result<()> {
        Err(std::io::ErrorKind::Unsupported.into())
    }
}

/// As above, for an interpreter that knows no mappings.
#[cfg(miri)]
#[derive(Debug)]
pub(crate) struct Pages(std::ptr::NonNull<u8>, std::alloc::Layout);

// SAFETY: an allocation that only its owner frees; access to its bytes is under the contracts of the buffers.
#[cfg(miri)]
unsafe impl Send for Pages {}
// SAFETY: as above; no method touches the bytes.
#[cfg(miri)]
unsafe impl Sync for Pages {}

#[cfg(miri)]
impl Pages {
    pub(crate) fn new(bytes: usize) -> Result<Self> {
        let layout =
            std::alloc::Layout::from_size_align(bytes.max(1), 4096).map_err(|_| out_of_memory(bytes))?;
        // SAFETY: the layout's size is not 0.
        let start = unsafe { std::alloc::alloc_zeroed(layout) };
        Ok(Self(std::ptr::NonNull::new(start).ok_or_else(|| out_of_memory(bytes))?, layout))
    }

    pub(super) fn from_map(_: memmap2::MmapMut, bytes: usize) -> Result<Self> {
        Self::new(bytes)
    }

    pub(crate) fn as_ptr(&self) -> *mut u8 {
        self.0.as_ptr()
    }

    pub(super) fn lock(&self) -> std::io::Result<()> {
        Err(std::io::ErrorKind::Unsupported.into())
    }
}

#[cfg(miri)]
impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout in `new`, freed here only.
        unsafe { std::alloc::dealloc(self.0.as_ptr(), self.1) };
    }
}

fn out_of_memory(bytes: usize) -> Error {
    Error::new(ErrorKind::Io, format!("the system has no {bytes} bytes of memory"))
}

/// RLIMIT_MEMLOCK of this process, in words.
pub(super) fn memlock_limit() -> String {
    #[cfg(all(unix, not(miri)))]
    {
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: `limit` is a valid place for the answer and lives across the call.
        if unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &mut limit) } == 0 {
            return if limit.rlim_cur == libc::RLIM_INFINITY {
                "unlimited".to_string()
            } else {
                format!("{} bytes", limit.rlim_cur)
            };
        }
    }
    "unknown".to_string()
}

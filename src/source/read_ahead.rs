//! When to tell the kernel which bytes of a file will be read.
//!
//! On a warm page cache a `fadvise(WILLNEED)` does nothing, but it looks up every page: for a record of
//! 150,528 bytes, which takes 30 µs to read, it took 4 µs; to ask whether one byte is resident took 1 µs. So each
//! run of neighbouring records is asked about first and advised only if it is not there; and once many runs
//! on end were there, only one in [`SPARSE`] is asked about, until one is found missing. That took 0.03 µs a record.

use std::fs::File;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// The kernel reads at most the device's optimal transfer size for one piece of advice, and that is at least
/// the read-ahead window, which is 128 KiB unless somebody has changed it. Longer ranges go in pieces.
const PIECE: u64 = 128 << 10;
/// Neighbouring records are merged up to this many bytes, so that one asked byte stands for little.
const RUN: u64 = 1 << 20;
/// The most bytes that one hint advises.
const MOST: u64 = 64 << 20;
/// After so many resident runs on end the cache counts as warm.
const WARM: u32 = 256;
/// In a warm cache one run in so many is asked about.
const SPARSE: u32 = 32;

/// Whether a byte of a file is in the page cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Residence {
    Resident,
    Missing,
    /// The file system can't say.
    Unknown,
}

/// What can be asked for a residence and told to be read.
pub(super) trait Advise {
    fn residence(&self, file: usize, at: u64) -> Residence;
    fn will_need(&self, file: usize, range: Range<u64>);
}

/// How warm the cache has been lately.
#[derive(Debug, Default)]
pub(super) struct ReadAhead {
    resident: AtomicU32,
}

impl ReadAhead {
    /// Advises `ranges`, each in a file given by its number, in the order of reading. Touching ranges are merged.
    pub(super) fn advise(&self, target: &impl Advise, ranges: impl Iterator<Item = (usize, Range<u64>)>) {
        let mut left = MOST;
        let mut run: Option<(usize, Range<u64>)> = None;
        for (file, range) in ranges {
            match &mut run {
                Some((f, r)) if *f == file && r.end == range.start && range.end - r.start <= RUN => {
                    r.end = range.end;
                }
                _ => {
                    if let Some(done) = run.replace((file, range)) {
                        self.advise_run(target, done, &mut left);
                    }
                }
            }
        }
        if let Some(done) = run {
            self.advise_run(target, done, &mut left);
        }
    }

    /// Advises whole files, each by its number, in the order of reading. Only a file that is asked about is opened:
    /// `open` gives what to ask and the file's size in bytes, or nothing where there is no time or no such file.
    pub(super) fn advise_files<A: Advise>(
        &self,
        files: impl Iterator<Item = usize>,
        mut open: impl FnMut(usize) -> Option<(A, u64)>,
    ) {
        let mut left = MOST;
        for file in files {
            if self.goes_by() {
                continue;
            }
            if left == 0 {
                return;
            }
            if let Some((target, bytes)) = open(file) {
                self.ask(&target, (file, 0..bytes), &mut left);
            }
        }
    }

    fn advise_run(&self, target: &impl Advise, run: (usize, Range<u64>), left: &mut u64) {
        if !self.goes_by() {
            self.ask(target, run, left);
        }
    }

    /// Counts a run that is not asked about, since the cache has been warm.
    fn goes_by(&self) -> bool {
        let resident = self.resident.load(Relaxed);
        let unasked = resident >= WARM && !resident.is_multiple_of(SPARSE);
        if unasked {
            self.count(resident);
        }
        unasked
    }

    /// One more run that was or is taken to be there. Wraps to a multiple of SPARSE that still counts as warm.
    fn count(&self, resident: u32) {
        self.resident.store(resident.checked_add(1).unwrap_or(WARM), Relaxed);
    }

    fn ask(&self, target: &impl Advise, (file, range): (usize, Range<u64>), left: &mut u64) {
        match target.residence(file, range.start + (range.end - range.start) / 2) {
            Residence::Resident => self.count(self.resident.load(Relaxed)),
            Residence::Missing | Residence::Unknown => {
                self.resident.store(0, Relaxed);
                let mut start = range.start;
                while start < range.end && *left > 0 {
                    let end = range.end.min(start + PIECE.min(*left));
                    target.will_need(file, start..end);
                    *left -= end - start;
                    start = end;
                }
            }
        }
    }
}

/// Whether byte `at` of an open file is in the page cache, by a read that may not wait.
#[cfg(target_os = "linux")]
pub(super) fn residence_of_file(file: &File, at: u64) -> Residence {
    let mut byte = 0u8;
    let iov = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    // SAFETY: one iovec of one writable byte that outlives the call; the descriptor is open as long as `file` is borrowed.
    let n =
        unsafe { libc::preadv2(file.as_raw_fd(), &raw const iov, 1, at as libc::off_t, libc::RWF_NOWAIT) };
    match n {
        1 => Residence::Resident,
        -1 if std::io::Error::last_os_error().raw_os_error() == Some(libc::EAGAIN) => Residence::Missing,
        _ => Residence::Unknown,
    }
}

#[cfg(not(target_os = "linux"))]
pub(super) fn residence_of_file(_: &File, _: u64) -> Residence {
    Residence::Unknown
}

/// Asks the kernel to read a range of an open file into the page cache.
#[cfg(target_os = "linux")]
pub(super) fn will_need_file(file: &File, range: Range<u64>) {
    let (start, len) = (range.start as libc::off_t, (range.end - range.start) as libc::off_t);
    // SAFETY: no memory is passed, and the descriptor is open as long as `file` is borrowed. A refusal means no read-ahead.
    let _ = unsafe { libc::posix_fadvise(file.as_raw_fd(), start, len, libc::POSIX_FADV_WILLNEED) };
}

#[cfg(not(target_os = "linux"))]
pub(super) fn will_need_file(_: &File, _: Range<u64>) {}

/// Whether byte `at` of mapped memory is in the page cache.
#[cfg(target_os = "linux")]
pub(super) fn residence_of_map(map: &memmap2::Mmap, at: u64) -> Residence {
    // SAFETY: sysconf reads a constant.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) }.max(1) as usize;
    let Some(bytes) = map.get(at as usize / page * page..) else { return Residence::Unknown };
    let mut state = 0u8;
    // SAFETY: the address is a multiple of the page size (a map starts at one) and lies in the map, which is
    // borrowed; one byte is writable for the state of one page.
    let ok = unsafe { libc::mincore(bytes.as_ptr().cast_mut().cast(), 1, (&raw mut state).cast()) };
    match (ok, state & 1) {
        (0, 1) => Residence::Resident,
        (0, _) => Residence::Missing,
        _ => Residence::Unknown,
    }
}

#[cfg(not(target_os = "linux"))]
pub(super) fn residence_of_map(_: &memmap2::Mmap, _: u64) -> Residence {
    Residence::Unknown
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use super::*;

    /// A file of which everything or nothing is resident.
    struct Fake {
        warm: Cell<Residence>,
        asked: Cell<u32>,
        advised: RefCell<Vec<(usize, Range<u64>)>>,
    }
    impl Fake {
        fn new(warm: Residence) -> Self {
            Self { warm: Cell::new(warm), asked: Cell::new(0), advised: RefCell::default() }
        }
    }
    impl Advise for Fake {
        fn residence(&self, _: usize, _: u64) -> Residence {
            self.asked.set(self.asked.get() + 1);
            self.warm.get()
        }
        fn will_need(&self, file: usize, range: Range<u64>) {
            self.advised.borrow_mut().push((file, range));
        }
    }

    impl<A: Advise> Advise for &A {
        fn residence(&self, file: usize, at: u64) -> Residence {
            (**self).residence(file, at)
        }
        fn will_need(&self, file: usize, range: Range<u64>) {
            (**self).will_need(file, range);
        }
    }

    fn records(n: u64, bytes: u64) -> impl Iterator<Item = (usize, Range<u64>)> {
        (0..n).map(move |i| (0, 2 * i * bytes..(2 * i + 1) * bytes)) // with a gap after each
    }

    #[test]
    fn neighbours_are_merged_and_long_ranges_cut() {
        let fake = Fake::new(Residence::Missing);
        let ranges = [(0, 0..10), (0, 10..20), (1, 20..30), (1, 40..50), (1, 0..300 << 10)];
        ReadAhead::default().advise(&fake, ranges.into_iter());
        let expected = [
            (0, 0..20),
            (1, 20..30),
            (1, 40..50),
            (1, 0..PIECE),
            (1, PIECE..2 * PIECE),
            (1, 2 * PIECE..300 << 10),
        ];
        assert_eq!(*fake.advised.borrow(), expected);
    }

    #[test]
    fn one_hint_is_bounded() {
        for unknown in [Residence::Missing, Residence::Unknown] {
            let fake = Fake::new(unknown);
            ReadAhead::default().advise(&fake, records(1000, 150_000));
            assert_eq!(fake.advised.borrow().iter().map(|(_, r)| r.end - r.start).sum::<u64>(), MOST);
        }
    }

    #[test]
    fn a_warm_cache_is_asked_rarely_and_noticed_when_it_cools() {
        let (ahead, fake) = (ReadAhead::default(), Fake::new(Residence::Resident));
        ahead.advise(&fake, records(u64::from(WARM), 1000));
        assert_eq!(fake.asked.get(), WARM);
        ahead.advise(&fake, records(u64::from(SPARSE) * 10, 1000));
        assert_eq!((fake.asked.get(), fake.advised.borrow().len()), (WARM + 10, 0));
        fake.warm.set(Residence::Missing);
        ahead.advise(&fake, records(u64::from(SPARSE) + 5, 1000));
        assert!(fake.advised.borrow().len() >= 5, "at most {SPARSE} runs go by unnoticed");
        ahead.resident.store(u32::MAX, Relaxed);
        fake.warm.set(Residence::Resident);
        ahead.advise(&fake, records(1, 1000));
        assert_eq!(ahead.resident.load(Relaxed), WARM, "the count wraps to a warm one");
    }

    #[test]
    fn whole_files_are_opened_only_to_be_asked_and_advised_only_where_they_are_missing() {
        let (ahead, fake, opened) = (ReadAhead::default(), Fake::new(Residence::Missing), Cell::new(0));
        let bytes = 300 << 10;
        let hint = |files: Range<usize>| {
            ahead.advise_files(files, |_| {
                opened.set(opened.get() + 1);
                Some((&fake, bytes))
            });
        };
        hint(5..6);
        let whole = [(5, 0..PIECE), (5, PIECE..2 * PIECE), (5, 2 * PIECE..bytes)];
        assert_eq!((opened.get(), fake.advised.take().as_slice()), (1, whole.as_slice()));
        hint(0..1000);
        assert_eq!(
            u64::from(opened.replace(0)) - 1,
            MOST.div_ceil(bytes),
            "one hint is bounded, and so is what it opens"
        );
        assert_eq!(fake.advised.take().iter().map(|(_, r)| r.end - r.start).sum::<u64>(), MOST);

        fake.warm.set(Residence::Resident);
        hint(0..WARM as usize);
        assert_eq!(opened.replace(0), WARM);
        hint(0..10 * SPARSE as usize);
        assert_eq!((opened.get(), fake.advised.borrow().len()), (10, 0), "a warm cache costs few opens");
    }
}

//! Memory that the driver knows: device memory, page-locked host memory, registered host memory.

use crate::detector::{Kind, Span, Touch};
use crate::error::{Code, Result};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

const PAGE: usize = 4096;
/// What fresh memory holds, and what freed device memory does.
const FRESH: u8 = 0xCD;
const FREED: u8 = 0xDD;

/// Pages of this process.
#[derive(Clone, Copy, Debug)]
pub struct Mapping {
    base: usize,
    len: usize,
}

impl Mapping {
    /// Overwrites device memory that has been freed; its last page is not accessible.
    pub fn spoil(&self) {
        // SAFETY: the mapping is still there, and all but its last page can be written.
        unsafe { std::ptr::write_bytes(self.base as *mut u8, FREED, self.len - PAGE) };
    }

    pub fn unmap(&self) {
        // SAFETY: the range was mapped by this module and is given back once.
        unsafe { libc::munmap(self.base as *mut _, self.len) };
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// Memory of a device, by its number in the machine.
    Device(usize),
    /// Page-locked memory: the driver uses the second mapping of the same pages at `alias`.
    Pinned { alias: usize, flags: u32 },
    /// The program's own memory, page-locked where it lies.
    Registered { flags: u32 },
}

#[derive(Clone, Debug)]
pub struct Block {
    /// Never used again, unlike the address.
    pub number: u64,
    pub base: usize,
    pub len: usize,
    pub place: Place,
    pub context: usize,
    /// Its pages are protected at the moment.
    pub closed: bool,
}

impl Block {
    pub fn named(&self) -> Arc<str> {
        let kind = match self.place {
            Place::Device(device) => format!("memory of device {device}"),
            Place::Pinned { .. } => "page-locked memory".into(),
            Place::Registered { .. } => "registered memory".into(),
        };
        format!("{kind} (allocation {}, {} B)", self.number, self.len).into()
    }

    pub fn touch(&self, span: Span, kind: Kind) -> Touch {
        Touch { object: self.number, named: self.named(), span, kind }
    }

    pub fn whole(&self, kind: Kind) -> Touch {
        self.touch(Span::bytes(self.base, self.len), kind)
    }

    /// Where the driver itself reads and writes the byte that the program knows as `address`.
    pub fn driver_address(&self, address: usize) -> usize {
        match self.place {
            Place::Pinned { alias, .. } => alias + (address - self.base),
            _ => address,
        }
    }

    pub fn device(&self) -> Option<usize> {
        match self.place {
            Place::Device(device) => Some(device),
            _ => None,
        }
    }

    /// The program's view of it.
    pub fn mapping(&self) -> Mapping {
        // One page more: it is never accessible, so that a kernel that runs over the end is stopped.
        let extra = if matches!(self.place, Place::Device(_)) { PAGE } else { 0 };
        Mapping { base: self.base, len: pages(self.len) + extra }
    }

    /// The driver's own view, where it has one.
    pub fn alias(&self) -> Option<Mapping> {
        match self.place {
            Place::Pinned { alias, .. } => Some(Mapping { base: alias, len: pages(self.len) }),
            _ => None,
        }
    }
}

fn pages(n: usize) -> usize {
    n.max(1).next_multiple_of(PAGE)
}

/// What an address is.
pub enum Found<'a> {
    Inside(&'a Block),
    /// It begins in this one and runs over its end.
    Over(&'a Block),
    /// It was memory of the driver's once.
    Freed(&'a str),
    Unknown,
}

#[derive(Default)]
pub struct Memory {
    blocks: BTreeMap<usize, Block>,
    freed: VecDeque<(usize, usize, String)>,
    next: u64,
    /// Bytes that are page-locked, by context.
    pinned: BTreeMap<usize, usize>,
    /// Bytes in use, by device.
    used: BTreeMap<usize, usize>,
}

impl Memory {
    pub fn used(&self, device: usize) -> usize {
        self.used.get(&device).copied().unwrap_or(0)
    }

    pub fn blocks(&self) -> impl Iterator<Item = &Block> {
        self.blocks.values()
    }

    pub fn get(&self, base: usize) -> Option<&Block> {
        self.blocks.get(&base)
    }

    pub fn get_mut(&mut self, base: usize) -> Option<&mut Block> {
        self.blocks.get_mut(&base)
    }

    /// The block that holds `address`.
    pub fn at(&self, address: usize) -> Option<&Block> {
        let block = self.blocks.range(..=address).next_back()?.1;
        (address < block.base + block.len).then_some(block)
    }

    pub fn find(&self, span: &Span) -> Found<'_> {
        match self.at(span.lo) {
            Some(block) if span.hi() <= block.base + block.len => Found::Inside(block),
            Some(block) => Found::Over(block),
            None => {
                let old = self.freed.iter().rev().find(|(lo, hi, _)| *lo <= span.lo && span.lo < *hi);
                old.map_or(Found::Unknown, |(_, _, by)| Found::Freed(by))
            }
        }
    }

    fn insert(&mut self, base: usize, len: usize, place: Place, context: usize) -> &Block {
        self.freed.retain(|(lo, hi, _)| base + len <= *lo || *hi <= base);
        self.next += 1;
        let block = Block { number: self.next, base, len, place, context, closed: false };
        self.blocks.entry(base).or_insert(block)
    }

    /// `n` bytes on `device`, which has `total`.
    pub fn allocate(&mut self, device: usize, n: usize, total: usize, context: usize) -> Result<&Block> {
        if n == 0 {
            return Err(Code::INVALID_VALUE);
        }
        if self.used(device) + granule(n) > total {
            return Err(Code::OUT_OF_MEMORY);
        }
        let base = map_device(n)?;
        *self.used.entry(device).or_default() += granule(n);
        Ok(self.insert(base, n, Place::Device(device), context))
    }

    /// `n` bytes of page-locked memory; `limit` bytes can be page-locked by a context (0: any number).
    pub fn pin(&mut self, n: usize, flags: u32, limit: usize, context: usize) -> Result<&Block> {
        if n == 0 || flags & !7 != 0 {
            return Err(Code::INVALID_VALUE);
        }
        self.check_pinned(n, limit, context)?;
        let (base, alias) = map_twice(n)?;
        *self.pinned.entry(context).or_default() += n;
        Ok(self.insert(base, n, Place::Pinned { alias, flags }, context))
    }

    pub fn register(
        &mut self,
        base: usize,
        n: usize,
        flags: u32,
        limit: usize,
        context: usize,
    ) -> Result<&Block> {
        if base == 0 || n == 0 || flags & !15 != 0 || !mapped(base, n) {
            return Err(Code::INVALID_VALUE);
        }
        let before = self.blocks.range(..base + n).next_back();
        if before.is_some_and(|(_, block)| base < block.base + block.len) {
            return Err(Code::HOST_MEMORY_ALREADY_REGISTERED);
        }
        self.check_pinned(n, limit, context)?;
        *self.pinned.entry(context).or_default() += n;
        Ok(self.insert(base, n, Place::Registered { flags }, context))
    }

    fn check_pinned(&self, n: usize, limit: usize, context: usize) -> Result {
        let pinned = self.pinned.get(&context).copied().unwrap_or(0);
        if limit != 0 && pinned + n > limit { Err(Code::OUT_OF_MEMORY) } else { Ok(()) }
    }

    /// Takes a block out of the books; the pages are the caller's to unmap. `by` says who freed it.
    pub fn remove(&mut self, base: usize, by: String) -> Option<Block> {
        let block = self.blocks.remove(&base)?;
        match block.place {
            Place::Device(device) => {
                *self.used.entry(device).or_default() -= granule(block.len);
            }
            _ => *self.pinned.entry(block.context).or_default() -= block.len,
        }
        if !matches!(block.place, Place::Registered { .. }) {
            self.freed.push_back((block.base, block.base + block.len, by));
            if self.freed.len() > 512 {
                self.freed.pop_front();
            }
        }
        Some(block)
    }
}

/// Device memory is handed out in pieces of this many bytes.
fn granule(n: usize) -> usize {
    n.next_multiple_of(512)
}

fn map(len: usize, protection: i32, flags: i32, fd: i32) -> Result<usize> {
    // SAFETY: a fresh mapping at an address of the system's choice touches no memory in use.
    let p = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, flags, fd, 0) };
    if p == libc::MAP_FAILED { Err(Code::OUT_OF_MEMORY) } else { Ok(p as usize) }
}

const ACCESSIBLE: i32 = libc::PROT_READ | libc::PROT_WRITE;

fn map_device(n: usize) -> Result<usize> {
    let len = pages(n);
    let base =
        map(len + PAGE, ACCESSIBLE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE, -1)?;
    // SAFETY: the first `len` bytes and the page after them are this new mapping.
    unsafe {
        libc::mprotect((base + len) as *mut _, PAGE, libc::PROT_NONE);
        std::ptr::write_bytes(base as *mut u8, FRESH, n);
    }
    Ok(base)
}

/// The same pages at two addresses: the program's, which can be protected, and the driver's own.
fn map_twice(n: usize) -> Result<(usize, usize)> {
    let len = pages(n);
    // SAFETY: the descriptor is this function's own and closed once, after the mappings that outlive it.
    unsafe {
        let fd = libc::memfd_create(c"cusim-pinned".as_ptr(), libc::MFD_CLOEXEC);
        if fd < 0 {
            return Err(Code::OUT_OF_MEMORY);
        }
        let both = (libc::ftruncate(fd, len as i64) == 0)
            .then(|| {
                let base = map(len, ACCESSIBLE, libc::MAP_SHARED, fd).ok()?;
                let alias = map(len, ACCESSIBLE, libc::MAP_SHARED, fd);
                let alias = alias.inspect_err(|_| Mapping { base, len }.unmap()).ok()?;
                std::ptr::write_bytes(alias as *mut u8, FRESH, n);
                Some((base, alias))
            })
            .flatten();
        libc::close(fd);
        both.ok_or(Code::OUT_OF_MEMORY)
    }
}

/// Whether all pages of the range belong to the process.
pub fn mapped(base: usize, n: usize) -> bool {
    let lo = base & !(PAGE - 1);
    let len = pages(base + n - lo);
    let mut resident = vec![0u8; len / PAGE];
    // SAFETY: mincore only writes one byte a page into `resident`; the range itself is not accessed.
    unsafe { libc::mincore(lo as *mut _, len, resident.as_mut_ptr()) == 0 }
}

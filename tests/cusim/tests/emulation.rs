//! Kernels' own sources, compiled for the host: what they compute, what they say that they access.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use cusim as _; // the simulated driver, with the kernels in it
use fill_check::{byte, fill};
use std::collections::BTreeSet;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::path::Path;
use std::time::{Duration, Instant};

#[path = "../../../kernels/fill_check.rs"]
mod fill_check;

type Report = unsafe extern "C" fn(*mut c_void, *const c_void, usize, c_int);

#[repr(C)]
struct Kernel {
    name: *const c_char,
    run: unsafe extern "C" fn(*const c_uint, *const c_uint, *mut *mut c_void),
    access: unsafe extern "C" fn(*mut *mut c_void, Report, *mut c_void),
}

unsafe extern "C" {
    static emu_kernels: Kernel;
    static emu_kernel_count: c_uint;
}

fn table() -> &'static [Kernel] {
    // SAFETY: emu.h: an array of that many entries, constant for the process's life.
    unsafe { std::slice::from_raw_parts(&raw const emu_kernels, emu_kernel_count as usize) }
}

fn name(kernel: &Kernel) -> &'static str {
    // SAFETY: emu.h: a C string literal.
    unsafe { CStr::from_ptr(kernel.name) }.to_str().unwrap()
}

/// A kernel by name, and its arguments' addresses.
struct Launch<'a, const N: usize> {
    kernel: &'static Kernel,
    params: [*mut c_void; N],
    arguments: std::marker::PhantomData<&'a u64>,
}

impl<'a, const N: usize> Launch<'a, N> {
    /// Each argument lies in the first bytes of its `u64`: this machine is little-endian.
    fn new(wanted: &str, arguments: &'a [u64; N]) -> Self {
        let kernel = table().iter().find(|k| name(k) == wanted).unwrap();
        let params = std::array::from_fn(|i| (&raw const arguments[i]).cast_mut().cast());
        Self { kernel, params, arguments: std::marker::PhantomData }
    }

    fn run(&mut self, grid: u32, block: u32) {
        // SAFETY: the arguments are those of the kernel's signature, and point to live memory: each caller's concern.
        unsafe { (self.kernel.run)([grid, 1, 1].as_ptr(), [block, 1, 1].as_ptr(), self.params.as_mut_ptr()) };
    }

    /// (address, bytes, kind) of all that is reported.
    fn access(&mut self) -> Vec<(u64, usize, c_int)> {
        unsafe extern "C" fn note(ctx: *mut c_void, p: *const c_void, n: usize, kind: c_int) {
            // SAFETY: `ctx` is the vector below, which nobody else uses during the call.
            unsafe { &mut *ctx.cast::<Vec<(u64, usize, c_int)>>() }.push((p as u64, n, kind));
        }
        let mut found = Vec::new();
        // SAFETY: the arguments are those of the kernel's signature; nothing they point to is touched.
        unsafe { (self.kernel.access)(self.params.as_mut_ptr(), note, (&raw mut found).cast()) };
        found
    }
}

/// (how many differ, position of the first, if any), by the kernel.
fn check(bytes: &[u8], seed: u64, first: u64, (grid, block): (u32, u32)) -> (u64, Option<u64>) {
    let mut found = [0, u64::MAX];
    let (src, counters) = (bytes.as_ptr() as u64, found.as_mut_ptr() as u64);
    Launch::new("fill_check", &[src, bytes.len() as u64, seed, first, counters]).run(grid, block);
    // SAFETY: `found` is alive; a plain read would not know of the kernel's writes.
    let found: [u64; 2] = unsafe { std::ptr::read_volatile(&raw const found) };
    (found[0], (found[0] != 0).then_some(found[1]))
}

const GRIDS: [(u32, u32); 4] = [(1, 1), (1, 32), (3, 64), (64, 128)];

#[test]
fn the_table_names_every_kernel_and_each_has_its_ptx() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../kernels");
    let stems = |extension: &str| -> BTreeSet<String> {
        let files = std::fs::read_dir(&folder).unwrap().map(|f| f.unwrap().path());
        let files = files.filter(|f| f.extension().is_some_and(|e| e == extension));
        files.map(|f| f.file_stem().unwrap().to_str().unwrap().to_owned()).collect()
    };
    let sources = stems("cu");
    assert!(sources.len() >= 2, "the sources were not found: {sources:?}");
    assert_eq!(sources, stems("ptx"));
    let known: BTreeSet<_> = table().iter().map(name).collect();
    assert_eq!(known.len(), table().len(), "a name stands twice in {known:?}");
    for kernel in sources {
        assert!(known.contains(kernel.as_str()), "{kernel} is not in {known:?}");
        let ptx = std::fs::read_to_string(folder.join(&kernel).with_extension("ptx")).unwrap();
        assert!(ptx.contains(&format!(".visible .entry {kernel}(")), "{kernel}.ptx has no such entry");
    }
}

#[test]
fn the_generator_is_splitmix64_byte_by_byte() {
    let known = [
        6_457_827_717_110_365_317_u64,
        3_203_168_211_198_807_973,
        9_817_491_932_198_370_423,
        4_593_380_528_125_082_431,
        16_408_922_859_458_223_821,
    ];
    let mut stream = [0; 40];
    fill(&mut stream, 1_234_567, 0);
    assert_eq!(stream.to_vec(), known.iter().flat_map(|w| w.to_le_bytes()).collect::<Vec<_>>());
    for first in (0..20).chain([1 << 40, u64::MAX - 15, u64::MAX]) {
        for len in 0..40 {
            let mut piece = vec![0; len];
            fill(&mut piece, 7, first);
            let bytes: Vec<_> = (0..len as u64).map(|i| byte(7, first.wrapping_add(i))).collect();
            assert_eq!(piece, bytes, "{len} from {first}");
        }
    }
}

#[test]
fn fill_check_finds_nothing_in_what_the_generator_wrote() {
    let lengths = (0..40).chain([64, 255, 1_000, 4_099, 70_000]);
    for len in lengths {
        for align in 0..8 {
            let first = [0, 3, 8, 1 << 33, u64::MAX - 20][len % 5].wrapping_add(align as u64 * 5);
            let seed = len as u64 * 977 + 1;
            // 8-aligned at index 0 or not, `align` covers all cases; the surroundings are not the generator's.
            let mut memory = vec![0xCD; len + 16];
            fill(&mut memory[align..align + len], seed, first);
            for grid in GRIDS {
                let piece = &memory[align..align + len];
                assert_eq!(
                    check(piece, seed, first, grid),
                    (0, None),
                    "{len} +{align} from {first}, {grid:?}"
                );
                if len >= 8 {
                    let all = check(piece, seed + 1, first, grid).0;
                    assert!(all as f64 >= len as f64 * 0.8, "another seed: {all} of {len} differ");
                }
            }
        }
    }
}

#[test]
fn fill_check_finds_each_wrong_byte() {
    for len in [1, 7, 8, 9, 31, 64] {
        for align in 0..8 {
            for at in 0..len {
                let mut memory = vec![0; len + 8];
                let piece = &mut memory[align..align + len];
                fill(piece, 5, 1_001);
                piece[at] ^= 1 << (at % 8);
                assert_eq!(
                    check(piece, 5, 1_001, (1, 3)),
                    (1, Some(1_001 + at as u64)),
                    "{at} of {len} +{align}"
                );
            }
        }
    }
}

#[test]
fn fill_check_counts_exactly() {
    let mut memory = vec![0; 100_003];
    for round in 0..40_u64 {
        fill(&mut memory, round, round * 3);
        let len = memory.len() as u64;
        let wrong: BTreeSet<u64> = (0..round * 50).map(|i| byte_place(round, i) % len).collect();
        for &at in &wrong {
            memory[at as usize] ^= 0x80 >> (at % 8);
        }
        let lowest = wrong.first().map(|at| at + round * 3);
        assert_eq!(check(&memory, round, round * 3, GRIDS[round as usize % 4]), (wrong.len() as u64, lowest));
    }
}

/// Any number, from the generator itself.
fn byte_place(seed: u64, i: u64) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|b| byte(seed ^ 0x5eed, i * 8 + b as u64)))
}

#[test]
fn fill_check_reads_no_byte_outside() {
    let page = 4096;
    // SAFETY: a fresh mapping of three pages, of which the outer two are made inaccessible: a stray read is a SIGSEGV.
    let middle = unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let map =
            libc::mmap(std::ptr::null_mut(), 3 * page, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0);
        assert_ne!(map, libc::MAP_FAILED);
        assert_eq!(libc::mprotect(map, page, libc::PROT_NONE), 0);
        assert_eq!(libc::mprotect(map.add(2 * page), page, libc::PROT_NONE), 0);
        std::slice::from_raw_parts_mut(map.add(page).cast::<u8>(), page)
    };
    for len in 0..=40 {
        for first in 0..8 {
            fill(&mut middle[..len], 11, first);
            assert_eq!(check(&middle[..len], 11, first, (1, 32)), (0, None));
            fill(&mut middle[page - len..], 11, first);
            assert_eq!(check(&middle[page - len..], 11, first, (1, 32)), (0, None));
        }
    }
    // SAFETY: the mapping from above, no longer used.
    unsafe { libc::munmap(middle.as_mut_ptr().sub(page).cast(), 3 * page) };
}

#[test]
fn launches_at_the_same_time_lose_no_count() {
    let bytes: Vec<u8> = (0..400_000).map(|p| !byte(1, p)).collect(); // all wrong
    let found = [0, u64::MAX].map(std::sync::atomic::AtomicU64::new);
    let launches = 6;
    std::thread::scope(|scope| {
        for _ in 0..launches {
            scope.spawn(|| {
                let (src, counters) = (bytes.as_ptr() as u64, found.as_ptr() as u64);
                let arguments = [src, bytes.len() as u64, 1, 0, counters];
                Launch::new("fill_check", &arguments).run(256, 128);
            });
        }
    });
    let [wrong, lowest] = found.map(std::sync::atomic::AtomicU64::into_inner);
    assert_eq!((wrong, lowest), (launches * bytes.len() as u64, 0));
}

#[test]
fn spin_takes_the_asked_time_asleep() {
    let on_cpu = || {
        let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: `t` is a live timespec.
        assert_eq!(unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut t) }, 0);
        Duration::new(t.tv_sec as u64, t.tv_nsec as u32)
    };
    for (asked, grid, block) in [(100, 1, 1), (100, 132, 256), (0, 132, 256)] {
        let asked = Duration::from_millis(asked);
        let (begun, cpu) = (Instant::now(), on_cpu());
        Launch::new("spin", &[asked.as_nanos() as u64]).run(grid, block);
        let (took, cpu) = (begun.elapsed(), on_cpu() - cpu);
        println!("{grid} x {block}: asked {asked:?}, took {took:?}, of which on a core {cpu:?}");
        // Far above what a loaded machine adds, far below one wait a block.
        assert!(took >= asked && took < asked + Duration::from_millis(1_000), "{asked:?}: {took:?}");
        assert!(cpu < Duration::from_millis(50), "burnt {cpu:?}");
    }
}

#[test]
fn barriers_hold_the_threads_of_a_block_together() {
    for (grid, block) in [(1, 1), (1, 2), (1, 37), (4, 64), (3, 333), (2, 1024)] {
        for n in [0, 1, 5, 1_000, 10_007] {
            let numbers: Vec<u32> = (0..n).map(|i| i * i + 3).collect();
            let sum = std::sync::atomic::AtomicU32::new(0);
            let arguments = [numbers.as_ptr() as u64, u64::from(n), sum.as_ptr() as u64];
            Launch::new("block_sum", &arguments).run(grid, block);
            let expected = numbers.iter().fold(0, |a: u32, b| a.wrapping_add(*b));
            assert_eq!(sum.into_inner(), expected, "{n} numbers, {grid} x {block}");
        }
    }
}

#[test]
fn masked_sum_adds_what_a_plain_loop_does() {
    for (rows, width) in [(0, 5), (1, 1), (7, 3), (64, 100), (33, 0), (5, 1_000)] {
        let mut x = vec![0; rows * width];
        fill(&mut x, 3, 0);
        for mask in [0x00, 0xff, 0x55, 0x0c] {
            let valid: Vec<u8> = (0..rows).map(|row| mask >> (row % 8) & 1).collect();
            let mut expected: Vec<u64> = (0..=width as u64).collect(); // what was there before
            for row in (0..rows).filter(|&row| valid[row] != 0) {
                x[row * width..][..width]
                    .iter()
                    .zip(&mut expected)
                    .for_each(|(x, sum)| *sum += u64::from(*x));
                expected[width] += 1;
            }
            for (grid, block) in GRIDS {
                let sums: Vec<_> = (0..=width as u64).map(std::sync::atomic::AtomicU64::new).collect();
                let [x, valid] = [&x, &valid].map(|bytes| bytes.as_ptr() as u64);
                let arguments = [x, valid, rows as u64, width as u64, sums.as_ptr() as u64];
                Launch::new("masked_sum", &arguments).run(grid, block);
                let sums: Vec<u64> = sums.into_iter().map(std::sync::atomic::AtomicU64::into_inner).collect();
                assert_eq!(sums, expected, "{rows} x {width}, mask {mask:#x}, {grid} x {block}");
            }
        }
    }
}

#[test]
fn access_is_what_the_kernel_touches() {
    assert_eq!(Launch::new("spin", &[5]).access(), []);
    // Addresses that nobody may touch: they are only named.
    let mut launch = Launch::new("fill_check", &[0x1001, 77, 1, 0, 0x8000]);
    assert_eq!(launch.access(), [(0x1001, 77, 0), (0x8000, 16, 2)]);
    assert_eq!(Launch::new("fill_check", &[0x1001, 0, 1, 0, 0x8000]).access(), []);
    let mut launch = Launch::new("block_sum", &[0x1000, 10, 0x8000]);
    assert_eq!(launch.access(), [(0x1000, 40, 0), (0x8000, 4, 2)]);
    // Its sums are read and written, and not atomically.
    let sums = [(0x8000, 48, 0), (0x8000, 48, 1)];
    let mut launch = Launch::new("masked_sum", &[0x1000, 0x2000, 6, 5, 0x8000]);
    assert_eq!(launch.access(), [(0x1000, 30, 0), (0x2000, 6, 0), sums[0], sums[1]]);
    assert_eq!(Launch::new("masked_sum", &[0x1000, 0x2000, 0, 5, 0x8000]).access(), sums);
}

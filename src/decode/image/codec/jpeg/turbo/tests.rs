use std::ffi::{c_int, c_uchar, c_void};

use rand_core::{Rng, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use turbojpeg_sys as tj;

use super::Turbo;
use crate::decode::image::codec::{Buffer, Color, Limits, Pixels, Rect, Wish, head};
use crate::error::{ErrorKind, Result};

/// How a test image is encoded.
#[derive(Debug, Clone, Copy)]
struct Coding {
    /// `TJPF_RGB`, `TJPF_GRAY` or `TJPF_CMYK`.
    pixels: tj::TJPF,
    subsampling: tj::TJSAMP,
    /// Parameters of the API and their values.
    with: &'static [(tj::TJPARAM, c_int)],
}

const PLAIN: Coding = Coding { pixels: tj::TJPF_TJPF_RGB, subsampling: tj::TJSAMP_TJSAMP_420, with: &[] };
const PROGRESSIVE: &[(tj::TJPARAM, c_int)] = &[(tj::TJPARAM_TJPARAM_PROGRESSIVE, 1)];
const RESTARTS: &[(tj::TJPARAM, c_int)] = &[(tj::TJPARAM_TJPARAM_RESTARTROWS, 1)];

fn channels(pixels: tj::TJPF) -> usize {
    match pixels {
        tj::TJPF_TJPF_GRAY => 1,
        tj::TJPF_TJPF_RGB => 3,
        _ => 4,
    }
}

fn encode(coding: Coding, quality: c_int, width: usize, height: usize, pixels: &[u8]) -> Vec<u8> {
    assert_eq!(pixels.len(), width * height * channels(coding.pixels));
    let (mut bytes, mut length) = (std::ptr::null_mut::<c_uchar>(), 0);
    // SAFETY: the handle is live between its making and its end; the pixels are as long as their size says, as was just
    // seen; the bytes are those that the call made, and are freed once copied.
    unsafe {
        let handle = tj::tj3Init(tj::TJINIT_TJINIT_COMPRESS as c_int);
        let all = [(tj::TJPARAM_TJPARAM_QUALITY, quality), (tj::TJPARAM_TJPARAM_SUBSAMP, coding.subsampling)];
        for &(parameter, value) in all.iter().chain(coding.with) {
            assert_eq!(tj::tj3Set(handle, parameter as c_int, value), 0, "{coding:?}");
        }
        let (width, height) = (width as c_int, height as c_int);
        let format = coding.pixels;
        let status = tj::tj3Compress8(
            handle,
            pixels.as_ptr(),
            width,
            0,
            height,
            format,
            &raw mut bytes,
            &raw mut length,
        );
        assert_eq!(status, 0, "{coding:?}");
        let copy = std::slice::from_raw_parts(bytes, length as usize).to_vec();
        tj::tj3Free(bytes.cast::<c_void>());
        tj::tj3Destroy(handle);
        copy
    }
}

/// Noise over a slope: no two regions are alike, and every block has coefficients.
fn noise(seed: u64, width: usize, height: usize, channels: usize) -> Vec<u8> {
    let mut random = Xoshiro256PlusPlus::seed_from_u64(seed);
    let pixel = |i: usize| (i % width * 3 + i / width * 5) as u64 % 128;
    (0..width * height * channels).map(|i| (pixel(i / channels) + random.next_u64() % 128) as u8).collect()
}

fn rgb(coding: Coding, width: usize, height: usize) -> Vec<u8> {
    encode(coding, 90, width, height, &noise(1, width, height, channels(coding.pixels)))
}

fn wish(width: usize, height: usize) -> Wish {
    let region = Rect { x: 0, y: 0, width: width as u32, height: height as u32 };
    Wish { color: Color::Rgb8, region, shrink: 1, lenient: false }
}

impl Turbo {
    fn read<'a>(&mut self, bytes: &[u8], wish: &Wish, out: &'a mut Buffer) -> Result<Pixels<'a>> {
        self.decode(bytes, &head(bytes, Limits::default())?, wish, out)
    }

    fn read_into(&mut self, bytes: &[u8], wish: &Wish, out: &mut [u8], stride: usize) -> Result<bool> {
        self.decode_into(bytes, &head(bytes, Limits::default())?, wish, out, stride)
    }
}

/// The pixels, and whether they are partial.
fn decode(bytes: &[u8], wish: &Wish) -> Result<(bool, Vec<u8>)> {
    let mut out = Buffer::default();
    let pixels = Turbo::default().read(bytes, wish, &mut out)?;
    assert_eq!(pixels.bytes.len(), (pixels.width * pixels.height) as usize * wish.color.channels());
    Ok((pixels.partial, pixels.bytes.to_vec()))
}

fn kind<T>(result: Result<T>) -> Option<ErrorKind> {
    result.err().map(|error| error.kind())
}

/// Marker segments of a file: where each begins, and its code. Scans' data are not looked into.
fn segments(bytes: &[u8]) -> Vec<(usize, u8)> {
    let (mut at, mut all) = (2, Vec::new());
    while at + 3 < bytes.len() {
        if bytes[at] == 0xff && !matches!(bytes[at + 1], 0 | 0xd0..=0xd9 | 0xff) {
            all.push((at, bytes[at + 1]));
            at += 2 + usize::from(u16::from_be_bytes([bytes[at + 2], bytes[at + 3]]));
        } else {
            at += 1;
        }
    }
    all
}

fn find(bytes: &[u8], code: u8) -> usize {
    segments(bytes).into_iter().find(|segment| segment.1 == code).unwrap().0
}

#[test]
fn a_region_is_what_the_whole_image_has_there() {
    let samplings = [
        tj::TJSAMP_TJSAMP_444,
        tj::TJSAMP_TJSAMP_422,
        tj::TJSAMP_TJSAMP_420,
        tj::TJSAMP_TJSAMP_440,
        tj::TJSAMP_TJSAMP_411,
        tj::TJSAMP_TJSAMP_441,
        tj::TJSAMP_TJSAMP_GRAY,
    ];
    let mut random = Xoshiro256PlusPlus::seed_from_u64(7);
    let mut below = |n: usize| (random.next_u64() % n as u64) as usize;
    let mut turbo = Turbo::default();
    let mut fewer = 0;
    for subsampling in samplings {
        for (with, pixels) in [
            (&[][..], tj::TJPF_TJPF_RGB),
            (PROGRESSIVE, tj::TJPF_TJPF_RGB),
            (RESTARTS, tj::TJPF_TJPF_RGB),
            (&[][..], tj::TJPF_TJPF_CMYK),
        ] {
            if pixels == tj::TJPF_TJPF_CMYK && subsampling == tj::TJSAMP_TJSAMP_GRAY {
                continue;
            }
            let (width, height) = (1 + below(150), 1 + below(110));
            let bytes = rgb(Coding { pixels, subsampling, with }, width, height);
            for shrink in [1, 2, 4, 8] {
                for color in [Color::Rgb8, Color::Gray8] {
                    let n = color.channels();
                    let mut wish = Wish { color, shrink, ..wish(width, height) };
                    let scaled = |n: usize| n.div_ceil(shrink as usize);
                    let mut whole = vec![0; scaled(width) * scaled(height) * n];
                    assert!(!turbo.read_into(&bytes, &wish, &mut whole, scaled(width) * n).unwrap());
                    for _ in 0..12 {
                        let (x, y) = (below(width), below(height));
                        let (w, h) = (1 + below(width - x), 1 + below(height - y));
                        wish.region = Rect { x: x as u32, y: y as u32, width: w as u32, height: h as u32 };
                        let mut out = Buffer::default();
                        let extent = turbo.read(&bytes, &wish, &mut out).unwrap();
                        assert_eq!((extent.shrink, extent.partial), (shrink, false));
                        let shrink = shrink as usize;
                        let (left, right) = (x / shrink, (x + w).div_ceil(shrink));
                        let (top, bottom) = (y / shrink, (y + h).div_ceil(shrink));
                        let row = extent.width as usize * n;
                        for (i, got) in extent.bytes.chunks(row).enumerate() {
                            let i = i + extent.y as usize;
                            if i < top || i >= bottom {
                                continue;
                            }
                            let from = (left - extent.x as usize) * n;
                            let got = &got[from..from + (right - left) * n];
                            let whole = &whole[i * scaled(width) * n..][left * n..right * n];
                            assert_eq!(
                                got, whole,
                                "{subsampling} {with:?} {width}×{height} {wish:?} row {i}"
                            );
                        }
                        assert!(extent.y as usize <= top && (extent.y + extent.height) as usize >= bottom);
                        // No more than it must be.
                        assert_eq!(extent.height as usize, bottom - top, "{wish:?}");
                        assert!(extent.width as usize <= right - left + 2 + 32 / shrink, "{wish:?}");
                        fewer += usize::from((extent.width as usize) < scaled(width));
                    }
                }
            }
        }
    }
    assert!(fewer > 500, "{fewer}");
}

#[test]
fn odd_sampling_factors_are_decoded_as_a_whole() {
    // 64 × 16 by `cjpeg -sample 2x1,2x1,2x1` and `-sample 2x2,1x2,1x1`: TurboJPEG takes the first for plain 4:4:4 and
    // then refuses regions, and has no name for the second.
    for bytes in [
        &include_bytes!("../../../../../../tests/cases/turbo/sampling_2x1_all.jpg")[..],
        include_bytes!("../../../../../../tests/cases/turbo/sampling_2x2_1x2_1x1.jpg"),
    ] {
        let (_, whole) = decode(bytes, &wish(64, 16)).unwrap();
        let region = Rect { x: 10, y: 4, width: 20, height: 6 };
        let mut out = Buffer::default();
        let pixels = Turbo::default().read(bytes, &Wish { region, ..wish(64, 16) }, &mut out).unwrap();
        assert_eq!((pixels.x, pixels.y, pixels.width, pixels.height), (0, 0, 64, 16));
        assert_eq!(pixels.bytes, whole);
    }
}

#[test]
fn a_cut_file_is_refused_or_whole() {
    for (with, subsampling) in [
        (&[][..], tj::TJSAMP_TJSAMP_420),
        (PROGRESSIVE, tj::TJSAMP_TJSAMP_420),
        (PROGRESSIVE, tj::TJSAMP_TJSAMP_GRAY),
        (RESTARTS, tj::TJSAMP_TJSAMP_444),
    ] {
        let bytes = rgb(Coding { subsampling, with, ..PLAIN }, 50, 35);
        let (_, whole) = decode(&bytes, &wish(50, 35)).unwrap();
        let scan = find(&bytes, 0xda);
        let mut turbo = Turbo::default();
        let mut out = Buffer::default();
        // Of a small region: what is behind it has to be looked at.
        let strict = Wish { region: Rect { x: 3, y: 1, width: 9, height: 4 }, ..wish(50, 35) };
        let lenient = Wish { lenient: true, ..strict };
        let mut delivered = 0;
        for (first, filled) in [(1, 0), (scan + 16, 512)] {
            // The header of a later scan that goes on in zeros is a malformed one.
            let later = filled > 0 && with == PROGRESSIVE;
            let kinds =
                if later { &[ErrorKind::Truncated, ErrorKind::Corrupt][..] } else { &[ErrorKind::Truncated] };
            for cut in first..bytes.len() {
                let mut file = bytes[..cut].to_vec();
                file.resize(cut + filled, 0);
                match turbo.read(&file, &strict, &mut out) {
                    Ok(pixels) => {
                        assert!(cut > bytes.len() - 4, "{with:?} cut at {cut} of {}", bytes.len());
                        assert_eq!(
                            (pixels.partial, pixels.bytes),
                            (false, &whole[..]),
                            "{with:?} cut at {cut}"
                        );
                        delivered += 1;
                    }
                    Err(error) => assert!(kinds.contains(&error.kind()), "{with:?} cut at {cut}: {error:?}"),
                }
                match turbo.read(&file, &lenient, &mut out) {
                    Ok(pixels) => {
                        assert!(pixels.partial || pixels.bytes == whole, "{with:?} cut at {cut}");
                        assert_eq!((pixels.width, pixels.height), (50, 35));
                    }
                    Err(error) => {
                        assert!(cut < scan + 16 || kinds.len() > 1, "{with:?} cut at {cut}: {error:?}");
                        assert!(kinds.contains(&error.kind()), "{with:?} cut at {cut}: {error:?}");
                    }
                }
            }
        }
        // Only the end marker, or half of it, is missing: all is there. Zeros in its place are as good as zeros for data.
        assert_eq!(delivered, 2, "{with:?}");
    }
}

#[test]
fn harmless_faults_are_read_and_hide_nothing() {
    for with in [&[][..], PROGRESSIVE] {
        let bytes = rgb(Coding { with, ..PLAIN }, 50, 35);
        let (_, whole) = decode(&bytes, &wish(50, 35)).unwrap();
        let end = bytes.len() - 2;
        let mut files: Vec<(&str, Vec<u8>)> = Vec::new();
        let mut add = |name, change: &dyn Fn(&mut Vec<u8>)| {
            let mut file = bytes.clone();
            change(&mut file);
            assert!(file != bytes);
            files.push((name, file));
        };
        let (tables, scan) = (find(&bytes, 0xdb), find(&bytes, 0xda));
        add("bytes between segments", &|file| drop(file.splice(tables..tables, [1, 2, 3])));
        add("a JFIF revision of the future", &|file| file[2 + 4 + 5] = 3);
        add("an unknown Adobe transform", &|file| {
            let adobe = b"\xff\xee\0\x0eAdobe\0\x64\0\0\0\0\x09";
            drop(file.splice(2..2, *adobe));
        });
        if with.is_empty() {
            add("a sequential scan with parameters", &|file| file[scan + 2 + 12 - 3] = 1);
            add("bytes behind the scan", &|file| drop(file.splice(end..end, [0; 5])));
        }
        add("bytes behind the end", &|file| file.extend([1; 300]));
        add("zeros behind the end", &|file| file.extend([0; 300]));
        add("another image behind the end", &|file| file.extend_from_slice(&bytes));
        for (name, file) in files {
            let (partial, pixels) =
                decode(&file, &wish(50, 35)).unwrap_or_else(|error| panic!("{name}: {error:?}"));
            assert!(!partial && pixels == whole, "{name}");
            // A fault of the pixels behind it is still seen.
            let behind = file.len() - bytes.len();
            let cut = bytes.len() / 2;
            if behind < 300 {
                let file = &file[..file.len() - cut];
                assert_eq!(kind(decode(file, &wish(50, 35))), Some(ErrorKind::Truncated), "{name}");
                let file = [file, &[0xff, 0xd9]].concat();
                assert!(
                    with == PROGRESSIVE || kind(decode(&file, &wish(50, 35))) == Some(ErrorKind::Truncated),
                    "{name}"
                );
            }
        }
    }
}

#[test]
fn faults_of_the_pixels_are_refused() {
    let bytes = rgb(Coding { subsampling: tj::TJSAMP_TJSAMP_444, with: RESTARTS, ..PLAIN }, 50, 35);
    let restart = bytes.windows(2).position(|pair| pair == [0xff, 0xd2]).unwrap();
    let mut out_of_order = bytes.clone();
    out_of_order[restart + 1] = 0xd5;
    assert_eq!(kind(decode(&out_of_order, &wish(50, 35))), Some(ErrorKind::Corrupt));
    let mut without = bytes.clone();
    drop(without.splice(restart - 40..restart + 40, []));
    for lenient in [false, true] {
        let result = decode(&without, &Wish { lenient, ..wish(50, 35) });
        assert!(result.as_ref().map_or(lenient, |_| false) || result.map_or(true, |(partial, _)| partial));
    }
    // A scan of a component that there is none of.
    let mut bad = bytes.clone();
    bad[find(&bytes, 0xda) + 5] = 77;
    assert_eq!(kind(decode(&bad, &wish(50, 35))), Some(ErrorKind::Corrupt));
    assert_eq!(kind(decode(&[], &wish(50, 35))), Some(ErrorKind::Empty));
    assert_eq!(kind(decode(&[0xff, 0xd8], &wish(50, 35))), Some(ErrorKind::Truncated));
    assert_eq!(kind(decode(&[0xff, 0xd8, 0xff, 0xd9], &wish(50, 35))), Some(ErrorKind::Corrupt));
    let mut bits = bytes.clone();
    bits[find(&bytes, 0xc0) + 4] = 12;
    let error = decode(&bits, &wish(50, 35)).unwrap_err();
    assert!(error.kind() == ErrorKind::Unsupported && error.to_string().contains("12"), "{error:?}");
}

#[test]
fn a_file_without_tables_gets_none_of_another() {
    let mut turbo = Turbo::default();
    let mut out = Buffer::default();
    let with = &[(tj::TJPARAM_TJPARAM_OPTIMIZE, 1)];
    let other = encode(Coding { with, ..PLAIN }, 30, 50, 35, &noise(2, 50, 35, 3));
    let bytes = rgb(PLAIN, 50, 35);
    // As a frame of Motion JPEG, which goes by the standard's Huffman tables.
    let without = |code| {
        let mut file = bytes.clone();
        for (at, _) in segments(&bytes).into_iter().filter(|segment| segment.1 == code).rev() {
            let length = usize::from(u16::from_be_bytes([file[at + 2], file[at + 3]]));
            drop(file.splice(at..at + 2 + length, []));
        }
        file
    };
    let (_, whole) = decode(&bytes, &wish(50, 35)).unwrap();
    turbo.read(&other, &wish(50, 35), &mut out).unwrap();
    turbo.read(&without(0xc4), &wish(50, 35), &mut out).unwrap();
    assert!(out.bytes() == whole);
    turbo.read(&other, &wish(50, 35), &mut out).unwrap();
    assert_eq!(kind(turbo.read(&without(0xdb), &wish(50, 35), &mut out)), Some(ErrorKind::Corrupt));
}

#[test]
fn scans_without_end_are_refused() {
    let bytes = rgb(Coding { with: PROGRESSIVE, ..PLAIN }, 50, 35);
    let last = segments(&bytes).into_iter().rfind(|segment| segment.1 == 0xda).unwrap().0;
    let mut bomb = bytes[..last].to_vec();
    for _ in 0..200 {
        bomb.extend_from_slice(&bytes[last..bytes.len() - 2]);
    }
    bomb.extend_from_slice(&[0xff, 0xd9]);
    let region = Rect { x: 3, y: 1, width: 9, height: 4 };
    for wish in [wish(50, 35), Wish { region, ..wish(50, 35) }] {
        assert_eq!(kind(decode(&bomb, &wish)), Some(ErrorKind::LimitExceeded));
    }
}

#[test]
fn inks_become_light() {
    let coding = Coding { pixels: tj::TJPF_TJPF_CMYK, subsampling: tj::TJSAMP_TJSAMP_444, with: &[] };
    // As they are stored: with Adobe's marker, 255 is no ink.
    let stored = [255, 51, 255, 255];
    let bytes = encode(coding, 100, 16, 16, &stored.repeat(256));
    let near = |pixels: &[u8], color: &[u8]| {
        pixels.chunks(color.len()).all(|pixel| pixel.iter().zip(color).all(|(a, b)| a.abs_diff(*b) <= 2))
    };
    let (_, pixels) = decode(&bytes, &wish(16, 16)).unwrap();
    assert!(near(&pixels, &[255, 51, 255]), "{:?}", &pixels[..3]);
    let (_, pixels) = decode(&bytes, &Wish { color: Color::Gray8, ..wish(16, 16) }).unwrap();
    assert!(near(&pixels, &[135]), "{}", pixels[0]);
    let half = encode(coding, 100, 16, 16, &[255, 51, 255, 128].repeat(256));
    let (_, pixels) = decode(&half, &wish(16, 16)).unwrap();
    assert!(near(&pixels, &[128, 26, 128]), "{:?}", &pixels[..3]);
    // Without the marker they are not YCCK, and inverted all the same.
    let with = &[(tj::TJPARAM_TJPARAM_COLORSPACE, tj::TJCS_TJCS_CMYK as c_int)];
    let mut plain = encode(Coding { with, ..coding }, 100, 16, 16, &[255, 51, 255, 128].repeat(256));
    let adobe = find(&plain, 0xee);
    drop(plain.splice(adobe..adobe + 16, []));
    let (_, pixels) = decode(&plain, &wish(16, 16)).unwrap();
    assert!(near(&pixels, &[128, 26, 128]), "{:?}", &pixels[..3]);
}

#[test]
fn rows_lie_a_stride_apart_and_nothing_between_is_written() {
    for pixels in [tj::TJPF_TJPF_RGB, tj::TJPF_TJPF_CMYK] {
        let bytes = rgb(Coding { pixels, ..PLAIN }, 21, 9);
        let (_, whole) = decode(&bytes, &wish(21, 9)).unwrap();
        let (row, stride) = (21 * 3, 21 * 3 + 5);
        let mut out = vec![7; stride * 8 + row];
        let mut turbo = Turbo::default();
        assert!(!turbo.read_into(&bytes, &wish(21, 9), &mut out, stride).unwrap());
        for (got, whole) in out.chunks(stride).zip(whole.chunks(row)) {
            assert_eq!(&got[..row], whole);
            assert!(got[row..].iter().all(|&byte| byte == 7));
        }
        let shorter = out.len() - 1;
        for (len, stride) in [(shorter, stride), (shorter, row - 1), (shorter, usize::MAX), (0, stride)] {
            let into = turbo.read_into(&bytes, &wish(21, 9), &mut out[..len], stride);
            assert_eq!(kind(into), Some(ErrorKind::InvalidArgument), "{len} {stride}");
        }
    }
    let bytes = rgb(PLAIN, 21, 9);
    for region in [Rect { x: 21, y: 0, width: 1, height: 1 }, Rect { x: 0, y: 0, width: 0, height: 9 }] {
        assert_eq!(kind(decode(&bytes, &Wish { region, ..wish(21, 9) })), Some(ErrorKind::InvalidArgument));
    }
    assert_eq!(kind(decode(&bytes, &Wish { shrink: 3, ..wish(21, 9) })), Some(ErrorKind::InvalidArgument));
}

#[test]
fn memory_is_reused() {
    let mut turbo = Turbo::default();
    let mut out = Buffer::default();
    let whole = rgb(Coding { pixels: tj::TJPF_TJPF_CMYK, ..PLAIN }, 50, 35);
    let cut = &whole[..whole.len() - 60];
    let mut sizes = Vec::new();
    for _ in 0..3 {
        turbo.read(&whole, &wish(50, 35), &mut out).unwrap();
        turbo.read(cut, &Wish { lenient: true, ..wish(50, 35) }, &mut out).unwrap();
        sizes.push((turbo.file.bytes().as_ptr(), turbo.raw.bytes().as_ptr(), out.bytes().as_ptr()));
    }
    assert!(sizes.iter().all(|size| *size == sizes[0]));
}

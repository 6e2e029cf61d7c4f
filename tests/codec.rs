//! The codecs against what Pillow decodes, and against files that are cut, filled up, spliced and changed.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test stops at the first surprise")]

use std::path::{Path, PathBuf};

use warpfeed::decode::codec::{self, Codec, Color, Head, Limits, Wish};
use warpfeed::{ErrorKind, Result};

#[path = "support/watch.rs"]
mod watch;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases/small")
}

fn files(extension: &str) -> Vec<(String, Vec<u8>)> {
    let names = std::fs::read_dir(folder()).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = names.filter(|n| n.ends_with(extension)).collect();
    names.sort();
    assert!(!names.is_empty(), "{extension}");
    names.into_iter().map(|n| (n.clone(), std::fs::read(folder().join(&n)).unwrap())).collect()
}

/// Decodes into memory that holds `stale`, so that pixels that nobody wrote show.
fn decode_over(stale: u8, bytes: &[u8], color: Color, lenient: bool) -> Result<(Head, Vec<u8>, bool)> {
    let head = codec::head(bytes, Limits::default())?;
    let mut wish = Wish::new(&head, color);
    wish.lenient = lenient;
    let row = head.width as usize * color.channels();
    let mut out = vec![stale; row * head.height as usize];
    let partial = Codec::default().decode_into(bytes, &head, &wish, &mut out, row)?;
    Ok((head, out, partial))
}

fn decode(bytes: &[u8], color: Color, lenient: bool) -> Result<(Vec<u8>, bool)> {
    let (_, first, partial) = decode_over(7, bytes, color, lenient)?;
    let (_, second, _) = decode_over(200, bytes, color, lenient)?;
    assert!(first == second, "pixels that nobody wrote");
    Ok((first, partial))
}

fn difference(a: &[u8], b: &[u8]) -> (u8, f64) {
    assert_eq!(a.len(), b.len());
    let each = || a.iter().zip(b).map(|(a, b)| a.abs_diff(*b));
    (each().max().unwrap(), each().map(f64::from).sum::<f64>() / a.len() as f64)
}

#[test]
fn the_pixels_are_those_of_pillow() {
    for (name, bytes) in [".jpg", ".png", ".webp", ".bmp", ".gif"].iter().flat_map(|e| files(e)) {
        let expected = std::fs::read(folder().join(format!("{name}.rgb"))).unwrap();
        let (pixels, partial) = decode(&bytes, Color::Rgb8, false).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert!(!partial, "{name}");
        let (most, mean) = difference(&pixels, &expected);
        let bound = match name.rsplit_once('.').unwrap().1 {
            "jpg" => (8, 1.0),
            _ if name == "lossy.webp" => (8, 1.0),
            _ => (0, 0.0),
        };
        assert!(most <= bound.0 && mean <= bound.1, "{name}: at most {most}, {mean} in the mean");

        let (gray, _) = decode(&bytes, Color::Gray8, false).unwrap();
        let luma = |p: &[u8]| {
            (19595 * u32::from(p[0]) + 38470 * u32::from(p[1]) + 7471 * u32::from(p[2]) + 32768) >> 16
        };
        assert!(gray.iter().map(|g| u32::from(*g)).eq(pixels.chunks_exact(3).map(luma)), "{name}");
    }
    let (gray, _) = decode(&std::fs::read(folder().join("rgb.png")).unwrap(), Color::Gray8, false).unwrap();
    assert_eq!(gray, std::fs::read(folder().join("rgb.png.l")).unwrap());
}

/// What `changed` may come to: an error, pixels that are said to be partial, or the whole pixels.
fn never_silent(name: &str, what: &str, whole: &[u8], changed: &[u8]) {
    let lenient = if name.ends_with(".jpg") { &[false, true][..] } else { &[false] };
    for &lenient in lenient {
        match decode(changed, Color::Rgb8, lenient) {
            Ok((pixels, false)) => {
                assert!(pixels == whole, "{name}, {what}, lenient {lenient}: other pixels, unsaid")
            }
            Ok((pixels, true)) => assert!(lenient && pixels.len() == whole.len(), "{name}, {what}"),
            Err(e) => {
                let kinds = [ErrorKind::Truncated, ErrorKind::Corrupt, ErrorKind::Empty];
                assert!(kinds.contains(&e.kind()), "{name}, {what}: {e}");
            }
        }
    }
}

#[test]
fn a_file_that_is_cut_anywhere_is_never_whole() {
    for (name, bytes) in [".jpg", ".png", ".webp", ".bmp", ".gif"].iter().flat_map(|e| files(e)) {
        let whole = decode(&bytes, Color::Rgb8, false).unwrap().0;
        // Every byte of a JPEG and of the headers of the others.
        let step = |length: &usize| name.ends_with(".jpg") || *length < 200 || length.is_multiple_of(5);
        for length in (0..bytes.len()).filter(step).chain([bytes.len() - 1]) {
            never_silent(&name, &format!("{length} of {} bytes", bytes.len()), &whole, &bytes[..length]);
        }
    }
}

#[test]
fn a_png_that_lacks_its_end_chunk_alone_is_whole() {
    for (name, bytes) in files(".png") {
        let whole = decode(&bytes, Color::Rgb8, false).unwrap();
        let last = |kind: &[u8]| bytes.windows(4).rposition(|w| w == kind).unwrap() - 4;
        let (end, data) = (last(b"IEND"), last(b"IDAT"));
        assert_eq!(end, bytes.len() - 12);
        for missing in 1..=12 {
            let cut = decode(&bytes[..bytes.len() - missing], Color::Rgb8, false);
            assert!(cut.unwrap() == whole, "{name} without {missing} bytes");
        }
        // Into the checksum of the data, and without its last chunk.
        for length in [end - 1, end - 4, data] {
            let e = decode(&bytes[..length], Color::Rgb8, false).unwrap_err();
            assert_eq!(e.kind(), ErrorKind::Truncated, "{name}, {length} bytes: {e}");
        }
    }
    // All chunks are whole, and rows are missing.
    let header = chunk(b"IHDR", &[0, 0, 1, 2, 0, 0, 0, 2, 8, 0, 0, 0, 0]);
    let short = [b"\x89PNG\r\n\x1a\n", &header[..], &chunk(b"IDAT", &zeros(1))].concat();
    let e = decode(&short, Color::Rgb8, false).unwrap_err();
    assert!(e.kind() == ErrorKind::Truncated && e.message().contains("inside the image's data"), "{e}");
}

#[test]
fn whatever_is_cut_is_called_truncated() {
    for (name, bytes) in [".png", ".webp", ".bmp", ".gif"].iter().flat_map(|e| files(e)) {
        let whole = decode(&bytes, Color::Rgb8, false).unwrap().0;
        for length in 1..bytes.len() {
            match decode(&bytes[..length], Color::Rgb8, false) {
                Ok((pixels, _)) => assert!(pixels == whole, "{name}, {length}"),
                Err(e) => assert_eq!(e.kind(), ErrorKind::Truncated, "{name}, {length} bytes: {e}"),
            }
        }
    }
}

/// Where the data of the first scan begins.
fn first_scan(bytes: &[u8]) -> usize {
    let marker = bytes.windows(2).position(|w| w == [0xff, 0xda]).unwrap();
    marker + 2 + usize::from(u16::from_be_bytes([bytes[marker + 2], bytes[marker + 3]]))
}

#[test]
fn a_jpeg_that_is_cut_and_filled_up_is_never_whole() {
    for (name, bytes) in files(".jpg") {
        let whole = decode(&bytes, Color::Rgb8, false).unwrap().0;
        for length in (first_scan(&bytes)..bytes.len()).step_by(3) {
            let rest = bytes.len() - length;
            let text = b"junk, no JPEG. ".repeat(9);
            let fills =
                [("its zeros", &vec![0; rest]), ("FFs", &vec![0xff; rest]), ("zeros", &vec![0; 4096])];
            let fills = fills.into_iter().chain([("text", &text), ("a whole file", &bytes)]);
            // A third of the cuts, each with one of them.
            let (what, fill) = fills.cycle().nth(length / 3 % 5).unwrap();
            let cut = [&bytes[..length], fill].concat();
            never_silent(&name, &format!("{length} bytes, then {what}"), &whole, &cut);
        }
    }
}

/// The one thing that a cut can hide is an end marker behind it: then as little may be missing unsaid as the docs say.
#[test]
fn a_jpeg_that_is_cut_and_given_an_end_marker_lacks_little() {
    for (name, bytes) in files(".jpg") {
        let whole = decode(&bytes, Color::Rgb8, false).unwrap().0;
        let last_scan = bytes.windows(2).rposition(|w| w == [0xff, 0xda]).unwrap();
        for length in first_scan(&bytes)..bytes.len() - 2 {
            let cut = [&bytes[..length], &[0xff, 0xd9]].concat();
            let missing = bytes.len() - 2 - length;
            match decode(&cut, Color::Rgb8, false) {
                Ok((pixels, partial)) => {
                    let hidden =
                        if name.starts_with("progressive") { length > last_scan } else { missing <= 30 };
                    assert!(!partial && (hidden || pixels == whole), "{name} without {missing} bytes");
                }
                // A header that the end marker cut may seem to be another one.
                Err(e) if name.starts_with("progressive") && e.kind() == ErrorKind::Corrupt => {}
                Err(e) => assert_eq!(e.kind(), ErrorKind::Truncated, "{name} without {missing} bytes: {e}"),
            }
        }
    }
}

#[test]
fn a_jpeg_with_a_hole_is_corrupt_or_truncated() {
    // Large enough that no code is followed without a reason.
    for name in ["444.jpg", "optimized.jpg", "restart_rows.jpg", "progressive_444.jpg"] {
        let bytes = std::fs::read(folder().join(name)).unwrap();
        let start = first_scan(&bytes);
        // In a scan that refines, zeros may be anything.
        let end = bytes[start..].windows(2).position(|w| w[0] == 0xff && w[1] > 0xd7).unwrap() + start;
        for at in (start..end - 64).step_by(7) {
            let mut holed = bytes.clone();
            holed[at..at + 64].fill(0);
            let kind = decode(&holed, Color::Rgb8, false).err().map(|e| e.kind());
            assert!(
                matches!(kind, Some(ErrorKind::Corrupt | ErrorKind::Truncated)),
                "{name}, {at}: {kind:?}"
            );
        }
    }
}

#[test]
fn restart_markers_that_are_missing_or_out_of_turn_are_noticed() {
    let bytes = std::fs::read(folder().join("restart_rows.jpg")).unwrap();
    let places: Vec<_> =
        bytes.windows(2).enumerate().filter(|(_, w)| w[0] == 0xff && w[1] & 0xf8 == 0xd0).collect();
    let places: Vec<usize> = places.into_iter().map(|(at, _)| at).collect();
    assert_eq!(places.len(), 19);
    let mut swapped = bytes.clone();
    swapped.swap(places[3] + 1, places[4] + 1);
    let e = decode(&swapped, Color::Rgb8, false).unwrap_err();
    assert!(e.kind() == ErrorKind::Corrupt && e.message().contains("out of order"), "{e}");
    // An interval is lost, its marker with it.
    let lost = [&bytes[..places[3]], &bytes[places[4]..]].concat();
    assert_eq!(decode(&lost, Color::Rgb8, false).unwrap_err().kind(), ErrorKind::Corrupt);
    // The last intervals are.
    let lost = [&bytes[..places[12]], &[0xff, 0xd9]].concat();
    let e = decode(&lost, Color::Rgb8, false).unwrap_err();
    assert!(e.kind() == ErrorKind::Truncated && e.message().contains("52 of 80 MCUs"), "{e}");
    let (pixels, partial) = decode(&lost, Color::Rgb8, true).unwrap();
    let whole = decode(&bytes, Color::Rgb8, false).unwrap().0;
    let there = 12 * 8 * 32 * 3;
    assert!(partial && pixels[..there] == whole[..there]);
}

#[test]
fn lenient_gives_the_rows_that_are_there() {
    let bytes = std::fs::read(folder().join("444.jpg")).unwrap();
    let whole = decode(&bytes, Color::Rgb8, false).unwrap().0;
    let half = &bytes[..first_scan(&bytes) + (bytes.len() - first_scan(&bytes)) / 2];
    assert_eq!(decode(half, Color::Rgb8, false).unwrap_err().kind(), ErrorKind::Truncated);
    let (pixels, partial) = decode(half, Color::Rgb8, true).unwrap();
    assert!(partial && pixels.len() == whole.len());
    assert!(pixels[..8 * 45 * 3] == whole[..8 * 45 * 3], "the first row of blocks");
    assert!(pixels[36 * 45 * 3..] != whole[36 * 45 * 3..], "the last row");
    let (gray, partial) = decode(half, Color::Gray8, true).unwrap();
    assert!(partial && gray.len() * 3 == pixels.len());
}

#[test]
fn changed_bytes_never_panic_and_never_show_old_memory() {
    let (mut errors, mut total) = (0, 0);
    for (name, bytes) in [".jpg", ".png", ".webp", ".bmp", ".gif"].iter().flat_map(|e| files(e)) {
        let whole = decode(&bytes, Color::Rgb8, false).unwrap().0;
        // A fifth of the bytes, of long files less.
        for at in (0..bytes.len()).step_by(5 + bytes.len() / 1000) {
            let mut changed = bytes.clone();
            changed[at] ^= if at % 2 == 0 { 1 << (at / 2 % 8) } else { 0xff };
            total += 1;
            match decode(&changed, Color::Rgb8, at % 4 < 2) {
                Ok((pixels, _)) if name.ends_with(".png") => assert!(pixels == whole, "{name}, byte {at}"),
                Ok(_) => {}
                Err(_) => errors += 1,
            }
        }
    }
    assert!(errors > total / 10 && errors < total, "{errors} of {total}");
}

#[test]
fn orientations_are_read_wherever_a_format_has_them() {
    for (name, orientation) in [("exif.png", 6), ("exif.webp", 6), ("rgb.png", 1), ("444.jpg", 1)] {
        let head = codec::head(&std::fs::read(folder().join(name)).unwrap(), Limits::default()).unwrap();
        assert_eq!((head.orientation, head.width, head.height), (orientation, 45, 37), "{name}");
    }
}

#[test]
fn a_stride_leaves_what_lies_between_the_rows() {
    for name in ["444.jpg", "rgb.png", "palette.png", "lossless.webp", "rgb.bmp", "still.gif"] {
        let bytes = std::fs::read(folder().join(name)).unwrap();
        let head = codec::head(&bytes, Limits::default()).unwrap();
        for color in [Color::Rgb8, Color::Gray8] {
            let (whole, _) = decode(&bytes, color, false).unwrap();
            let (wish, row) = (Wish::new(&head, color), 45 * color.channels());
            let mut codec = Codec::default();
            let mut out = vec![9; (row + 5) * 36 + row];
            codec.decode_into(&bytes, &head, &wish, &mut out, row + 5).unwrap();
            for (from, to) in whole.chunks(row).zip(out.chunks(row + 5)) {
                assert!(to[..row] == *from && to[row..].iter().all(|b| *b == 9), "{name}");
            }
            let length = out.len() - 1;
            for (out, stride) in
                [(&mut out[..length], row + 5), (&mut [][..], row), (&mut [0; 9999][..], row - 1)]
            {
                let e = codec.decode_into(&bytes, &head, &wish, out, stride).unwrap_err();
                assert_eq!(e.kind(), ErrorKind::InvalidArgument);
            }
            // What came before leaves no trace.
            let pixels = codec.decode(&bytes, &head, &wish).unwrap();
            assert!(pixels.bytes == whole && (pixels.width, pixels.height, pixels.shrink) == (45, 37, 1));
        }
        let other =
            codec::head(&std::fs::read(folder().join("one.jpg")).unwrap(), Limits::default()).unwrap();
        if head.format == other.format {
            let e = Codec::default().decode(&bytes, &other, &Wish::new(&other, Color::Rgb8)).unwrap_err();
            assert_eq!(e.kind(), ErrorKind::InvalidArgument);
        }
    }
}

#[test]
fn what_is_not_read_is_named() {
    let kinds: [(&[u8], ErrorKind, &str); 22] = [
        (b"", ErrorKind::Empty, "0 bytes"),
        (b"\xff", ErrorKind::Truncated, "too few"),
        (b"\x89PNG\r\n", ErrorKind::Truncated, "too few"),
        (b"\x89PNG\n\x1a\n\0\0\0\x0dIHDR", ErrorKind::Corrupt, "text mode"),
        (b"RIFF\x24\0\0\0WAVEfmt ", ErrorKind::Unsupported, "WAVE"),
        (b"II*\0\x08\0\0\0\0\0\0\0", ErrorKind::Unsupported, "TIFF"),
        (b"\0\0\0\x1cftypheic\0\0\0\0mif1heic", ErrorKind::Unsupported, "HEIC"),
        (b"\0\0\0\x1cftypavif\0\0\0\0mif1avif", ErrorKind::Unsupported, "AVIF"),
        (b"\0\0\0\x1cftypisom\0\0\0\0", ErrorKind::Unsupported, "isom"),
        (b"\0\0\0\x0cjP  \r\n\x87\n\0\0\0\x14ftypjp2 ", ErrorKind::Unsupported, "JPEG 2000"),
        (b"\xff\x0a\xfa\x1f\x01\x91\x08", ErrorKind::Unsupported, "JPEG XL"),
        (b"8BPS\0\x01\0\0\0\0\0\0", ErrorKind::Unsupported, "PSD"),
        (b"P6\n2 2\n255\nabcdefghijkl", ErrorKind::Unsupported, "PPM"),
        (b"%PDF-1.7\n%\xe2\xe3\xcf\xd3", ErrorKind::Unsupported, "PDF"),
        (b"<!DOCTYPE html><html><body>404", ErrorKind::Unsupported, "HTML page that begins \"<!DOCTYPE"),
        (b"\xef\xbb\xbf<?xml version=\"1.0\"?><Error>", ErrorKind::Unsupported, "XML"),
        (b"version https://git-lfs.github.com/spec/v1\n", ErrorKind::Unsupported, "Git LFS pointer"),
        (b"{\"error\": \"not found\"}", ErrorKind::Unsupported, "JSON"),
        (b"BMW is a name, not a bitmap", ErrorKind::Unsupported, "text that begins \"BMW"),
        ("Zugriff verweigert: für Sie".as_bytes(), ErrorKind::Unsupported, "für"),
        (&[0; 99], ErrorKind::Unsupported, "99 bytes, all 0"),
        (b"\x07\x81\x02\xff\xfe\xa0", ErrorKind::Unsupported, "07 81 02 ff"),
    ];
    for (bytes, kind, text) in kinds {
        let e = codec::head(bytes, Limits::default()).unwrap_err();
        assert!(e.kind() == kind && e.message().contains(text), "{:?}: {e}", e.kind());
        let e = codec::Format::of(bytes).unwrap_err();
        assert_eq!(e.kind(), kind);
    }

    let jpeg = std::fs::read(folder().join("444.jpg")).unwrap();
    let frame = jpeg.windows(2).position(|w| w == [0xff, 0xc0]).unwrap();
    let features: [(usize, &[u8], &str); 9] = [
        (1, &[0xc3], "lossless"),
        (1, &[0xc5], "hierarchical"),
        (1, &[0xc9], "arithmetic"),
        (1, &[0xca], "arithmetic"),
        (1, &[0xf7], "JPEG-LS"),
        (4, &[12], "12-bit"),
        (4, &[16], "16-bit"),
        (5, &[0, 0], "DNL"),
        (9, &[2], "2 components"),
    ];
    for (at, change, text) in features {
        let mut jpeg = jpeg.clone();
        jpeg[frame + at..][..change.len()].copy_from_slice(change);
        let e = codec::head(&jpeg, Limits::default()).unwrap_err();
        assert!(e.kind() == ErrorKind::Unsupported && e.message().contains(text), "{e}");
    }
}

/// `body` as a chunk of a PNG.
fn chunk(kind: &[u8], body: &[u8]) -> Vec<u8> {
    let mut crc = u32::MAX;
    for byte in kind.iter().chain(body) {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = if crc & 1 == 1 { crc >> 1 ^ 0xedb8_8320 } else { crc >> 1 };
        }
    }
    let length = u32::try_from(body.len()).unwrap();
    [&length.to_be_bytes(), kind, body, &(!crc).to_be_bytes()].concat()
}

/// 1 + 258 × `runs` zeros, compressed.
fn zeros(runs: u32) -> Vec<u8> {
    let (mut out, mut bits, mut count) = (vec![0x78, 0x9c], 0_u64, 0);
    let mut put = |value: u64, n: u32| {
        bits |= value << count;
        count += n;
        while count >= 8 {
            out.push(bits as u8);
            (bits, count) = (bits >> 8, count - 8);
        }
    };
    put(0b011, 3); // the last block, of fixed codes
    put(0b0000_1100, 8); // a zero
    (0..runs).for_each(|_| put(0b1010_0011, 8 + 5)); // 258 more of it
    put(0, 7 + 8); // the end
    let sum = (1 + 258 * u64::from(runs)) % 65521;
    out.extend_from_slice(&[(sum >> 8) as u8, sum as u8, 0, 1]);
    out
}

/// A 1 × 1 PNG with chunks before its pixel.
fn png_with(chunks: &[u8]) -> Vec<u8> {
    let header = chunk(b"IHDR", &[0, 0, 0, 1, 0, 0, 0, 1, 8, 0, 0, 0, 0]);
    let pixel = chunk(b"IDAT", b"\x78\x9c\x63\x60\0\0\0\x02\0\x01");
    [b"\x89PNG\r\n\x1a\n", &header[..], chunks, &pixel, &chunk(b"IEND", b"")].concat()
}

#[test]
fn a_file_too_short_for_its_pixels_is_known_by_its_head() {
    let head = |bytes: &[u8]| codec::head(bytes, Limits::default());
    let mut png = Vec::new();
    let mut encoder = png::Encoder::new(&mut png, 4000, 4000);
    encoder.set_color(png::ColorType::Grayscale);
    encoder.set_compression(png::Compression::High);
    encoder.write_header().unwrap().write_image_data(&vec![0; 4000 * 4000]).unwrap();
    let mut jpeg = Vec::new();
    let mut encoder = jpeg_encoder::Encoder::new(&mut jpeg, 50);
    encoder.set_optimized_huffman_tables(true);
    encoder.encode(&vec![0; 4000 * 4000], 4000, 4000, jpeg_encoder::ColorType::Luma).unwrap();
    let bmp = std::fs::read(folder().join("rgb.bmp")).unwrap();
    // What nothing can be compressed better than, and how near to it a plain image comes.
    for (name, bytes, least, near) in [
        ("PNG", &png, 4000 * 4000 / 1032 + 1, 1.6),
        ("JPEG", &jpeg, 500 * 500 / 8, 2.1),
        ("BMP", &bmp, 45 * 37 * 3, 1.1),
    ] {
        assert!(
            bytes.len() >= least && (bytes.len() as f64) < near * least as f64,
            "{name}: {}",
            bytes.len()
        );
        let whole = head(bytes).unwrap();
        assert_eq!(head(&bytes[..least]).unwrap(), whole, "{name}");
        let e = head(&bytes[..least - 1]).unwrap_err();
        let what = format!("take {least} bytes at least, the file has {}", least - 1);
        assert!(e.kind() == ErrorKind::Truncated && e.message().contains(&what), "{name}: {e}");
    }
    assert!(decode(&jpeg[..500 * 500 / 8], Color::Gray8, true).unwrap().1, "so much is let pass");

    // A few bytes that ask for 507 MB.
    let mut bomb = png_with(&[]);
    bomb[16..24].copy_from_slice(&[0, 0, 0x32, 0xc8, 0, 0, 0x32, 0xc8]);
    let e = head(&bomb).unwrap_err();
    assert!(e.kind() == ErrorKind::Truncated && e.message().contains("13000x13000 pixels"), "{e}");
}

#[test]
fn an_image_that_memory_has_no_room_for_is_an_error() {
    watch::alone("an_image_that_memory_has_no_room_for_is_an_error", || {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmSize:")).unwrap();
        let now: u64 = line.trim().strip_suffix(" kB").unwrap().parse().unwrap();
        let most = (now << 10) + (512 << 20);
        let limit = libc::rlimit { rlim_cur: most, rlim_max: most };
        // SAFETY: a system call with a pointer to a live struct of its type.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, &raw const limit) }, 0);
        let mut gif = std::fs::read(folder().join("still.gif")).unwrap();
        let small = codec::head(&gif, Limits::default()).unwrap();
        let mut limits = Limits::default();
        limits.pixels = u64::MAX;
        let mut codec = Codec::default();
        for color in [Color::Rgb8, Color::Gray8] {
            gif[6..10].copy_from_slice(&[0x00, 0x7d, 0x00, 0x7d]);
            let head = codec::head(&gif, limits).unwrap();
            let e = codec.decode(&gif, &head, &Wish::new(&head, color)).unwrap_err();
            let what =
                format!("{} bytes of memory for a GIF of 32000x32000", 32_000 * 32_000 * color.channels());
            assert!(e.kind() == ErrorKind::LimitExceeded && e.message().contains(&what), "{e}");
            gif[6..10].copy_from_slice(&[45, 0, 37, 0]);
            let pixels = codec.decode(&gif, &small, &Wish::new(&small, color)).unwrap();
            assert!(pixels.bytes == decode(&gif, color, false).unwrap().0);
        }
    });
}

#[test]
fn bombs_are_refused_or_ignored_in_little_memory() {
    watch::alone("bombs_are_refused_or_ignored_in_little_memory", || {
        let peak = || {
            let status = std::fs::read_to_string("/proc/self/status").unwrap();
            let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
            line.trim().strip_suffix(" kB").unwrap().parse::<usize>().unwrap() << 10
        };
        let mut jpeg = std::fs::read(folder().join("444.jpg")).unwrap();
        let frame = jpeg.windows(2).position(|w| w == [0xff, 0xc0]).unwrap();
        jpeg[frame + 5..frame + 9].copy_from_slice(&[0xff, 0xdc, 0xff, 0xdc]);
        let mut bmp = std::fs::read(folder().join("rgb.bmp")).unwrap();
        bmp[18..26].copy_from_slice(&[0, 0, 1, 0, 0, 0, 1, 0]);
        let mut gif = std::fs::read(folder().join("still.gif")).unwrap();
        gif[6..10].fill(0xff);
        let webp = [b"RIFF\x16\0\0\0WEBPVP8X\x0a\0\0\0", &[0; 4][..], &[0xff; 6]].concat();
        let mut frame = std::fs::read(folder().join("still.gif")).unwrap();
        let descriptor = frame.windows(5).position(|w| w == [0x2c, 0, 0, 0, 0]).unwrap();
        frame[descriptor + 5..descriptor + 9].fill(0xff);
        // 400 MiB of zeros, in 2.6 MB.
        let bomb = zeros(1 << 20 | 1 << 19);
        let profile = png_with(&chunk(b"iCCP", &[b"x\0\0", &bomb[..]].concat()));
        let text = png_with(&chunk(b"zTXt", &[b"x\0\0", &bomb[..]].concat()));
        let small = png_with(&[]);
        assert_eq!(decode(&small, Color::Rgb8, false).unwrap().0, [0, 0, 0]);
        let row = chunk(b"IDAT", &zeros(1));
        let header = chunk(b"IHDR", &[0, 0, 1, 2, 0, 0, 0, 1, 8, 0, 0, 0, 0]);
        let row = [b"\x89PNG\r\n\x1a\n", &header[..], &row, &chunk(b"IEND", b"")].concat();
        assert_eq!(decode(&row, Color::Rgb8, false).unwrap().0, [0; 3 * 258], "the zeros are well made");

        let before = peak();
        for (name, bytes) in [("jpeg", &jpeg), ("bmp", &bmp), ("gif", &gif), ("webp", &webp)] {
            let start = std::time::Instant::now();
            let e = decode(bytes, Color::Rgb8, true).unwrap_err();
            assert!(start.elapsed().as_millis() < 100, "{name}");
            assert_eq!(e.kind(), ErrorKind::LimitExceeded, "{name}: {e}");
        }
        let e = decode(&frame, Color::Rgb8, false).unwrap_err();
        assert!(
            matches!(e.kind(), ErrorKind::LimitExceeded | ErrorKind::Corrupt | ErrorKind::Truncated),
            "{e}"
        );
        for (name, bytes) in [("profile", &profile), ("text", &text)] {
            match decode(bytes, Color::Rgb8, false) {
                Ok((pixels, _)) => assert_eq!(pixels, [0, 0, 0], "{name}"),
                Err(e) => panic!("{name}: {e}"),
            }
        }
        let grown = peak() - before;
        assert!(grown < 64 << 20, "memory grew by {grown} bytes");
    });
    let mut limits = Limits::default();
    assert_eq!((limits.bytes, limits.pixels), (256 << 20, 178_956_970));
    let bytes = std::fs::read(folder().join("rgb.png")).unwrap();
    limits.pixels = 45 * 37;
    assert!(codec::head(&bytes, limits).is_ok());
    limits.pixels -= 1;
    assert_eq!(codec::head(&bytes, limits).unwrap_err().kind(), ErrorKind::LimitExceeded);
    limits = Limits::default();
    limits.bytes = bytes.len() as u64 - 1;
    assert_eq!(codec::head(&bytes, limits).unwrap_err().kind(), ErrorKind::LimitExceeded);
}

//! The codecs against what Pillow decodes, and against files that are cut, filled up, spliced and changed.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test stops at the first surprise")]

use std::path::{Path, PathBuf};

use warpfeed::decode::codec::{self, Codec, Color, Format, Head, Limits, Wish};
use warpfeed::{ErrorKind, Result};

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
        println!("{name}: {most} {mean:.3}");
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
    for lenient in [false, true] {
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
        for length in 0..bytes.len() {
            never_silent(&name, &format!("{length} of {} bytes", bytes.len()), &whole, &bytes[..length]);
        }
    }
}

#[test]
fn a_jpeg_that_is_cut_and_filled_up_is_never_whole() {
    let (mut silent, mut total) = (0, 0);
    for (name, bytes) in files(".jpg") {
        let whole = decode(&bytes, Color::Rgb8, false).unwrap().0;
        let start = bytes.windows(2).position(|w| w == [0xff, 0xda]).unwrap();
        for length in start..bytes.len() {
            let fill = |with: &[u8]| [&bytes[..length], with].concat();
            let rest = bytes.len() - length;
            never_silent(&name, &format!("{length} bytes, then zeros"), &whole, &fill(&vec![0; rest]));
            never_silent(&name, &format!("{length} bytes, then FFs"), &whole, &fill(&vec![0xff; rest]));
            never_silent(&name, &format!("{length} bytes, then 4096 zeros"), &whole, &fill(&[0; 4096]));
            never_silent(&name, &format!("{length} bytes, then a file"), &whole, &fill(&bytes));
            if let Ok((pixels, false)) = decode(&fill(&b"junk, no JPEG. ".repeat(9)), Color::Rgb8, false) {
                if pixels != whole {
                    println!("{name} {length}");
                    silent += 1;
                }
            }
            total += 1;
        }
    }
    println!("{silent} of {total}");
}

//! What a file is, by its bytes.

use std::fmt::Write as _;

use super::Format;
use crate::error::{Error, ErrorKind, Result};

const PNG: &[u8] = b"\x89PNG\r\n\x1a\n";

/// Formats that are known by how they begin, and not read.
const OTHERS: [(&[u8], &str); 36] = [
    (b"II*\0", "TIFF"),
    (b"MM\0*", "TIFF"),
    (b"II+\0", "BigTIFF"),
    (b"MM\0+", "BigTIFF"),
    (b"\0\0\0\x0cjP  \r\n\x87\n", "JPEG 2000"),
    (b"\xff\x4f\xff\x51", "JPEG 2000 (codestream)"),
    (b"\xff\x0a", "JPEG XL (codestream)"),
    (b"\0\0\0\x0cJXL \r\n\x87\n", "JPEG XL"),
    (b"II\xbc", "JPEG XR"),
    (b"8BPS", "Photoshop (PSD)"),
    (b"gimp xcf", "GIMP (XCF)"),
    (b"\0\0\x01\0", "ICO"),
    (b"\0\0\x02\0", "CUR"),
    (b"icns", "ICNS"),
    (b"DDS ", "DDS"),
    (b"#?RADIANCE", "Radiance HDR"),
    (b"\x76\x2f\x31\x01", "OpenEXR"),
    (b"qoif", "QOI"),
    (b"farbfeld", "farbfeld"),
    (b"FLIF", "FLIF"),
    (b"BPG\xfb", "BPG"),
    (b"\x8aMNG\r\n\x1a\n", "MNG"),
    (b"\x8bJNG\r\n\x1a\n", "JNG"),
    (b"SIMPLE  =", "FITS"),
    (b"\x93NUMPY", "NumPy (npy)"),
    (b"\x89HDF\r\n\x1a\n", "HDF5"),
    (b"%PDF", "PDF"),
    (b"%!PS", "PostScript"),
    (b"PK\x03\x04", "ZIP"),
    (b"\x1f\x8b", "gzip"),
    (b"\x28\xb5\x2f\xfd", "zstd"),
    (b"BZh", "bzip2"),
    (b"7z\xbc\xaf\x27\x1c", "7z"),
    (b"\xfd7zXZ\0", "xz"),
    (b"\x1a\x45\xdf\xa3", "Matroska or WebM"),
    (b"OggS", "Ogg"),
];

/// The format of `bytes`, by how they begin.
///
/// # Errors
/// [`ErrorKind::Empty`]; [`ErrorKind::Unsupported`], naming what it is as far as that shows;
/// [`ErrorKind::Truncated`] where a signature is cut.
pub(super) fn format(bytes: &[u8]) -> Result<Format> {
    if bytes.is_empty() {
        return Err(Error::new(ErrorKind::Empty, "0 bytes where an image should be"));
    }
    let found = match bytes {
        [0xff, 0xd8, ..] => Some(Format::Jpeg),
        _ if bytes.starts_with(PNG) => Some(Format::Png),
        _ if bytes.starts_with(b"GIF87a") || bytes.starts_with(b"GIF89a") => Some(Format::Gif),
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => Some(Format::WebP),
        // The size of the second header tells it from a text that begins so.
        [
            b'B',
            b'M',
            _,
            _,
            _,
            _,
            0,
            0,
            0,
            0,
            _,
            _,
            _,
            _,
            12 | 16 | 40 | 52 | 56 | 64 | 108 | 124,
            0,
            0,
            0,
            ..,
        ] => Some(Format::Bmp),
        _ => None,
    };
    if let Some(found) = found {
        return Ok(found);
    }
    let cut = |signature: &[u8]| bytes.len() < signature.len() && signature.starts_with(bytes);
    let starts: [(&[u8], usize); 6] =
        [(b"\xff\xd8", 2), (PNG, 8), (b"GIF87a", 6), (b"GIF89a", 6), (b"RIFF", 12), (b"BM", 18)];
    for (start, least) in starts {
        if cut(start) || (bytes.len() < least && bytes.starts_with(start)) {
            let n = bytes.len();
            return Err(Error::new(
                ErrorKind::Truncated,
                format!("{n} bytes, too few to know the format by"),
            ));
        }
    }
    if bytes.starts_with(b"\x89PNG") {
        let what = "a PNG whose first bytes were changed, as a transfer in text mode does";
        return Err(Error::new(ErrorKind::Corrupt, what));
    }
    Err(Error::new(ErrorKind::Unsupported, format!("neither JPEG, PNG, WebP, BMP nor GIF: {}", guess(bytes))))
}

/// What it may be instead.
fn guess(bytes: &[u8]) -> String {
    if let Some((_, name)) = OTHERS.iter().find(|(start, _)| bytes.starts_with(start)) {
        return (*name).to_string();
    }
    match bytes {
        [_, _, _, _, b'f', b't', b'y', b'p', brand @ ..] => {
            return match brand.get(..4) {
                Some(b"avif" | b"avis") => "AVIF".to_string(),
                Some(b"heic" | b"heix" | b"heim" | b"heis" | b"hevc" | b"hevx" | b"mif1" | b"msf1") => {
                    "HEIC/HEIF".to_string()
                }
                brand => {
                    format!("MP4 or another ISO media file, brand {}", quoted(brand.unwrap_or_default()))
                }
            };
        }
        [b'R', b'I', b'F', b'F', _, _, _, _, kind @ ..] => {
            return format!("RIFF of the kind {}", quoted(&kind[..kind.len().min(4)]));
        }
        [b'P', b'1'..=b'7', b' ' | b'\t' | b'\r' | b'\n', ..] => {
            return "PNM (PBM, PGM, PPM or PAM)".to_string();
        }
        _ => {}
    }
    if bytes.iter().all(|b| *b == 0) {
        return format!("{} bytes, all 0", bytes.len());
    }
    let first = &bytes[..bytes.len().min(48)];
    // A character that the limit cuts in two is no sign of anything else.
    let text = first.utf8_chunks().next().map_or("", |chunk| chunk.valid());
    let plain = |c: char| !c.is_control() || matches!(c, '\t' | '\r' | '\n' | '\u{c}');
    if first.len() - text.len() < 4 && text.chars().all(plain) {
        let start = text.trim_start_matches('\u{feff}').trim_start().to_ascii_lowercase();
        let kind = match start.as_str() {
            s if s.starts_with("version https://git-lfs") => "a Git LFS pointer instead of the file",
            s if s.starts_with("<?xml") => "XML text",
            s if s.starts_with("<svg") => "SVG",
            s if s.starts_with("<!doctype html") || s.starts_with("<html") => "an HTML page",
            s if s.starts_with('{') || s.starts_with('[') => "text, perhaps JSON,",
            _ => "text",
        };
        return format!("{kind} that begins {text:?}");
    }
    let mut hex = "it begins with the bytes".to_string();
    for byte in &first[..first.len().min(12)] {
        let _ = write!(hex, " {byte:02x}");
    }
    hex
}

fn quoted(bytes: &[u8]) -> String {
    format!("\"{}\"", bytes.escape_ascii())
}

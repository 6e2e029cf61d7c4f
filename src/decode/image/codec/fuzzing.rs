//! What must hold of the codecs whatever they are given: called by fuzz targets and by the tests.

#![cfg_attr(not(fuzzing), allow(unreachable_pub, reason = "public for fuzz targets alone"))]

use super::{Codec, Color, Format, Head, Limits, Wish, head};
use crate::error::{ErrorKind, Result};

/// Images are small, so that a file that takes long shows.
const LIMITS: Limits = Limits { bytes: 1 << 16, pixels: 1 << 14 };

/// The pixels, and whether the file ended early. Decoded twice, over different bytes, so that a pixel that nobody wrote shows.
fn decoded(bytes: &[u8], head: &Head, color: Color, lenient: bool) -> Result<(Vec<u8>, bool)> {
    let wish = Wish { lenient, ..Wish::new(head, color) };
    let row = head.width as usize * color.channels();
    let mut codec = Codec::default();
    let mut run = |stale: u8| {
        let mut out = vec![stale; row * head.height as usize];
        let partial = codec.decode_into(bytes, head, &wish, &mut out, row);
        partial.map(|partial| (out, partial))
    };
    let first = run(7);
    let second = run(200);
    match (&first, &second) {
        (Ok((a, _)), Ok((b, _))) => assert!(a == b, "pixels that nobody wrote: {head:?} {color:?}"),
        (Err(a), Err(b)) => assert_eq!(a.kind(), b.kind(), "the same file, another error"),
        _ => unreachable!("{first:?} {second:?}"),
    }
    first
}

/// The errors that the bytes of a file can have.
fn known(kind: ErrorKind) -> bool {
    use ErrorKind::{Corrupt, Empty, LimitExceeded, Truncated, Unsupported};
    matches!(kind, Corrupt | Empty | LimitExceeded | Truncated | Unsupported)
}

fn file(bytes: &[u8]) {
    let head = match head(bytes, LIMITS) {
        Ok(head) => head,
        Err(e) => return assert!(known(e.kind()), "{e}"),
    };
    assert!(head.width > 0 && head.height > 0 && (1..=8).contains(&head.orientation), "{head:?}");
    assert!(u64::from(head.width) * u64::from(head.height) <= LIMITS.pixels, "{head:?}");
    for color in [Color::Rgb8, Color::Gray8] {
        match (decoded(bytes, &head, color, false), decoded(bytes, &head, color, true)) {
            (Ok((strict, partial)), lenient) => {
                assert!(!partial, "a file that ended early is an error");
                let Ok(lenient) = lenient else {
                    unreachable!("refused where more is let pass: {lenient:?}")
                };
                assert!(lenient == (strict, false), "the same pixels");
            }
            (Err(e), Ok((_, partial))) => {
                assert!(known(e.kind()) && partial && head.format == Format::Jpeg, "{e}");
            }
            (Err(strict), Err(lenient)) => assert!(known(strict.kind()) && known(lenient.kind())),
        }
    }
}

/// A JPEG.
pub fn jpeg(bytes: &[u8]) {
    if Format::of(bytes).is_ok_and(|format| format == Format::Jpeg) {
        file(bytes);
    }
}

/// A PNG.
pub fn png(bytes: &[u8]) {
    if Format::of(bytes).is_ok_and(|format| format == Format::Png) {
        file(bytes);
    }
}

/// Anything else: the other formats, and what is none.
pub fn other(bytes: &[u8]) {
    if Format::of(bytes).is_ok_and(|format| matches!(format, Format::Jpeg | Format::Png)) {
        return;
    }
    file(bytes);
}

/// The same EXIF data in a JPEG and in a PNG.
pub fn exif(bytes: &[u8]) {
    let exif = &bytes[..bytes.len().min(60_000)];
    let length = exif.len() as u16 + 8;
    let app1 = [b"\xff\xd8\xff\xe1", &length.to_be_bytes()[..], b"Exif\0\0", exif].concat();
    let gray = b"\xff\xc0\0\x0b\x08\0\x08\0\x08\x01\x01\x11\0\xff\xda\0\x08\x01\x01\0\0\x3f\0";
    let jpeg = [&app1[..], gray].concat();
    let ihdr = b"\0\0\0\x0dIHDR\0\0\0\x08\0\0\0\x08\x08\0\0\0\0\0\0\0\0";
    let length = (exif.len() as u32).to_be_bytes();
    let png =
        [b"\x89PNG\r\n\x1a\n", &ihdr[..], &length, b"eXIf", exif, b"\0\0\0\0", b"\0\0\0\0IDAT"].concat();
    let orientation = |file: &[u8]| head(file, LIMITS).map(|head| head.orientation);
    match (orientation(&jpeg), orientation(&png)) {
        (Ok(a), Ok(b)) => assert!(a == b && (1..=8).contains(&a), "{a} {b}"),
        unread => unreachable!("{unread:?}"),
    }
}

//! The markers of a JPEG file: what its frame says, where its scans lie, how it ends.

use std::ops::Range;

use image::metadata::Orientation;
use memchr::memchr;

use crate::error::{Error, ErrorKind, Result};

/// More scans than any encoder makes; each one costs a pass over the whole image.
const MAX_SCANS: usize = 100;

/// How samples become red, green and blue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Model {
    Gray,
    YCbCr,
    Rgb,
    Cmyk,
    Ycck,
}

/// One component of a frame.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Part {
    pub(super) id: u8,
    /// Sampling factors, 1 to 4.
    pub(super) h: u8,
    pub(super) v: u8,
}

/// What comes before the first scan.
#[derive(Debug, Clone, Default)]
pub(super) struct Frame {
    pub(super) width: u16,
    pub(super) height: u16,
    pub(super) progressive: bool,
    parts: [Part; 4],
    count: usize,
    /// The transform that an Adobe segment names, and where that segment lies.
    pub(super) adobe: Option<(u8, Range<usize>)>,
    jfif: bool,
    /// 1 to 8.
    pub(super) orientation: u8,
}

impl Frame {
    pub(super) fn parts(&self) -> &[Part] {
        &self.parts[..self.count]
    }

    /// The rules of libjpeg.
    pub(super) fn model(&self) -> Model {
        let adobe = self.adobe.as_ref().map(|(transform, _)| *transform);
        match (self.count, adobe) {
            (1, _) => Model::Gray,
            (3, Some(0)) => Model::Rgb,
            (3, None) if !self.jfif && self.named_rgb() => Model::Rgb,
            (3, _) => Model::YCbCr,
            (_, None | Some(0)) => Model::Cmyk,
            _ => Model::Ycck,
        }
    }

    pub(super) fn named_rgb(&self) -> bool {
        self.parts().iter().map(|p| p.id).eq(*b"RGB")
    }

    /// The largest sampling factors.
    pub(super) fn sampling(&self) -> (usize, usize) {
        let most = |f: fn(&Part) -> u8| self.parts().iter().map(f).max().unwrap_or(1).into();
        (most(|p| p.h), most(|p| p.v))
    }

    /// Blocks of the component that has the most.
    pub(super) fn blocks(&self) -> u64 {
        let (h, v) = self.sampling();
        let side =
            |size: u16, own: u8, most: usize| (usize::from(size) * usize::from(own)).div_ceil(most * 8);
        let blocks = |part: &Part| (side(self.width, part.h, h) * side(self.height, part.v, v)) as u64;
        self.parts().iter().map(blocks).max().unwrap_or(0)
    }
}

/// One scan.
#[derive(Debug, Clone, Default)]
pub(super) struct Scan {
    parts: [usize; 4],
    /// The DC and AC tables of each part.
    pub(super) tables: [(usize, usize); 4],
    count: usize,
    /// The band of coefficients and the bit that it refines.
    pub(super) band: (u8, u8),
    pub(super) high: u8,
    pub(super) low: u8,
    /// MCUs between restart markers; 0 for none.
    pub(super) interval: usize,
    /// The entropy-coded data.
    pub(super) data: Range<usize>,
    /// Restart markers that lie in the data, and whether they are numbered in turn.
    pub(super) restarts: usize,
    pub(super) in_turn: bool,
}

impl Scan {
    /// The frame's components that are in it, by number.
    pub(super) fn parts(&self) -> &[usize] {
        &self.parts[..self.count]
    }

    /// Columns and rows of MCUs.
    pub(super) fn mcus(&self, frame: &Frame) -> (usize, usize) {
        let (width, height) = (usize::from(frame.width), usize::from(frame.height));
        let (h, v) = frame.sampling();
        match self.parts() {
            &[one] => {
                let part = frame.parts()[one];
                (
                    (width * usize::from(part.h)).div_ceil(h * 8),
                    (height * usize::from(part.v)).div_ceil(v * 8),
                )
            }
            _ => (width.div_ceil(h * 8), height.div_ceil(v * 8)),
        }
    }

    /// Restart markers that the data should hold.
    pub(super) fn restarts_due(&self, frame: &Frame) -> usize {
        let (columns, rows) = self.mcus(frame);
        (columns * rows).checked_div(self.interval).map_or(0, |_| (columns * rows - 1) / self.interval)
    }
}

/// What [`read`] meets on its way.
pub(super) enum Event<'a> {
    /// A segment of Huffman tables.
    Huffman(&'a [u8]),
    /// The first scan follows: the frame is known.
    Ready,
    Scan(&'a Scan),
}

/// How a file ends.
#[derive(Debug)]
pub(super) struct Outline {
    pub(super) frame: Frame,
    /// Whether an end marker follows the last scan.
    pub(super) eoi: bool,
    /// Where the last scan's data ends.
    pub(super) end: usize,
}

/// Goes through the markers until the image's end, or until `visit` returns false.
///
/// # Errors
/// What makes the headers unreadable or the image one that is not decoded here; what `visit` returns.
pub(super) fn read(
    bytes: &[u8],
    mut visit: impl FnMut(&Frame, Event<'_>) -> Result<bool>,
) -> Result<Outline> {
    let mut frame = Frame { orientation: 1, ..Frame::default() };
    let mut outline = Outline { frame: Frame::default(), eoi: false, end: 0 };
    let (mut at, mut interval, mut scans) = (2, 0, 0);
    // Behind the first scan, whatever does not fit ends the image: it may be another one's data.
    loop {
        let Some((code, next)) = marker(bytes, at, scans > 0) else {
            if scans == 0 {
                return Err(truncated("the file ends before the image's data"));
            }
            break;
        };
        at = next;
        match code {
            0xd9 if scans > 0 => {
                outline.eoi = true;
                break;
            }
            0xd9 => return Err(corrupt("the end marker comes before the image's data")),
            0x01 | 0xd0..=0xd7 if scans == 0 => continue,
            0x01 | 0xd0..=0xd8 if scans > 0 => break,
            0xd8 => return Err(corrupt("a second start marker comes before the image's data")),
            _ => {}
        }
        let Some(body) = segment(bytes, at) else {
            if scans == 0 {
                return Err(truncated(format!("the file ends inside the segment of marker FF{code:02X}")));
            }
            break;
        };
        let range = at + 2..at + 2 + body.len();
        at = range.end;
        match code {
            0xc4 if !visit(&frame, Event::Huffman(body))? => break,
            0xc4 => {}
            0xc0..=0xcf if code != 0xcc => {
                if frame.count > 0 {
                    return Err(corrupt("it has two frame headers"));
                }
                start_of_frame(code, body, &mut frame)?;
            }
            0xf7 if frame.count == 0 => return Err(unsupported("JPEG-LS")),
            0xdd => match body {
                &[high, low] => interval = usize::from(u16::from_be_bytes([high, low])),
                _ => return Err(corrupt("its restart interval is malformed")),
            },
            0xe0 if body.starts_with(b"JFIF\0") => frame.jfif = true,
            0xe1 if scans == 0 => {
                if let Some(exif) = body.strip_prefix(b"Exif\0\0") {
                    frame.orientation = Orientation::from_exif_chunk(exif).map_or(1, Orientation::to_exif);
                }
            }
            0xee if scans == 0 && body.len() >= 12 && body.starts_with(b"Adobe") => {
                frame.adobe = Some((body[11], range.start - 4..range.end));
            }
            0xda => {
                let mut scan = start_of_scan(body, &frame)?;
                if scans == 0 && !visit(&frame, Event::Ready)? {
                    break;
                }
                scans += 1;
                if scans > MAX_SCANS {
                    return Err(Error::new(ErrorKind::LimitExceeded, "a JPEG of more than 100 scans"));
                }
                scan.interval = interval;
                entropy_data(bytes, at, &mut scan);
                (at, outline.end) = (scan.data.end, scan.data.end);
                if !visit(&frame, Event::Scan(&scan))? {
                    break;
                }
            }
            _ => {}
        }
    }
    outline.frame = frame;
    Ok(outline)
}

/// The next marker's code, and the position behind it. Bytes before it are skipped, as libjpeg does, unless `here`.
fn marker(bytes: &[u8], mut at: usize, here: bool) -> Option<(u8, usize)> {
    loop {
        let skipped = memchr(0xff, bytes.get(at..)?)?;
        if here && skipped > 0 {
            return None;
        }
        let code = at + skipped + 1 + bytes[at + skipped + 1..].iter().position(|b| *b != 0xff)?;
        if bytes[code] != 0 {
            return Some((bytes[code], code + 1));
        }
        if here {
            return None;
        }
        at = code + 1;
    }
}

/// The body of the segment whose length lies at `at`.
fn segment(bytes: &[u8], at: usize) -> Option<&[u8]> {
    let length = usize::from(u16::from_be_bytes(*bytes.get(at..)?.first_chunk()?));
    bytes.get(at + 2..at + length.max(2))
}

fn start_of_frame(code: u8, body: &[u8], frame: &mut Frame) -> Result<()> {
    match code {
        0xc0..=0xc2 => {}
        0xc3 => return Err(unsupported("lossless coding")),
        0xc5..=0xc7 => return Err(unsupported("hierarchical coding")),
        0xc9..=0xcb | 0xcd..=0xcf => return Err(unsupported("arithmetic coding")),
        _ => return Err(unsupported(format!("the frame type FF{code:02X}"))),
    }
    let &[precision, y1, y0, x1, x0, count, ref parts @ ..] = body else {
        return Err(corrupt("its frame header is too short"));
    };
    if precision != 8 {
        return Err(unsupported(format!("{precision}-bit samples")));
    }
    (frame.width, frame.height) = (u16::from_be_bytes([x1, x0]), u16::from_be_bytes([y1, y0]));
    frame.progressive = code == 0xc2;
    frame.count = match count {
        1 | 3 | 4 => count.into(),
        _ => return Err(unsupported(format!("{count} components"))),
    };
    match (frame.width, frame.height) {
        (0, _) => return Err(corrupt("its width is 0")),
        (_, 0) => return Err(unsupported("a height that a DNL marker gives behind the image")),
        _ => {}
    }
    if parts.len() != 3 * frame.count {
        return Err(corrupt("its frame header has another length than its components need"));
    }
    for (part, bytes) in frame.parts.iter_mut().zip(parts.chunks_exact(3)) {
        *part = Part { id: bytes[0], h: bytes[1] >> 4, v: bytes[1] & 15 };
        if !(1..=4).contains(&part.h) || !(1..=4).contains(&part.v) {
            return Err(corrupt(format!("its sampling factors are {}x{}", part.h, part.v)));
        }
    }
    Ok(())
}

fn start_of_scan(body: &[u8], frame: &Frame) -> Result<Scan> {
    if frame.count == 0 {
        return Err(corrupt("it has no frame header"));
    }
    let (&count, rest) = body.split_first().ok_or_else(|| corrupt("a scan header is empty"))?;
    let mut scan = Scan { count: count.into(), in_turn: true, ..Scan::default() };
    if !(1..=frame.count).contains(&scan.count) || rest.len() != 2 * scan.count + 3 {
        return Err(corrupt(format!("a scan header of {} bytes names {count} components", body.len())));
    }
    for (i, bytes) in rest.chunks_exact(2).take(scan.count).enumerate() {
        let part = frame.parts().iter().position(|p| p.id == bytes[0]);
        scan.parts[i] = part
            .ok_or_else(|| corrupt(format!("a scan names component {}, of which there is none", bytes[0])))?;
        if scan.parts[..i].contains(&scan.parts[i]) {
            return Err(corrupt("a scan names a component twice"));
        }
        scan.tables[i] = (usize::from(bytes[1] >> 4), usize::from(bytes[1] & 15));
    }
    let &[start, end, bits] = &rest[2 * scan.count..] else {
        return Err(corrupt("a scan header is too short"));
    };
    (scan.band, scan.high, scan.low) = ((start, end), bits >> 4, bits & 15);
    if !frame.progressive {
        // libjpeg ignores other values.
        (scan.band, scan.high, scan.low) = ((0, 63), 0, 0);
    } else if end > 63
        || start > end
        || scan.low > 13
        || (start == 0) != (end == 0)
        || (start > 0 && count > 1)
    {
        return Err(corrupt(format!("a progressive scan of band {start} to {end}, bits {bits:02x}")));
    }
    Ok(scan)
}

/// Finds the end of the entropy-coded data that starts at `start`, and the restart markers in it.
fn entropy_data(bytes: &[u8], start: usize, scan: &mut Scan) {
    let mut at = start;
    scan.data = start..bytes.len();
    while let Some(found) = memchr(0xff, &bytes[at..]) {
        let first = at + found;
        let code = first + 1 + bytes[first + 1..].iter().take_while(|b| **b == 0xff).count();
        match bytes.get(code) {
            Some(0) => {}
            Some(code @ 0xd0..=0xd7) => {
                scan.in_turn &= usize::from(code & 7) == scan.restarts % 8;
                scan.restarts += 1;
            }
            Some(_) => {
                scan.data.end = first;
                return;
            }
            None => return,
        }
        at = code + 1;
    }
}

pub(super) fn corrupt(what: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::Corrupt, format!("corrupt JPEG: {what}"))
}

pub(super) fn truncated(what: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::Truncated, format!("truncated JPEG: {what}"))
}

pub(super) fn unsupported(what: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::Unsupported, format!("a JPEG with {what}, which is not read"))
}

//! A JPEG datastream as its markers divide it: where it ends, what its scans hold, and a mended copy of it.
//!
//! libjpeg tells of the first warning only. In a mended copy a file's harmless faults are gone, so that the first
//! warning about the copy is about its pixels.

const SOI: u8 = 0xd8;
const EOI: u8 = 0xd9;
const SOS: u8 = 0xda;
const DRI: u8 = 0xdd;
const APP0: u8 = 0xe0;
const APP14: u8 = 0xee;

/// What a datastream holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Contents {
    /// Whether its end marker is there.
    pub(super) ended: bool,
    pub(super) scans: u32,
    /// Whether restart markers are among the scans' data.
    pub(super) restarts: bool,
    /// Whether the scans give each coefficient of each component to its last bit.
    pub(super) complete: bool,
    /// Whether it is coded arithmetically: such data may stop early, so that what is missing can't be told.
    pub(super) arithmetic: bool,
}

/// Whether the file ends with an end marker, as a whole file does. Zeros may follow it.
pub(super) fn ends_whole(bytes: &[u8]) -> bool {
    bytes[..bytes.len() - zeros(bytes)].ends_with(&[0xff, EOI])
}

/// How many zeros there are at the end.
fn zeros(bytes: &[u8]) -> usize {
    bytes.iter().rev().take_while(|&&byte| byte == 0).count()
}

/// Whether a file with four components holds them inverted, as those with Adobe's marker do.
pub(super) fn has_adobe_marker(bytes: &[u8]) -> bool {
    let mut at = 2;
    while let Some((code, body)) = segment(bytes, &mut at) {
        if code == APP14 && body.starts_with(b"Adobe") {
            return true;
        }
        if code == SOS || code == EOI {
            break;
        }
    }
    false
}

/// Writes a mended copy to `out`, with room reused, and says what the file holds.
///
/// In the copy: no bytes between segments; the JFIF revision, Adobe's colour transform and a sequential scan's
/// parameters as libjpeg takes them to be; nothing behind the end marker, and an end marker where there was none. A
/// segment that is cut is left out. So are the zeros that a file system leaves at the end of a file it lost data of.
pub(super) fn mend(bytes: &[u8], out: &mut Vec<u8>) -> Contents {
    let filled = zeros(bytes);
    let bytes = if filled >= FILLED { &bytes[..bytes.len() - filled] } else { bytes };
    out.clear();
    out.extend_from_slice(&bytes[..bytes.len().min(2)]);
    let mut frame = Frame::new(0xc0, &[]);
    let mut adobe = None;
    let (mut at, mut scans) = (2.min(bytes.len()), 0);
    let (mut ended, mut restarts) = (false, false);
    while let Some((code, body)) = segment(bytes, &mut at) {
        if code == EOI {
            ended = true;
            break;
        }
        let from = out.len();
        out.extend_from_slice(&[0xff, code]);
        if has_body(code) {
            out.extend_from_slice(&(body.len() as u16 + 2).to_be_bytes());
            out.extend_from_slice(body);
        }
        let copy = &mut out[from + 2..];
        match code {
            DRI => restarts |= body.iter().any(|&byte| byte != 0),
            APP0 if body.starts_with(b"JFIF\0") && body.len() > 5 => copy[2 + 5] = 1,
            APP14 if body.starts_with(b"Adobe") && body.len() > 11 => adobe = Some(from + 4 + 11),
            0xc0..=0xcf if !matches!(code, 0xc4 | 0xc8 | 0xcc) => frame = Frame::new(code, body),
            SOS => {
                scans += 1;
                if !frame.progressive && !frame.lossless && body.len() >= 4 {
                    let n = copy.len();
                    copy[n - 3..].copy_from_slice(&[0, 63, 0]);
                }
                frame.scan(body);
                if let Some(at) = adobe.take() {
                    out[at] = frame.adobe_transform(out[at]);
                }
                let data = entropy_coded(&bytes[at..]);
                at += data.len();
                out.extend_from_slice(data);
            }
            _ => {}
        }
    }
    out.extend_from_slice(&[0xff, EOI]);
    let complete = scans > 0 && frame.is_complete();
    Contents { ended, scans, restarts, complete, arithmetic: frame.arithmetic }
}

/// So many zeros at the end of a file are not a scan's data.
const FILLED: usize = 16;

/// The marker that comes next, and its parameters; `at` is then behind them. `None` where the bytes end before.
fn segment<'a>(bytes: &'a [u8], at: &mut usize) -> Option<(u8, &'a [u8])> {
    loop {
        *at += bytes.get(*at..)?.iter().position(|&byte| byte == 0xff)?;
        let fill = bytes[*at..].iter().take_while(|&&byte| byte == 0xff).count();
        let code = *bytes.get(*at + fill)?;
        let body = *at + fill + 1;
        match code {
            // Neither is a marker that stands between segments: skipped, as libjpeg does.
            0 | 0x01 | 0xd0..=0xd7 => *at = body,
            _ if !has_body(code) => {
                *at = body;
                return Some((code, &[]));
            }
            _ => {
                let length = bytes.get(body..body + 2)?;
                let length = usize::from(u16::from_be_bytes([length[0], length[1]])).max(2);
                let parameters = bytes.get(body + 2..body + length)?;
                *at = body + length;
                return Some((code, parameters));
            }
        }
    }
}

fn has_body(code: u8) -> bool {
    !matches!(code, SOI | EOI)
}

/// The data of a scan, up to the marker that ends it: restart markers are within.
fn entropy_coded(bytes: &[u8]) -> &[u8] {
    let mut at = 0;
    while let Some(found) = bytes[at..].iter().position(|&byte| byte == 0xff) {
        match bytes.get(at + found + 1) {
            Some(0 | 0xd0..=0xd7) => at += found + 2,
            Some(0xff) => at += found + 1,
            Some(_) => return &bytes[..at + found],
            None => break,
        }
    }
    bytes
}

/// A frame's components, and which bit of each of their coefficients has come last.
struct Frame {
    progressive: bool,
    lossless: bool,
    arithmetic: bool,
    components: usize,
    ids: [u8; 4],
    bits: [[u8; 64]; 4],
}

impl Frame {
    fn new(code: u8, body: &[u8]) -> Self {
        let components = body.get(5).map_or(0, |&n| usize::from(n).min(4));
        let mut ids = [0; 4];
        for (id, component) in ids[..components].iter_mut().zip(body.get(6..).unwrap_or_default().chunks(3)) {
            *id = component[0];
        }
        Self {
            progressive: matches!(code & 3, 2),
            lossless: matches!(code & 3, 3),
            arithmetic: code > 0xc8,
            components,
            ids,
            bits: [[u8::MAX; 64]; 4],
        }
    }

    /// Takes note of a scan, by the parameters of its marker.
    fn scan(&mut self, body: &[u8]) {
        let n = body.first().map_or(0, |&n| usize::from(n));
        let Some(&[first, last, bits]) = body.get(1 + 2 * n..).and_then(<[u8]>::first_chunk) else { return };
        for id in body[1..].chunks(2).take(n).map(|selector| selector[0]) {
            let Some(component) = self.ids[..self.components].iter().position(|&other| other == id) else {
                continue;
            };
            let range = if self.progressive { usize::from(first)..=usize::from(last) } else { 0..=63 };
            if let Some(coefficients) = self.bits[component].get_mut(range) {
                coefficients.fill(if self.progressive { bits & 15 } else { 0 });
            }
        }
    }

    fn is_complete(&self) -> bool {
        self.bits[..self.components].iter().flatten().all(|&bit| bit == 0)
    }

    /// What libjpeg takes Adobe's colour transform `code` to be.
    fn adobe_transform(&self, code: u8) -> u8 {
        match self.components {
            3 if code > 1 => 1,
            4 if code != 0 => 2,
            _ => code,
        }
    }
}

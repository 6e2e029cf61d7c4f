//! Whether a scan's data holds every block of it: the Huffman codes are followed, no pixel is made.

use super::markers::{Event, Frame, Scan, read};
use crate::error::Result;

/// What a file's entropy-coded data amounts to.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Every block is there, to the last bit.
    Whole,
    /// Every block is there, and then zeros: bytes, or the bits that fill the last byte, which should be ones.
    Padded,
    /// The data ends before the last block, or scans are missing.
    Short(String),
    /// The data is not what an encoder writes.
    Corrupt(String),
}

/// Follows every code of every scan of a file. Costs about what decoding costs without its arithmetic.
///
/// # Errors
/// As [`read`].
pub(super) fn examine(bytes: &[u8]) -> Result<Verdict> {
    let mut walker = Walker::default();
    let mut padded = false;
    let mut coverage = Coverage::default();
    let mut verdict = Verdict::Whole;
    let outline = read(bytes, |frame, event| {
        match event {
            Event::Ready => {}
            Event::Huffman(body) => walker.tables(body),
            Event::Scan(scan) => {
                coverage.add(scan);
                verdict = walker.scan(bytes, frame, scan);
                if verdict == Verdict::Padded {
                    (padded, verdict) = (true, Verdict::Whole);
                }
            }
        }
        Ok(verdict == Verdict::Whole)
    })?;
    Ok(match (verdict, coverage.missing(&outline.frame)) {
        (Verdict::Whole, Some(what)) => Verdict::Short(what),
        (Verdict::Whole, None) if padded => Verdict::Padded,
        (verdict, _) => verdict,
    })
}

/// Which bits of which coefficients the scans so far held.
#[derive(Debug)]
pub(super) struct Coverage {
    /// Bits that are still to come, by component and coefficient; 255 where there was nothing yet.
    low: [[u8; 64]; 4],
    twice: bool,
}

impl Default for Coverage {
    fn default() -> Self {
        Self { low: [[255; 64]; 4], twice: false }
    }
}

impl Coverage {
    pub(super) fn add(&mut self, scan: &Scan) {
        for part in scan.parts() {
            for low in &mut self.low[*part][usize::from(scan.band.0)..=usize::from(scan.band.1)] {
                self.twice |= *low <= scan.low;
                *low = scan.low;
            }
        }
    }

    /// Whether a scan brought what had been there.
    pub(super) fn twice(&self) -> bool {
        self.twice
    }

    /// What is missing. The standard lets a progressive file leave out detail, but no encoder does; who cuts one and sets an end
    /// marker behind makes such files.
    pub(super) fn missing(&self, frame: &Frame) -> Option<String> {
        let parts = || self.low.iter().take(frame.parts().len()).enumerate();
        if let Some((part, _)) = parts().find(|(_, low)| low[0] == 255) {
            return Some(format!("there is no scan of component {part}"));
        }
        let (part, _) = parts().find(|(_, low)| low.iter().any(|l| *l > 0))?;
        Some(format!("scans that refine component {part} are missing"))
    }
}

/// Whether there are 31 zeros in a row, or perhaps 16: what a sparse file shows where it has a hole.
pub(super) fn hole(data: &[u8]) -> bool {
    data.as_chunks::<16>().0.iter().any(|chunk| u128::from_ne_bytes(*chunk) == 0)
}

/// Why a scan can't be followed further.
enum Flaw {
    /// The data of this interval is used up.
    Short,
    Code(&'static str),
}

#[derive(Default)]
struct Walker {
    dc: [Option<Box<Table>>; 4],
    ac: [Option<Box<Table>>; 4],
    /// Progressive: which coefficients of each block are not zero, which steers the scans that refine them.
    nonzero: [Vec<u64>; 4],
}

impl Walker {
    fn tables(&mut self, mut body: &[u8]) {
        while let Some((head, rest)) = body.split_at_checked(17) {
            let count = head[1..].iter().map(|n| usize::from(*n)).sum();
            let Some((values, rest)) = rest.split_at_checked(count) else { return };
            let set = if head[0] >> 4 == 0 { &mut self.dc } else { &mut self.ac };
            if let (Some(table), 0..=1) = (set.get_mut(usize::from(head[0] & 15)), head[0] >> 4) {
                *table = Table::new(&head[1..], values).map(Box::new);
            }
            body = rest;
        }
    }

    fn scan(&mut self, bytes: &[u8], frame: &Frame, scan: &Scan) -> Verdict {
        let (columns, rows) = scan.mcus(frame);
        let mcus = columns * rows;
        let interval = if scan.interval == 0 { mcus } else { scan.interval };
        if hole(&bytes[scan.data.clone()]) && !self.zeros_are_flat(frame, scan) {
            return Verdict::Corrupt("there is a hole of zeros in the data".to_string());
        }
        if !scan.in_turn {
            return Verdict::Corrupt("its restart markers are out of order".to_string());
        }
        let mut data = &bytes[scan.data.clone()];
        let (mut done, mut padded) = (0, false);
        while done < mcus {
            let (piece, rest) = split_at_restart(data);
            let count = interval.min(mcus - done);
            let mut bits = Bits::new(piece);
            match self.interval(&mut bits, frame, scan, done, count) {
                Err((seen, Flaw::Short)) => {
                    return Verdict::Short(format!("the data ends after {} of {mcus} MCUs", done + seen));
                }
                Err((seen, Flaw::Code(what))) => {
                    return Verdict::Corrupt(format!("{what} in MCU {} of {mcus}", done + seen));
                }
                Ok(()) => {}
            }
            done += count;
            let left = bits.bytes_left();
            if left > 0 && (done < mcus || piece[piece.len() - left..].iter().any(|b| *b != 0)) {
                return Verdict::Corrupt(format!(
                    "{left} bytes follow the last code of MCU {done} of {mcus}"
                ));
            }
            padded |= left > 0 || !bits.filled_with_ones();
            match rest {
                Some(rest) => data = rest,
                None if done < mcus => {
                    return Verdict::Short(format!("the data ends after {done} of {mcus} MCUs"));
                }
                None => data = &[],
            }
        }
        match (data.is_empty(), padded) {
            (true, false) => Verdict::Whole,
            (true, true) => Verdict::Padded,
            _ => Verdict::Corrupt(format!("{} bytes follow the last MCU", data.len())),
        }
    }

    /// Whether bits that are all 0 may be an area where nothing changes. In refinements they may be anything.
    fn zeros_are_flat(&self, frame: &Frame, scan: &Scan) -> bool {
        let first = |set: &[Option<Box<Table>>; 4], at: usize| {
            set.get(at).and_then(Option::as_ref).and_then(|table| table.values.first().copied())
        };
        let tables = || scan.tables.iter().take(scan.parts().len());
        let ends = |code: Option<u8>| code.is_some_and(|code| code & 15 == 0 && code < 0xf0);
        match (frame.progressive, scan.band.0, scan.high) {
            (true, _, 1..) => true,
            (true, 1.., 0) => tables().all(|(_, ac)| ends(first(&self.ac, *ac))),
            (true, 0, 0) => tables().all(|(dc, _)| first(&self.dc, *dc) == Some(0)),
            (false, ..) => {
                tables().all(|(dc, ac)| first(&self.dc, *dc) == Some(0) && first(&self.ac, *ac) == Some(0))
            }
        }
    }

    /// Follows the codes of MCUs `first` to `first + count`; on a flaw, how many of them were whole.
    fn interval(
        &mut self,
        bits: &mut Bits<'_>,
        frame: &Frame,
        scan: &Scan,
        first: usize,
        count: usize,
    ) -> Result<(), (usize, Flaw)> {
        let mut blocks = [0; 4];
        for (blocks, part) in blocks.iter_mut().zip(scan.parts()) {
            let part = frame.parts()[*part];
            *blocks = if scan.parts().len() == 1 { 1 } else { usize::from(part.h) * usize::from(part.v) };
        }
        if frame.progressive && scan.band.0 > 0 {
            let nonzero = &mut self.nonzero[scan.parts()[0]];
            let (columns, rows) = scan.mcus(frame);
            nonzero.resize(columns * rows, 0);
            let table = self.ac.get(scan.tables[0].1).and_then(Option::as_deref);
            let table = table.ok_or((0, Flaw::Code("a Huffman table is missing")))?;
            let mut run = 0;
            for (mcu, mask) in nonzero[first..first + count].iter_mut().enumerate() {
                let done = if scan.high == 0 {
                    first_of_band(bits, table, scan.band, mask, &mut run)
                } else {
                    refine_band(bits, table, scan.band, mask, &mut run)
                };
                done.map_err(|flaw| (mcu, flaw))?;
            }
            return Ok(());
        }
        for mcu in 0..count {
            for (i, blocks) in blocks[..scan.parts().len()].iter().enumerate() {
                let tables = scan.tables[i];
                for _ in 0..*blocks {
                    self.block(bits, frame.progressive, scan.high, tables).map_err(|flaw| (mcu, flaw))?;
                }
            }
        }
        Ok(())
    }

    fn block(
        &self,
        bits: &mut Bits<'_>,
        dc_only: bool,
        high: u8,
        tables: (usize, usize),
    ) -> Result<(), Flaw> {
        if dc_only && high > 0 {
            return bits.skip(1);
        }
        let missing = Flaw::Code("a Huffman table is missing");
        let Some(dc) = self.dc.get(tables.0).and_then(Option::as_deref) else { return Err(missing) };
        let size = bits.code(dc)?;
        if size > 11 {
            return Err(Flaw::Code("an impossible difference"));
        }
        bits.skip(size.into())?;
        if dc_only {
            return Ok(());
        }
        let Some(ac) = self.ac.get(tables.1).and_then(Option::as_deref) else { return Err(missing) };
        let mut k = 1;
        while k < 64 {
            let (run, size) = split(bits.code(ac)?);
            k += run + 1;
            if size > 10 {
                return Err(Flaw::Code("an impossible coefficient"));
            } else if size > 0 {
                bits.skip(size)?;
            } else if run < 15 {
                return Ok(());
            }
        }
        if k > 64 { Err(Flaw::Code("a coefficient beyond the last")) } else { Ok(()) }
    }
}

fn first_of_band(
    bits: &mut Bits<'_>,
    table: &Table,
    band: (u8, u8),
    mask: &mut u64,
    end_run: &mut u32,
) -> Result<(), Flaw> {
    if *end_run > 0 {
        *end_run -= 1;
        return Ok(());
    }
    let mut k = u32::from(band.0);
    while k <= band.1.into() {
        let (run, size) = split(bits.code(table)?);
        if size > 0 {
            k += run;
            bits.skip(size)?;
            *mask |= 1_u64.checked_shl(k).unwrap_or(0);
            k += 1;
        } else if run == 15 {
            k += 16;
        } else {
            *end_run = (1 << run) - 1 + bits.take(run)?;
            return Ok(());
        }
    }
    if k > u32::from(band.1) + 1 { Err(Flaw::Code("a coefficient beyond the band")) } else { Ok(()) }
}

fn refine_band(
    bits: &mut Bits<'_>,
    table: &Table,
    band: (u8, u8),
    mask: &mut u64,
    end_run: &mut u32,
) -> Result<(), Flaw> {
    let (mut k, last) = (u32::from(band.0), u32::from(band.1));
    if *end_run == 0 {
        while k <= last {
            let (mut run, size) = split(bits.code(table)?);
            match (size, run) {
                (0, 0..15) => {
                    *end_run = (1 << run) + bits.take(run)?;
                    break;
                }
                (0, _) => {}
                (1, _) => bits.skip(1)?,
                _ => return Err(Flaw::Code("an impossible refinement")),
            }
            while k <= last {
                if *mask >> k & 1 == 1 {
                    bits.skip(1)?;
                } else if run == 0 {
                    break;
                } else {
                    run -= 1;
                }
                k += 1;
            }
            if size == 1 {
                if k > last {
                    return Err(Flaw::Code("a coefficient beyond the band"));
                }
                *mask |= 1 << k;
            }
            k += 1;
        }
    }
    if *end_run > 0 {
        if k <= last {
            let rest = *mask >> k << k & (u64::MAX >> (63 - last));
            bits.skip(rest.count_ones())?;
        }
        *end_run -= 1;
    }
    Ok(())
}

fn split(code: u8) -> (u32, u32) {
    (u32::from(code >> 4), u32::from(code & 15))
}

/// The data before the next restart marker, and what lies behind it.
fn split_at_restart(data: &[u8]) -> (&[u8], Option<&[u8]>) {
    let mut at = 0;
    while let Some(found) = memchr::memchr(0xff, &data[at..]) {
        let first = at + found;
        let code = first + 1 + data[first + 1..].iter().take_while(|b| **b == 0xff).count();
        match data.get(code) {
            Some(0xd0..=0xd7) => return (&data[..first], Some(&data[code + 1..])),
            Some(_) => at = code + 1,
            None => return (&data[..first], None),
        }
    }
    (data, None)
}

/// A Huffman table: codes of up to 9 bits by one look, longer ones by their length.
struct Table {
    /// Length in the high byte, value in the low one; 0 for codes that are longer.
    short: [u16; 512],
    /// By length, the first code that is too large for it, aligned to 16 bits.
    limit: [u32; 17],
    /// By length, what to add to a code to find its value.
    offset: [i32; 17],
    values: Vec<u8>,
}

impl Table {
    fn new(lengths: &[u8], values: &[u8]) -> Option<Self> {
        let mut table = Self { short: [0; 512], limit: [0; 17], offset: [0; 17], values: values.to_vec() };
        let (mut code, mut at) = (0_u32, 0_usize);
        for (length, count) in (1_u32..=16).zip(lengths) {
            let slot = length as usize;
            table.offset[slot] = i32::try_from(at).ok()? - i32::try_from(code).ok()?;
            for _ in 0..*count {
                if code >> length > 0 {
                    return None;
                }
                if length <= 9 {
                    let first = (code << (9 - length)) as usize;
                    let entry = (length as u16) << 8 | u16::from(*values.get(at)?);
                    table.short[first..first + (1 << (9 - length))].fill(entry);
                }
                code += 1;
                at += 1;
            }
            table.limit[slot] = code << (16 - length);
            code <<= 1;
        }
        Some(table)
    }
}

/// The bits of one interval, stuffed zeros left out.
struct Bits<'a> {
    data: &'a [u8],
    at: usize,
    /// The next bits, from the top.
    buffer: u64,
    count: u32,
}

impl<'a> Bits<'a> {
    fn new(data: &'a [u8]) -> Self {
        Self { data, at: 0, buffer: 0, count: 0 }
    }

    fn fill(&mut self) {
        while self.count <= 56 {
            let Some(byte) = self.data.get(self.at) else { return };
            self.at += if *byte == 0xff { 2 } else { 1 };
            self.buffer |= u64::from(*byte) << (56 - self.count);
            self.count += 8;
        }
    }

    fn skip(&mut self, n: u32) -> Result<(), Flaw> {
        self.take(n.min(32))?;
        self.take(n.saturating_sub(32)).map(|_| ())
    }

    /// Up to 32 bits.
    fn take(&mut self, n: u32) -> Result<u32, Flaw> {
        if self.count < n {
            self.fill();
            if self.count < n {
                return Err(Flaw::Short);
            }
        }
        let bits = (self.buffer >> 32 >> (32 - n)) as u32;
        self.buffer = self.buffer.checked_shl(n).unwrap_or(0);
        self.count -= n;
        Ok(bits)
    }

    fn code(&mut self, table: &Table) -> Result<u8, Flaw> {
        if self.count < 16 {
            self.fill();
        }
        let entry = table.short[(self.buffer >> 55) as usize];
        let (length, value) = if entry > 0 {
            (u32::from(entry >> 8), entry as u8)
        } else {
            let code = (self.buffer >> 48) as u32;
            let Some(length) = (10..=16).find(|l| code < table.limit[*l]) else {
                return Err(if self.count < 16 { Flaw::Short } else { Flaw::Code("an unknown code") });
            };
            let at = (code >> (16 - length)) as i32 + table.offset[length];
            let value = usize::try_from(at).ok().and_then(|at| table.values.get(at));
            (length as u32, *value.ok_or(Flaw::Code("an unknown code"))?)
        };
        if self.count < length {
            return Err(Flaw::Short);
        }
        self.buffer <<= length;
        self.count -= length;
        Ok(value)
    }

    /// Whether ones fill the last byte.
    fn filled_with_ones(&self) -> bool {
        let rest = self.count % 8;
        rest == 0 || self.buffer >> (64 - rest) == (1 << rest) - 1
    }

    /// Bytes that were not touched.
    fn bytes_left(&self) -> usize {
        self.count as usize / 8 + self.data.len().saturating_sub(self.at)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]
mod tests {
    use super::*;

    #[test]
    fn bits_end_where_the_data_ends() {
        // 0xff 0x00 is one byte of ones.
        let mut bits = Bits::new(&[0b1010_0000, 0xff, 0, 0b0111_1111]);
        assert_eq!(bits.take(3).ok(), Some(0b101));
        assert_eq!(bits.take(0).ok(), Some(0));
        assert_eq!(bits.take(13).ok(), Some(0b0_0000_1111_1111));
        assert_eq!((bits.bytes_left(), bits.filled_with_ones()), (1, true));
        assert_eq!(bits.take(1).ok(), Some(0));
        assert_eq!((bits.bytes_left(), bits.filled_with_ones()), (0, true));
        assert!(matches!(bits.take(8), Err(Flaw::Short)));
        assert_eq!(bits.take(7).ok(), Some(0b111_1111));
        assert!(matches!(bits.skip(1), Err(Flaw::Short)));
        assert!(matches!(Bits::new(&[1; 8]).skip(65), Err(Flaw::Short)));
        assert!(Bits::new(&[1; 8]).skip(64).is_ok());
    }

    #[test]
    fn a_code_is_found_by_its_length_and_not_beyond_the_end() {
        // One code each of 1 and 12 bits: 0 and 1000_0000_0000.
        let table = Table::new(&[1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0], &[7, 9]).unwrap();
        let mut bits = Bits::new(&[0b0100_0000, 0b0000_0111]);
        assert_eq!((bits.code(&table).ok(), bits.code(&table).ok()), (Some(7), Some(9)));
        assert!(matches!(bits.code(&table), Err(Flaw::Short)));
        assert!(matches!(Bits::new(&[0xfe; 3]).code(&table), Err(Flaw::Code(_))));
        assert!(matches!(Bits::new(&[0b1000_0000]).code(&table), Err(Flaw::Short)));
        // More codes of 1 bit than there are.
        assert!(Table::new(&[3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], &[1, 2, 3]).is_none());
    }
}

//! Whether a scan's data holds every block of it: the Huffman codes are followed, no pixel is made.

use super::huffman::{Bits, Flaw, Table};
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

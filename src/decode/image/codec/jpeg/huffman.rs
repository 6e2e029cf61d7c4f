//! The bits of entropy-coded data, and the codes in them (ITU-T T.81, annexes C and F.2).

/// Why a scan can't be followed further.
pub(super) enum Flaw {
    /// The data of this interval is used up.
    Short,
    Code(&'static str),
}

/// A Huffman table: codes of up to 9 bits by one look, longer ones by their length.
pub(super) struct Table {
    /// Length in the high byte, value in the low one; 0 for codes that are longer.
    short: [u16; 512],
    /// By length, the first code that is too large for it, aligned to 16 bits.
    limit: [u32; 17],
    /// By length, what to add to a code to find its value.
    offset: [i32; 17],
    pub(super) values: Vec<u8>,
}

impl Table {
    pub(super) fn new(lengths: &[u8], values: &[u8]) -> Option<Self> {
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
pub(super) struct Bits<'a> {
    data: &'a [u8],
    at: usize,
    /// The next bits, from the top.
    buffer: u64,
    count: u32,
}

impl<'a> Bits<'a> {
    pub(super) fn new(data: &'a [u8]) -> Self {
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

    pub(super) fn skip(&mut self, n: u32) -> Result<(), Flaw> {
        self.take(n.min(32))?;
        self.take(n.saturating_sub(32)).map(|_| ())
    }

    /// Up to 32 bits.
    pub(super) fn take(&mut self, n: u32) -> Result<u32, Flaw> {
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

    pub(super) fn code(&mut self, table: &Table) -> Result<u8, Flaw> {
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
    pub(super) fn filled_with_ones(&self) -> bool {
        let rest = self.count % 8;
        rest == 0 || self.buffer >> (64 - rest) == (1 << rest) - 1
    }

    /// Bytes that were not touched.
    pub(super) fn bytes_left(&self) -> usize {
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

//! The generator that `fill_check.cu` compares memory with: byte `position` of the stream of `seed` is byte
//! `position % 8`, lowest first, of output `position / 8 + 1` of SplitMix64 (Steele, Lea and Flood, 2014). It is a pure
//! function, so any piece of a stream can be written and checked alone; a sample's bytes are those of its own seed, or of
//! a position that belongs to it. Seeds that differ by a multiple of `STEP` give shifted streams: use mixed keys, or
//! small numbers.

#![allow(dead_code, reason = "whoever includes this may need one of the two")]

const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

fn word(seed: u64, index: u64) -> u64 {
    let mut z = seed.wrapping_add(index.wrapping_add(1).wrapping_mul(STEP));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The byte at `position` of the stream of `seed`.
pub fn byte(seed: u64, position: u64) -> u8 {
    word(seed, position / 8).to_le_bytes()[(position % 8) as usize]
}

/// Writes the stream of `seed` from position `first` on into all of `bytes`. Positions wrap at 2^64.
pub fn fill(bytes: &mut [u8], seed: u64, first: u64) {
    let head = bytes.len().min((first.wrapping_neg() % 8) as usize);
    let (head, rest) = bytes.split_at_mut(head);
    for (i, b) in (0..).zip(&mut *head) {
        *b = byte(seed, first.wrapping_add(i));
    }
    let first = first.wrapping_add(head.len() as u64) / 8;
    for (i, piece) in (0..).zip(rest.chunks_mut(8)) {
        let index = (first + i) & (u64::MAX / 8);
        piece.copy_from_slice(&word(seed, index).to_le_bytes()[..piece.len()]);
    }
}

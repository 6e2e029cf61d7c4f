//! Unbalanced Feistel networks, on a domain that is a little larger than a length.
//!
//! A value's high part is an integer modulo `left`, its low part a string of `right_bits`, and each round adds a
//! keyed function of one to the other and back (Black and Rogaway, 2002). The domain `[0, left) × [0, 2^right_bits)`
//! has less than `2^right_bits ≤ √(2·len)` values more than `len`.

use crate::random::mix;

/// The number of high parts and the width of the low ones for `len >= 1` values.
fn domain(len: u64) -> (u64, u32) {
    let bits = 64 - (len - 1).leading_zeros();
    let right_bits = bits / 2;
    (((len - 1) >> right_bits) + 1, right_bits)
}

/// The network of fewer than 2^32 values: its parts have 16 bits and its numbers 32, of which a vector register
/// holds many.
#[derive(Debug, Clone, Copy)]
pub(super) struct Narrow {
    left: u32,
    right_bits: u32,
    keys: [[Key; 2]; Self::ROUNDS],
}

/// What one half of a round depends on.
#[derive(Debug, Clone, Copy)]
struct Key {
    flip: u32,
    /// Odd, as a multiplier that loses nothing has to be.
    factor: u32,
}

impl Narrow {
    /// A round changes both halves, so these are 8 of the textbook's, where 4 make a pseudo-random permutation of
    /// random round functions (Luby and Rackoff, 1988). 3 already pass the permutation's tests, 2 do not.
    const ROUNDS: usize = 4;

    /// `len >= 4`, or there is no low part.
    pub(super) fn new(len: u32, keys: &mut Keys) -> Self {
        let (left, right_bits) = domain(u64::from(len));
        let keys = std::array::from_fn(|_| [Key::draw(keys), Key::draw(keys)]);
        Self { left: left as u32, right_bits, keys }
    }

    #[inline(always)]
    pub(super) fn forward<const N: usize>(&self, values: [u32; N]) -> [u32; N] {
        let (mut l, mut r) = (values, values);
        for i in 0..N {
            l[i] >>= self.right_bits;
            r[i] &= (1 << self.right_bits) - 1;
        }
        for [to_left, to_right] in &self.keys {
            for i in 0..N {
                let sum = l[i] + self.addend(r[i], to_left);
                l[i] = sum.min(sum.wrapping_sub(self.left)); // modulo: below `left` the difference wraps to a huge one
            }
            for i in 0..N {
                r[i] ^= self.mask(l[i], to_right);
            }
        }
        for i in 0..N {
            l[i] = (l[i] << self.right_bits) | r[i];
        }
        l
    }

    pub(super) fn backward(&self, value: u32) -> u32 {
        let (mut l, mut r) = (value >> self.right_bits, value & ((1 << self.right_bits) - 1));
        for [to_left, to_right] in self.keys.iter().rev() {
            r ^= self.mask(l, to_right);
            let addend = self.addend(r, to_left);
            l = if l >= addend { l - addend } else { l + self.left - addend };
        }
        (l << self.right_bits) | r
    }

    /// What a low part adds to a high one: `left` times the scrambled bits as a fraction. In two products, which
    /// `left ≤ 2^16` keeps below 2^32: a vector register has half as many numbers of 64 bits.
    #[inline(always)]
    fn addend(&self, right: u32, key: &Key) -> u32 {
        let h = key.scramble(right);
        ((h >> 16) * self.left + (((h & 0xffff) * self.left) >> 16)) >> 16
    }

    /// What a high part adds to a low one.
    #[inline(always)]
    fn mask(&self, left: u32, key: &Key) -> u32 {
        key.scramble(left) >> (32 - self.right_bits)
    }
}

impl Key {
    fn draw(keys: &mut Keys) -> Self {
        let bits = keys.draw();
        Self { flip: bits as u32, factor: (bits >> 32) as u32 | 1 }
    }

    /// The keyed function of 16 bits. Its high bits are the good ones. Both keys are needed: with a constant for a
    /// factor, the differences between the functions of two neighbours are far from evenly spread over the keys.
    #[inline(always)]
    fn scramble(&self, x: u32) -> u32 {
        let h = (x ^ self.flip).wrapping_mul(0x7feb_352d);
        (h ^ (h >> 15)).wrapping_mul(self.factor)
    }
}

/// The network of any number of values.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wide {
    left: u64,
    right_bits: u32,
    keys: [[u64; 2]; Self::ROUNDS],
}

impl Wide {
    /// Fewer than [`Narrow::ROUNDS`]: the more values there are, the less a round leaves to be seen.
    const ROUNDS: usize = 3;

    pub(super) fn new(len: u64, keys: &mut Keys) -> Self {
        let (left, right_bits) = domain(len);
        Self { left, right_bits, keys: std::array::from_fn(|_| [keys.draw(), keys.draw()]) }
    }

    #[inline(always)]
    pub(super) fn forward<const N: usize>(&self, values: [u64; N]) -> [u64; N] {
        let mask = (1 << self.right_bits) - 1;
        let mut l = values.map(|x| x >> self.right_bits);
        let mut r = values.map(|x| x & mask);
        for &[to_left, to_right] in &self.keys {
            for i in 0..N {
                let sum = l[i] + self.addend(r[i], to_left);
                l[i] = sum.min(sum.wrapping_sub(self.left));
                r[i] ^= (Self::scramble(l[i], to_right) >> 32) & mask;
            }
        }
        std::array::from_fn(|i| (l[i] << self.right_bits) | r[i])
    }

    pub(super) fn backward(&self, value: u64) -> u64 {
        let mask = (1 << self.right_bits) - 1;
        let (mut l, mut r) = (value >> self.right_bits, value & mask);
        for &[to_left, to_right] in self.keys.iter().rev() {
            r ^= (Self::scramble(l, to_right) >> 32) & mask;
            let addend = self.addend(r, to_left);
            l = if l >= addend { l - addend } else { l + self.left - addend };
        }
        (l << self.right_bits) | r
    }

    /// As [`Narrow::addend`], of the 32 high bits (`left ≤ 2^32`).
    #[inline(always)]
    fn addend(&self, right: u64, key: u64) -> u64 {
        ((Self::scramble(right, key) >> 32) * self.left) >> 32
    }

    /// The keyed function of 32 bits. Its high bits are the good ones.
    #[inline(always)]
    fn scramble(x: u64, key: u64) -> u64 {
        let h = (x ^ key).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (h ^ (h >> 32)).wrapping_mul(0x94d0_49bb_1331_11eb)
    }
}

/// The keys of the rounds, drawn from one (SplitMix64).
pub(super) struct Keys(u64);

impl Keys {
    pub(super) fn new(key: u64) -> Self {
        Self(key)
    }

    fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// By how many standard deviations a chi-square statistic of `counts` is off its mean.
    pub(in super::super) fn deviation(counts: &[u64]) -> f64 {
        let mean = counts.iter().sum::<u64>() as f64 / counts.len() as f64;
        let chi: f64 = counts.iter().map(|&n| (n as f64 - mean).powi(2) / mean).sum();
        let freedom = (counts.len() - 1) as f64;
        (chi - freedom) / (2.0 * freedom).sqrt()
    }

    #[test]
    #[cfg_attr(miri, ignore = "statistics need many draws")]
    fn differences_of_the_keyed_function_are_spread_evenly_over_the_keys() {
        // First differences, then second ones, in both groups the parts are added in.
        for (a, b) in
            [(0, 0), (1, 0), (2, 0), (0x8000, 0), (1, 2), (1, 0x100), (3, 12), (16, 32), (2, 0x8000)]
        {
            let (mut sums, mut parities) = (vec![0; 256], vec![0; 256]);
            let mut keys = Keys::new(77);
            for _ in 0..100_000 {
                let key = Key::draw(&mut keys);
                let f = |x: u32| key.scramble(x);
                let (sum, parity) = match b {
                    0 => (f(0).wrapping_sub(f(a)), f(0) ^ f(a)),
                    _ => (
                        f(0).wrapping_sub(f(a)).wrapping_sub(f(b)).wrapping_add(f(a | b)),
                        f(0) ^ f(a) ^ f(b) ^ f(a | b),
                    ),
                };
                sums[(sum >> 24) as usize] += 1;
                parities[(parity >> 24) as usize] += 1;
            }
            if (a, b) == (0, 0) {
                assert!(deviation(&sums) > 5.0, "no difference at all should show");
                continue;
            }
            let off = deviation(&sums).max(deviation(&parities));
            assert!(off < 5.0, "{a}, {b}: {off}");
        }
    }

    #[test]
    fn the_domain_is_hardly_larger_than_the_length() {
        for len in [129, 130, 255, 256, 257, 1000, 4095, 65536, 65537, 1_000_003, u64::from(u32::MAX)] {
            let (left, right_bits) = domain(len);
            let excess = (left << right_bits).checked_sub(len);
            assert!(excess.is_some_and(|n| n as f64 <= (2.0 * len as f64).sqrt()), "{excess:?} for {len}");
            assert!(left <= 1 << 16 && (4..=16).contains(&right_bits), "{left}, {right_bits} for {len}");
        }
    }
}

//! Keyed randomness: everything random in this crate is a pure function of a key, never of a
//! thread, of time or of what was drawn before.

use rand_core::{Infallible, SeedableRng, TryRng};
use rand_xoshiro::Xoshiro256PlusPlus;

/// The finaliser of SplitMix64 (Steele, Lea and Flood, 2014; constants of Stafford's variant 13): a
/// bijection on 64 bits in which every input bit moves every output bit with probability near 1/2.
pub(crate) const fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Hashes a short list of numbers into one key. The order of the numbers matters.
pub(crate) const fn key(parts: &[u64]) -> u64 {
    let mut h = 0x9e37_79b9_7f4a_7c15_u64;
    let mut i = 0;
    while i < parts.len() {
        h = mix(h.wrapping_add(0x9e37_79b9_7f4a_7c15) ^ parts[i]);
        i += 1;
    }
    h
}

/// Hashes bytes into one key (for names and fingerprints, not for security).
pub(crate) fn key_of_bytes(bytes: &[u8]) -> u64 {
    let mut h = key(&[bytes.len() as u64]);
    for chunk in bytes.chunks(8) {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        h = key(&[h, u64::from_le_bytes(word)]);
    }
    h
}

/// A sample's own generator, keyed by (seed, epoch, index): the same draws on every worker, machine
/// and rank. The algorithm is xoshiro256++; it implements [`rand_core::Rng`], so it works with the
/// `rand` crate's distributions too.
#[derive(Debug, Clone)]
pub struct SampleRng(Xoshiro256PlusPlus);

impl SampleRng {
    /// The generator of sample `index` in `epoch` under `seed`.
    pub fn new(seed: u64, epoch: u64, index: u64) -> Self {
        Self::from_key(key(&[seed, epoch, index]))
    }

    /// A generator for something else than a sample, keyed by a seed and a name: initial weights, say.
    pub fn named(seed: u64, name: &str) -> Self {
        Self::from_key(key(&[seed, key_of_bytes(name.as_bytes()), 0x006e_616d_6564]))
    }

    pub(crate) fn from_key(key: u64) -> Self {
        Self(Xoshiro256PlusPlus::seed_from_u64(key))
    }

    /// The next 64 random bits.
    pub fn u64(&mut self) -> u64 {
        rand_core::Rng::next_u64(&mut self.0)
    }

    /// A number in `0..bound`, without bias (Lemire's method); 0 where `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        loop {
            let wide = u128::from(self.u64()) * u128::from(bound);
            if bound == 0 || wide as u64 >= bound.wrapping_neg() % bound {
                return (wide >> 64) as u64;
            }
        }
    }

    /// A number in `[0, 1)` with 24 random bits.
    pub fn f32(&mut self) -> f32 {
        (self.u64() >> 40) as f32 * (1.0 / (1u32 << 24) as f32)
    }

    /// A number in `[0, 1)` with 53 random bits.
    pub fn f64(&mut self) -> f64 {
        (self.u64() >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }

    /// A number in `[low, high)`.
    pub fn uniform(&mut self, low: f32, high: f32) -> f32 {
        low + (high - low) * self.f32()
    }

    /// `true` with probability `p`.
    pub fn chance(&mut self, p: f64) -> bool {
        self.f64() < p
    }
}

impl TryRng for SampleRng {
    type Error = Infallible;

    fn try_next_u32(&mut self) -> Result<u32, Infallible> {
        Ok((self.u64() >> 32) as u32)
    }

    fn try_next_u64(&mut self) -> Result<u64, Infallible> {
        Ok(self.u64())
    }

    fn try_fill_bytes(&mut self, dst: &mut [u8]) -> Result<(), Infallible> {
        self.0.try_fill_bytes(dst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_draws_are_pinned() {
        // A change here changes every user's augmentation and shuffle: it needs a new format version.
        let mut rng = SampleRng::new(7, 0, 0);
        assert_eq!([rng.u64(), rng.u64()], [PINNED.0, PINNED.1]);
        assert_ne!(SampleRng::new(7, 1, 0).u64(), SampleRng::new(7, 0, 1).u64());
    }
    const PINNED: (u64, u64) = (8142300448956526948, 10018115565895641777);

    #[test]
    fn below_stays_below_and_reaches_all() {
        let mut rng = SampleRng::new(1, 2, 3);
        let mut seen = [0usize; 7];
        for _ in 0..7000 {
            seen[rng.below(7) as usize] += 1;
        }
        assert!(seen.iter().all(|&n| (800..1200).contains(&n)), "{seen:?}");
        assert_eq!(rng.below(0), 0);
        assert!((0..1000).all(|_| (0.0..1.0).contains(&rng.f32())));
    }
}

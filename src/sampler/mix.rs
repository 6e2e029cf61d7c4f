//! Several sources at fixed proportions.

use super::permutation::Permutation;
use super::weighted::check_weights;
use super::{Sampler, write_positions};
use crate::error::{Error, ErrorKind, Result};
use crate::random::key;

/// Mixes several concatenated sources at fixed proportions, each shuffled on its own.
///
/// Every block of `block` positions holds the same number of samples of each part, its quota, in an order of its
/// own. A quota is the part's weighted share of the block, rounded by largest remainder, so that a part is never
/// short by chance. Each part walks through a shuffled order of its samples and, once they are used up, through
/// another one. It goes on with that walk in the next epoch: a part that is larger than its share of an epoch is
/// covered over several (at an epoch's end less than one quota of samples is passed over where `block` does not
/// divide the epoch's length).
#[derive(Debug, Clone)]
pub struct Mix {
    parts: Vec<Part>,
    block: u64,
    len: u64,
    seed: u64,
}

#[derive(Debug, Clone, Copy)]
struct Part {
    /// Index of the part's first sample in the concatenation.
    offset: u64,
    len: u64,
    quota: u64,
    /// The places `end - quota..end` of a block, before these are permuted, are the part's.
    end: u64,
}

/// A part's order in one pass over it, which begins when `start` of its samples have come in all.
#[derive(Clone, Copy)]
struct Walk {
    part: usize,
    start: u128,
    order: Permutation,
}

/// How many orders of parts a call of `fill` keeps at hand.
const WALKS: usize = 8;

impl Mix {
    const KIND: u64 = u64::from_le_bytes(*b"mixture1");
    /// An epoch's longest length: what a part has walked in 2^64 such epochs still fits 128 bits.
    const MAX_LEN: u64 = 1 << 63;
    const MAX_BLOCK: u64 = 1 << 32;

    /// Mixes `parts`, given as `(len, weight)` in the order in which the sources were concatenated, with quotas
    /// for each `block` positions. An epoch has as many positions as the parts have samples; see
    /// [`with_len`](Self::with_len).
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] where there is no part, a weight is negative or not finite, all weights are
    /// zero, a part with a weight has no sample or would get no position in a block, a block is over 2^32, or the
    /// parts have more than 2^63 samples.
    pub fn new(parts: &[(u64, f64)], block: u64, seed: u64) -> Result<Self> {
        let weights: Vec<f64> = parts.iter().map(|&(_, weight)| weight).collect();
        let largest = check_weights(&weights)?;
        if block > Self::MAX_BLOCK {
            return Err(invalid(format!("a block of {block} positions: the most is {}", Self::MAX_BLOCK)));
        }
        let quotas = quotas(&weights, weights[largest], block);
        let (mut offset, mut end) = (0_u64, 0);
        let mut mixed = Vec::with_capacity(parts.len());
        for (i, (&(len, weight), quota)) in parts.iter().zip(quotas).enumerate() {
            if weight > 0.0 && quota == 0 {
                return Err(invalid(format!(
                    "part {i} of weight {weight} gets none of a block's {block} positions"
                )));
            }
            if weight > 0.0 && len == 0 {
                return Err(invalid(format!("part {i} of weight {weight} has no sample")));
            }
            end += quota;
            mixed.push(Part { offset, len, quota, end });
            offset = offset.checked_add(len).filter(|&sum| sum <= Self::MAX_LEN).ok_or_else(too_long)?;
        }
        Ok(Self { parts: mixed, block, len: offset, seed })
    }

    /// The same mix with `len` positions an epoch.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] where `len` is over 2^63.
    pub fn with_len(self, len: u64) -> Result<Self> {
        if len > Self::MAX_LEN { Err(too_long()) } else { Ok(Self { len, ..self }) }
    }

    /// How many of each block's positions each part gets.
    pub fn quotas(&self) -> impl ExactSizeIterator<Item = u64> {
        self.parts.iter().map(|part| part.quota)
    }

    fn arrangement(&self, epoch: u64, block: u64) -> Permutation {
        Permutation::new(self.block, key(&[Self::KIND, self.seed, epoch, block]))
    }

    /// The walk in which part `number` is when `walked` of its samples have come.
    fn walk(&self, number: usize, walked: u128) -> Walk {
        let len = self.parts[number].len;
        let pass = walked / u128::from(len);
        let seed = [Self::KIND, self.seed, number as u64, pass as u64, (pass >> 64) as u64];
        Walk { part: number, start: pass * u128::from(len), order: Permutation::new(len, key(&seed)) }
    }

    /// The part that has `place` of a block, and how many of its samples have come when `rounds` blocks have.
    fn part_at(&self, rounds: u128, place: u64) -> (usize, u128) {
        let number = self.parts.partition_point(|part| part.end <= place);
        let part = &self.parts[number];
        (number, rounds * u128::from(part.quota) + u128::from(place - (part.end - part.quota)))
    }
}

fn invalid(message: String) -> Error {
    Error::new(ErrorKind::InvalidConfig, message)
}

fn too_long() -> Error {
    invalid(format!("a mix has at most {} positions an epoch, and its parts as many samples", Mix::MAX_LEN))
}

/// Shares out `block` places by weight: each part its share rounded down, then one more to those that lost most by
/// that, the first of equals first. In integers, so that the quotas always add up (and without `powi`, which may
/// round differently from one machine to the next).
fn quotas(weights: &[f64], largest: f64, block: u64) -> Vec<u64> {
    let scaled: Vec<u128> = weights.iter().map(|w| (w / largest * (1_u64 << 53) as f64) as u128).collect();
    let sum: u128 = scaled.iter().sum();
    let share = |i: usize| scaled[i] * u128::from(block);
    let mut quotas: Vec<u64> = (0..weights.len()).map(|i| (share(i) / sum) as u64).collect();
    let left = block - quotas.iter().sum::<u64>();
    let mut by_loss: Vec<usize> = (0..weights.len()).collect();
    by_loss.sort_by_key(|&i| std::cmp::Reverse(share(i) % sum));
    for &i in by_loss.iter().take(left as usize) {
        quotas[i] += 1;
    }
    quotas
}

impl Sampler for Mix {
    fn len(&self) -> u64 {
        self.len
    }

    fn index(&self, epoch: u64, position: u64) -> u64 {
        let mut one = [position];
        self.fill(epoch, position, 1, &mut one);
        one[0]
    }

    fn fill(&self, epoch: u64, start: u64, step: u64, out: &mut [u64]) {
        write_positions(start, step, self.len, out);
        let blocks = self.len.div_ceil(self.block);
        let mut walks: [Option<Walk>; WALKS] = [None; WALKS];
        let mut rest = out;
        while let Some(&first) = rest.first() {
            let block = first / self.block;
            let begin = block * self.block;
            let inside = rest.partition_point(|&position| position - begin < self.block);
            let (places, tail) = rest.split_at_mut(inside);
            places.iter_mut().for_each(|position| *position -= begin);
            self.arrangement(epoch, block).apply_all(places);
            // Times a quota this stays below 2^64 · (2^63 + 2^32), by the limits on both lengths.
            let rounds = u128::from(epoch) * u128::from(blocks) + u128::from(block);
            for place in places {
                let (number, walked) = self.part_at(rounds, *place);
                let part = &self.parts[number];
                let is_on =
                    |w: &Walk| w.part == number && walked.wrapping_sub(w.start) < u128::from(part.len);
                let kept = &mut walks[number % WALKS];
                let walk = match kept {
                    Some(walk) if is_on(walk) => walk,
                    _ => kept.insert(self.walk(number, walked)),
                };
                *place = part.offset + walk.order.apply((walked - walk.start) as u64);
            }
            rest = tail;
        }
    }

    fn fingerprint(&self) -> u64 {
        self.parts.iter().fold(key(&[Self::KIND, self.block, self.len, self.seed]), |h, part| {
            key(&[h, part.len, part.quota])
        })
    }
}

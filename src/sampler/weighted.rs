//! Sampling with replacement, by weight.

use super::{Sampler, check, write_positions};
use crate::error::{Error, ErrorKind, Result};
use crate::random::{key, mix};

/// Draws samples with replacement, each with a probability in proportion to its weight.
///
/// A draw is a look-up in an alias table (Walker, 1977; built as in Vose, 1991) that takes 16 bytes a weight. The
/// table is the crate's own, because a saved state relies on it: another library may change its draws with a
/// version.
#[derive(Debug, Clone)]
pub struct Weighted {
    columns: Vec<Column>,
    draws: u64,
    seed: u64,
    weights: u64,
}

/// A column of the alias table: gives itself with probability `keep / 2^64`, else `alias`.
#[derive(Debug, Clone, Copy)]
struct Column {
    keep: u64,
    alias: u64,
}

impl Weighted {
    const KIND: u64 = u64::from_le_bytes(*b"weighted");

    /// `draws` draws an epoch from `0..weights.len()`, keyed by `(seed, epoch, position)`. The weights need
    /// not add up to 1; a sample of weight 0 is never drawn.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] where there is no weight, one is negative or not finite, or all are zero.
    pub fn new(weights: &[f64], draws: u64, seed: u64) -> Result<Self> {
        let largest = check_weights(weights)?;
        let fingerprint = weights.iter().fold(Self::KIND, |h, w| key(&[h, w.to_bits()]));
        Ok(Self { columns: alias_table(weights, largest), draws, seed, weights: fingerprint })
    }

    fn draw(&self, base: u64, position: u64) -> u64 {
        let place = mix(base.wrapping_add(position.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
        let column = ((u128::from(place) * self.columns.len() as u128) >> 64) as u64;
        let Column { keep, alias } = self.columns[column as usize];
        if mix(place ^ base.rotate_left(32)) < keep { column } else { alias }
    }

    fn base(&self, epoch: u64) -> u64 {
        key(&[Self::KIND, self.seed, epoch])
    }
}

/// The index of the largest weight, once all are known to be fit for use.
pub(super) fn check_weights(weights: &[f64]) -> Result<usize> {
    let wrong = |message: String| Err(Error::new(ErrorKind::InvalidConfig, message));
    if let Some((i, w)) = weights.iter().enumerate().find(|(_, w)| !(w.is_finite() && **w >= 0.0)) {
        return wrong(format!("weight {i} is {w}: a weight must be finite and not negative"));
    }
    match weights.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)) {
        None => wrong("no weights: there must be at least one".into()),
        Some((_, 0.0)) => wrong(format!("all {} weights are zero: one must be positive", weights.len())),
        Some((largest, _)) => Ok(largest),
    }
}

/// Not by `powi`, which may round differently from one machine to the next.
const TWO_64: f64 = (1_u128 << 64) as f64;

fn alias_table(weights: &[f64], largest: usize) -> Vec<Column> {
    // Divided by the largest first, so that no sum overflows; then the mean is made 1.
    let relative = |w: f64| w / weights[largest];
    let scale = weights.len() as f64 / weights.iter().map(|&w| relative(w)).sum::<f64>();
    let mut share: Vec<f64> = weights.iter().map(|&w| relative(w) * scale).collect();
    let (mut small, mut large): (Vec<_>, Vec<_>) = (0..weights.len()).partition(|&i| share[i] < 1.0);
    let mut columns: Vec<_> =
        (0..weights.len() as u64).map(|i| Column { keep: u64::MAX, alias: i }).collect();
    while let (Some(&s), Some(&l)) = (small.last(), large.last()) {
        small.pop();
        columns[s] = Column { keep: (share[s] * TWO_64) as u64, alias: l as u64 };
        share[l] -= 1.0 - share[s];
        if share[l] < 1.0 {
            large.pop();
            small.push(l);
        }
    }
    // What is left has a share of 1 but for rounding, and keeps itself. Rounding must not bring in a zero.
    for s in small.into_iter().filter(|&s| weights[s] == 0.0) {
        columns[s] = Column { keep: 0, alias: largest as u64 };
    }
    columns
}

impl Sampler for Weighted {
    fn len(&self) -> u64 {
        self.draws
    }

    fn index(&self, epoch: u64, position: u64) -> u64 {
        check(position, self.draws);
        self.draw(self.base(epoch), position)
    }

    fn fill(&self, epoch: u64, start: u64, step: u64, out: &mut [u64]) {
        write_positions(start, step, self.draws, out);
        let base = self.base(epoch);
        for slot in out {
            *slot = self.draw(base, *slot);
        }
    }

    fn fingerprint(&self) -> u64 {
        key(&[Self::KIND, self.weights, self.columns.len() as u64, self.draws, self.seed])
    }
}

//! A keyed permutation of `0..len` that is computed, not stored.

use crate::random::{SampleRng, mix};

/// Up to this length a permutation is drawn by Fisher and Yates into a table on the stack: every order is
/// equally likely. A Feistel network on so few values would need many rounds, and those of even length
/// would never give an odd permutation.
const TABLE: usize = 128;
/// Rounds of the network below [`LARGE`] values; 3 already pass the tests below, 2 do not.
const SMALL_ROUNDS: usize = 4;
/// Rounds at [`LARGE`] values and more. A round changes both halves, so these are 6 of the textbook's, where 4 make
/// a pseudo-random permutation of random round functions (Luby and Rackoff, 1988).
const LARGE_ROUNDS: usize = 3;
const LARGE: u64 = 1 << 16;
/// How many values go through the network side by side, so that their multiplications overlap.
const LANES: usize = 4;

/// A permutation of `0..len`, the same for the same key. It needs no memory that grows with `len`.
///
/// Above [`TABLE`] values it is an unbalanced Feistel network on `[0, left) × [0, 2^right_bits)`: the value's
/// high part is an integer modulo `left`, its low part a bit string, and each round adds a keyed function of
/// one to the other (Black and Rogaway, 2002). That domain has less than `2^right_bits ≤ √(2·len)` values too many;
/// one that lands there goes round again (cycle walking), which happens to less than one in eight.
#[derive(Debug, Clone, Copy)]
pub(super) struct Permutation {
    len: u64,
    network: Network,
}

#[derive(Debug, Clone, Copy)]
#[allow(clippy::large_enum_variant)] // it lives on the stack, both variants are small
enum Network {
    Table([u8; TABLE]),
    Feistel { left: u64, right_bits: u32, rounds: usize, keys: [[u64; 2]; SMALL_ROUNDS] },
}

impl Permutation {
    pub(super) fn new(len: u64, key: u64) -> Self {
        let network =
            if len <= TABLE as u64 { Self::table(len as usize, key) } else { Self::feistel(len, key) };
        Self { len, network }
    }

    fn table(len: usize, key: u64) -> Network {
        let mut table = [0; TABLE];
        let mut rng = SampleRng::from_key(key);
        // "Inside out": each new value goes to a random place among those before it.
        for i in 0..len {
            let j = rng.below(i as u64 + 1) as usize;
            table[i] = table[j];
            table[j] = i as u8;
        }
        Network::Table(table)
    }

    fn feistel(len: u64, key: u64) -> Network {
        let bits = 64 - (len - 1).leading_zeros();
        let right_bits = bits / 2;
        let mut keys = [[0; 2]; SMALL_ROUNDS];
        let mut counter = key;
        for half in keys.as_flattened_mut() {
            counter = counter.wrapping_add(0x9e37_79b9_7f4a_7c15);
            *half = mix(counter);
        }
        let rounds = if len < LARGE { SMALL_ROUNDS } else { LARGE_ROUNDS };
        Network::Feistel { left: ((len - 1) >> right_bits) + 1, right_bits, rounds, keys }
    }

    /// Where `x < len` goes.
    pub(super) fn apply(&self, x: u64) -> u64 {
        let mut one = [x];
        self.apply_all(&mut one);
        one[0]
    }

    /// Replaces every value, all below `len`, by where it goes.
    pub(super) fn apply_all(&self, values: &mut [u64]) {
        match &self.network {
            Network::Table(table) => values.iter_mut().for_each(|x| *x = u64::from(table[*x as usize])),
            Network::Feistel { left, right_bits, rounds, keys } => {
                let (left, right_bits, keys) = (*left, *right_bits, &keys[..*rounds]);
                let (chunks, rest) = values.as_chunks_mut::<LANES>();
                for chunk in chunks {
                    *chunk = forward(*chunk, left, right_bits, keys);
                    for x in chunk {
                        self.walk(x, left, right_bits, keys);
                    }
                }
                for x in rest {
                    [*x] = forward([*x], left, right_bits, keys);
                    self.walk(x, left, right_bits, keys);
                }
            }
        }
    }

    fn walk(&self, x: &mut u64, left: u64, right_bits: u32, keys: &[[u64; 2]]) {
        while *x >= self.len {
            [*x] = forward([*x], left, right_bits, keys);
        }
    }

    /// What goes to `y < len`.
    pub(super) fn invert(&self, y: u64) -> u64 {
        match &self.network {
            Network::Table(table) => {
                table[..self.len as usize].iter().position(|&v| u64::from(v) == y).map_or(y, |x| x as u64)
            }
            Network::Feistel { left, right_bits, rounds, keys } => {
                let mut x = y;
                loop {
                    x = backward(x, *left, *right_bits, &keys[..*rounds]);
                    if x < self.len {
                        return x;
                    }
                }
            }
        }
    }
}

/// The rounds' keyed function. Its high bits are the good ones.
#[inline(always)]
fn scramble(x: u64, key: u64) -> u64 {
    let h = (x ^ key).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (h ^ (h >> 32)).wrapping_mul(0x94d0_49bb_1331_11eb)
}

/// The high part's addend: the high bits of `scramble`, scaled to `0..left` (`left ≤ 2^32`).
#[inline(always)]
fn addend(right: u64, key: u64, left: u64) -> u64 {
    ((scramble(right, key) >> 32) * left) >> 32
}

#[inline(always)]
fn forward<const N: usize>(values: [u64; N], left: u64, right_bits: u32, keys: &[[u64; 2]]) -> [u64; N] {
    let mask = (1 << right_bits) - 1;
    let mut l = values.map(|x| x >> right_bits);
    let mut r = values.map(|x| x & mask);
    for &[to_left, to_right] in keys {
        for i in 0..N {
            let sum = l[i] + addend(r[i], to_left, left);
            l[i] = sum.min(sum.wrapping_sub(left)); // modulo: below `left` the difference wraps to a huge one
            r[i] ^= (scramble(l[i], to_right) >> 32) & mask;
        }
    }
    std::array::from_fn(|i| (l[i] << right_bits) | r[i])
}

fn backward(value: u64, left: u64, right_bits: u32, keys: &[[u64; 2]]) -> u64 {
    let mask = (1 << right_bits) - 1;
    let (mut l, mut r) = (value >> right_bits, value & mask);
    for &[to_left, to_right] in keys.iter().rev() {
        r ^= (scramble(l, to_right) >> 32) & mask;
        let addend = addend(r, to_left, left);
        l = if l >= addend { l - addend } else { l + left - addend };
    }
    (l << right_bits) | r
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::key;

    /// Both kinds of network, and what lies around a change of their shape.
    const LENGTHS: [u64; 19] =
        [0, 1, 2, 3, 5, 127, 128, 129, 130, 255, 256, 257, 1000, 1024, 1025, 4095, 65535, 65536, 65537];

    #[test]
    fn every_length_gives_a_permutation_and_its_inverse() {
        for len in LENGTHS.into_iter().filter(|&len| !cfg!(miri) || len < 300) {
            let p = Permutation::new(len, key(&[len]));
            let mut images: Vec<u64> = (0..len).collect();
            p.apply_all(&mut images);
            let mut seen = vec![false; len as usize];
            for (x, &y) in images.iter().enumerate() {
                assert!(!std::mem::replace(&mut seen[y as usize], true), "{y} twice at length {len}");
                assert_eq!((p.apply(x as u64), p.invert(y)), (y, x as u64), "length {len}");
            }
        }
    }

    #[test]
    fn huge_lengths_stay_in_range_and_invert() {
        for len in [1_000_000_000_000, (1 << 32) + 1, (1 << 63) + 1, u64::MAX - 1, u64::MAX] {
            let p = Permutation::new(len, 3);
            for x in (0..100).flat_map(|i| [i, len / 2 + i, len - 1 - i]) {
                let y = p.apply(x);
                assert!(y < len, "{y} of {len}");
                assert_eq!(p.invert(y), x, "length {len}");
            }
        }
    }

    #[test]
    fn few_values_walk_twice() {
        for len in LENGTHS.into_iter().filter(|&len| len > TABLE as u64) {
            let Network::Feistel { left, right_bits, .. } = Permutation::new(len, 0).network else {
                panic!("a table for {len} values")
            };
            let domain = left << right_bits;
            assert!(
                domain >= len && (domain - len) as f64 <= (2.0 * len as f64).sqrt(),
                "{domain} for {len}"
            );
        }
    }

    /// By how many standard deviations a chi-square statistic of `counts` is off its mean.
    fn deviation(counts: &[u64]) -> f64 {
        let mean = counts.iter().sum::<u64>() as f64 / counts.len() as f64;
        let chi: f64 = counts.iter().map(|&n| (n as f64 - mean).powi(2) / mean).sum();
        let freedom = (counts.len() - 1) as f64;
        (chi - freedom) / (2.0 * freedom).sqrt()
    }

    #[test]
    #[cfg_attr(miri, ignore = "statistics need many draws")]
    fn all_orders_of_five_are_equally_likely() {
        let mut counts = [0; 120];
        for seed in 0..60_000 {
            let p = Permutation::new(5, key(&[seed]));
            let images: Vec<u64> = (0..5).map(|x| p.apply(x)).collect();
            let rank = (0..5).fold(0, |rank, i| {
                rank * (5 - i) + images[i + 1..].iter().filter(|&&y| y < images[i]).count()
            });
            counts[rank] += 1;
        }
        assert!(deviation(&counts) < 5.0, "{}: {counts:?}", deviation(&counts));
    }

    #[test]
    #[cfg_attr(miri, ignore = "statistics need many draws")]
    fn the_images_of_two_neighbours_are_independent_of_each_other() {
        // Over many keys: every ordered pair of different images about equally often, for values that share
        // their high part, their low part, or neither.
        const LEN: u64 = 129; // the smallest network
        for (a, b) in [(0, 1), (3, 19), (40, 57)] {
            let mut counts = vec![0; (LEN * (LEN - 1)) as usize];
            for seed in 0..160_000 {
                let mut pair = [a, b];
                Permutation::new(LEN, key(&[seed])).apply_all(&mut pair);
                let [y, z] = pair;
                counts[(y * (LEN - 1) + z - u64::from(z > y)) as usize] += 1;
            }
            assert!(deviation(&counts) < 5.0, "{a}, {b}: {}", deviation(&counts));
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "statistics need many draws")]
    fn the_corners_of_a_rectangle_are_as_independent_as_in_a_stored_shuffle() {
        // Four values of two high and two low parts are where a network of few rounds shows first. What of their
        // images a round keeps (the alternating sum of the high parts, the parity of the low ones) is compared
        // with what Fisher and Yates give, by a two-sample chi-square.
        const LEN: usize = 144; // 9 high parts, 16 low ones
        let mut counts = [[0_u64; 9 * 16]; 2];
        for seed in 0..120_000 {
            let p = Permutation::new(LEN as u64, key(&[seed]));
            let network = [0, 1, 16, 17].map(|x| p.apply(x));
            let mut rng = SampleRng::from_key(key(&[seed, 1]));
            let mut stored: [u64; LEN] = std::array::from_fn(|i| i as u64);
            (0..4).for_each(|i| stored.swap(i, i + rng.below((LEN - i) as u64) as usize));
            for (counts, [a, b, c, d]) in counts.iter_mut().zip([network, [0, 1, 2, 3].map(|i| stored[i])]) {
                let high = (a / 16 + d / 16 + 18 - b / 16 - c / 16) % 9;
                counts[(high * 16 + (a ^ b ^ c ^ d) % 16) as usize] += 1;
            }
        }
        let pairs: Vec<_> = std::iter::zip(counts[0], counts[1]).filter(|&(a, b)| a + b > 0).collect();
        let chi: f64 = pairs.iter().map(|&(a, b)| (a as f64 - b as f64).powi(2) / (a + b) as f64).sum();
        let freedom = (pairs.len() - 1) as f64;
        let deviation = (chi - freedom) / (2.0 * freedom).sqrt();
        assert!(deviation < 5.0, "{deviation}");
    }

    #[test]
    #[cfg_attr(miri, ignore = "statistics need many draws")]
    fn neighbours_do_not_stay_together() {
        for len in [1000, 65_536, 1_000_000_000_000] {
            // The distance from one image to the next is spread evenly around the circle.
            let mut counts = [0; 50];
            for seed in 0..400 {
                let p = Permutation::new(len, key(&[seed, len]));
                let mut images: Vec<u64> = (0..200).map(|x| x * (len / 1000).min(7)).collect();
                p.apply_all(&mut images);
                for pair in images.windows(2) {
                    let distance = (u128::from(pair[1]) + u128::from(len - pair[0])) % u128::from(len) - 1;
                    counts[(distance * 50 / u128::from(len - 1)) as usize] += 1;
                }
            }
            assert!(deviation(&counts) < 5.0, "length {len}: {} {counts:?}", deviation(&counts));
        }
    }

    #[test]
    fn one_bit_of_the_key_changes_the_whole_order() {
        let order = |seed| {
            let p = Permutation::new(1000, seed);
            let mut images: Vec<u64> = (0..1000).collect();
            p.apply_all(&mut images);
            images
        };
        let base = order(7);
        for bit in (0..64).step_by(if cfg!(miri) { 16 } else { 1 }) {
            let same = order(7 ^ (1 << bit)).iter().zip(&base).filter(|(a, b)| a == b).count();
            assert!(same < 12, "bit {bit}: {same} of 1000 stayed");
        }
    }

    #[test]
    fn the_orders_are_pinned() {
        // A change here changes every user's shuffle and breaks saved states: it needs new kinds of samplers.
        let images = |len| [0, 1, 2].map(|x| Permutation::new(len, 42).apply(x));
        assert_eq!(images(10), PINNED[0]);
        assert_eq!(images(1000), PINNED[1]);
        assert_eq!(images(1_000_000_000_000), PINNED[2]);
    }
    const PINNED: [[u64; 3]; 3] = [[6, 8, 3], [583, 884, 902], [838503504127, 414738503307, 929039049524]];
}

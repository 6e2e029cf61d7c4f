//! A keyed permutation of `0..len` that is computed, not stored.

use super::feistel::{Keys, Narrow, Wide};
use crate::random::SampleRng;

/// Up to this length a permutation is drawn by Fisher and Yates into a table on the stack: every order is
/// equally likely. A Feistel network on so few values would need many rounds, and those of even length
/// would never give an odd permutation.
const TABLE: usize = 128;
/// How many values go through the narrow network side by side: enough to keep the vector units busy while others
/// wait for a product.
const NARROW_LANES: usize = 64;
/// The same for the fewer at the end.
const LAST_LANES: usize = 16;
/// The same for the wide network, so that its multiplications overlap.
const WIDE_LANES: usize = 4;

/// A permutation of `0..len`, the same for the same key. It needs no memory that grows with `len`.
///
/// Above [`TABLE`] values it is a Feistel network on a few values more: one that lands among these goes round again
/// (cycle walking), which happens to less than one in eight.
#[derive(Debug, Clone, Copy)]
pub(super) struct Permutation {
    len: u64,
    kind: Kind,
}

#[derive(Debug, Clone, Copy)]
#[allow(clippy::large_enum_variant)] // it lives on the stack, all variants are small
enum Kind {
    Table([u8; TABLE]),
    Narrow(Narrow),
    Wide(Wide),
}

impl Permutation {
    pub(super) fn new(len: u64, key: u64) -> Self {
        let kind = if len <= TABLE as u64 {
            Kind::Table(table(len as usize, key))
        } else if let Ok(len) = u32::try_from(len) {
            Kind::Narrow(Narrow::new(len, &mut Keys::new(key)))
        } else {
            Kind::Wide(Wide::new(len, &mut Keys::new(key)))
        };
        Self { len, kind }
    }

    /// Where `x < len` goes.
    pub(super) fn apply(&self, x: u64) -> u64 {
        match &self.kind {
            Kind::Table(table) => u64::from(table[x as usize]),
            Kind::Narrow(network) => u64::from(narrow_one(network, self.len as u32, x as u32)),
            Kind::Wide(network) => self.wide_one(network, x),
        }
    }

    /// Replaces every value, all below `len`, by where it goes.
    pub(super) fn apply_all(&self, values: &mut [u64]) {
        match &self.kind {
            Kind::Table(table) => values.iter_mut().for_each(|x| *x = u64::from(table[*x as usize])),
            Kind::Narrow(network) => {
                let len = self.len as u32;
                #[cfg(all(target_arch = "x86_64", not(miri)))]
                if std::arch::is_x86_feature_detected!("avx2") {
                    // SAFETY: AVX2 has just been detected.
                    return unsafe { narrow_all_avx2(network, len, values) };
                }
                narrow_all(network, len, values);
            }
            Kind::Wide(network) => {
                let (blocks, rest) = values.as_chunks_mut::<WIDE_LANES>();
                for block in blocks {
                    *block = network.forward(*block);
                    for x in block.iter_mut().filter(|x| **x >= self.len) {
                        *x = self.wide_one(network, *x);
                    }
                }
                rest.iter_mut().for_each(|x| *x = self.wide_one(network, *x));
            }
        }
    }

    fn wide_one(&self, network: &Wide, mut x: u64) -> u64 {
        loop {
            [x] = network.forward([x]);
            if x < self.len {
                return x;
            }
        }
    }

    /// What goes to `y < len`.
    pub(super) fn invert(&self, y: u64) -> u64 {
        let mut x = y;
        loop {
            x = match &self.kind {
                Kind::Table(table) => {
                    let at = table[..self.len as usize].iter().position(|&v| u64::from(v) == y);
                    return at.map_or(y, |x| x as u64);
                }
                Kind::Narrow(network) => u64::from(network.backward(x as u32)),
                Kind::Wide(network) => network.backward(x),
            };
            if x < self.len {
                return x;
            }
        }
    }
}

fn table(len: usize, key: u64) -> [u8; TABLE] {
    let mut table = [0; TABLE];
    let mut rng = SampleRng::from_key(key);
    // "Inside out": each new value goes to a random place among those before it.
    for i in 0..len {
        let j = rng.below(i as u64 + 1) as usize;
        table[i] = table[j];
        table[j] = i as u8;
    }
    table
}

fn narrow_one(network: &Narrow, len: u32, mut x: u32) -> u32 {
    loop {
        [x] = network.forward([x]);
        if x < len {
            return x;
        }
    }
}

/// [`narrow_all`] for processors that multiply eight numbers of 32 bits at once; the baseline has no such
/// instruction.
#[cfg(target_arch = "x86_64")]
#[cfg_attr(miri, allow(dead_code))]
#[target_feature(enable = "avx2")]
fn narrow_all_avx2(network: &Narrow, len: u32, values: &mut [u64]) {
    narrow_all(network, len, values);
}

#[inline(always)]
fn narrow_all(network: &Narrow, len: u32, values: &mut [u64]) {
    let (blocks, rest) = values.as_chunks_mut::<NARROW_LANES>();
    for block in blocks {
        narrow_block::<NARROW_LANES>(network, len, block);
    }
    for chunk in rest.chunks_mut(LAST_LANES) {
        narrow_block::<LAST_LANES>(network, len, chunk);
    }
}

/// At most `N` values; the lanes of those that lack go along idle.
#[inline(always)]
fn narrow_block<const N: usize>(network: &Narrow, len: u32, values: &mut [u64]) {
    let mut block = [0; N];
    for (lane, x) in block.iter_mut().zip(&*values) {
        *lane = *x as u32;
    }
    block = network.forward(block);
    if block.iter().fold(0, |highest, &x| x.max(highest)) >= len {
        for x in block.iter_mut().filter(|x| **x >= len) {
            *x = narrow_one(network, len, *x);
        }
    }
    for (x, lane) in values.iter_mut().zip(block) {
        *x = u64::from(lane);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::key;
    use crate::sampler::feistel::tests::deviation;
    use proptest::prelude::*;

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

    proptest! {
        #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 2 } else { 200 }, failure_persistence: None, ..Default::default() })]

        #[test]
        fn every_way_to_apply_it_gives_the_same(
            len in prop_oneof![129..300_u32, 300..70_000_u32, 70_000..=u32::MAX],
            seed: u64,
            draws in proptest::collection::vec(any::<u64>(), 0..200),
        ) {
            let p = Permutation::new(u64::from(len), seed);
            let Kind::Narrow(network) = &p.kind else { panic!("not the narrow network at {len}") };
            let values: Vec<u64> = draws.iter().map(|x| x % u64::from(len)).collect();
            let expected: Vec<u64> = values.iter().map(|&x| p.apply(x)).collect();
            let mut detected = values.clone();
            p.apply_all(&mut detected);
            prop_assert_eq!(&detected, &expected);
            let mut baseline = values.clone();
            narrow_all(network, len, &mut baseline);
            prop_assert_eq!(&baseline, &expected);
            let back: Vec<u64> = expected.iter().map(|&y| p.invert(y)).collect();
            prop_assert_eq!(&back, &values);
        }
    }

    #[test]
    fn huge_lengths_stay_in_range_and_invert() {
        for len in
            [(1 << 32) - 1, 1 << 32, (1 << 32) + 1, 1_000_000_000_000, (1 << 63) + 1, u64::MAX - 1, u64::MAX]
        {
            let p = Permutation::new(len, 3);
            for x in (0..100).flat_map(|i| [i, len / 2 + i, len - 1 - i]) {
                let y = p.apply(x);
                assert!(y < len, "{y} of {len}");
                assert_eq!(p.invert(y), x, "length {len}");
            }
        }
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
        for len in [1000, 65_536, 100_000_000, 1_000_000_000_000] {
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
    const PINNED: [[u64; 3]; 3] = [[6, 8, 3], [635, 181, 324], [838503504127, 414738503307, 929039049524]];
}

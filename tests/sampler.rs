//! Samplers and cursors against naive models, and the cases of reported failures that they decide.

#![allow(clippy::unwrap_used)] // clippy.toml allows it in test functions only, not in what they call

use std::collections::{BTreeSet, HashMap};

use proptest::prelude::*;
use proptest::test_runner::Config;
use warpfeed::sampler::{
    BlockShuffle, Cursor, Mix, Remainder, Sampler, Sequential, Shard, Shuffle, Weighted,
};
use warpfeed::{ErrorKind, SampleRng};

fn config() -> Config {
    Config { cases: if cfg!(miri) { 4 } else { 256 }, failure_persistence: None, ..Config::default() }
}

/// The whole order of an epoch.
fn order(sampler: &dyn Sampler, epoch: u64) -> Vec<u64> {
    let mut out = vec![0; sampler.len() as usize];
    sampler.fill(epoch, 0, 1, &mut out);
    out
}

fn is_permutation(order: &[u64]) -> bool {
    let mut sorted = order.to_vec();
    sorted.sort_unstable();
    sorted.iter().copied().eq(0..order.len() as u64)
}

/// What a cursor delivers: (index, is padding).
fn delivered(cursor: &Cursor, sampler: &dyn Sampler, epoch: u64) -> Vec<(u64, bool)> {
    let mut out = vec![0; cursor.samples() as usize];
    cursor.fill(sampler, epoch, 0, &mut out);
    out.into_iter().zip((0..).map(|k| cursor.is_padding(k))).collect()
}

fn cursors(len: u64, world: u64, remainder: Remainder, start: u64) -> Vec<Cursor> {
    (0..world)
        .map(|rank| Cursor::new(len, Shard::new(rank, world).unwrap(), remainder, start).unwrap())
        .collect()
}

fn samples(len: u64, world: u64, remainder: Remainder) -> Vec<u64> {
    cursors(len, world, remainder, 0).iter().map(Cursor::samples).collect()
}

/// A sampler that proptest can show.
trait Shown: Sampler + std::fmt::Debug {}
impl<T: Sampler + std::fmt::Debug> Shown for T {}

fn any_sampler() -> impl Strategy<Value = Box<dyn Shown>> {
    let seed = any::<u64>();
    prop_oneof![
        (0..400u64).prop_map(|len| Box::new(Sequential::new(len)) as Box<dyn Shown>),
        (0..400u64, seed).prop_map(|(len, seed)| Box::new(Shuffle::new(len, seed)) as _),
        (0..400u64, 0..50u64, 0..9u64, seed)
            .prop_map(|(len, block, window, seed)| Box::new(BlockShuffle::new(len, block, window, seed)) as _),
        (prop::collection::vec(0.0..9.0f64, 1..40), 0..400u64, seed).prop_map(|(mut weights, draws, seed)| {
            weights[0] += 0.1;
            Box::new(Weighted::new(&weights, draws, seed).unwrap()) as _
        }),
        (prop::collection::vec((1..60u64, 0.5..2.0f64), 1..12), 60..120u64, 0..400u64, seed).prop_map(
            |(parts, block, len, seed)| Box::new(Mix::new(&parts, block, seed).unwrap().with_len(len).unwrap()) as _
        ),
    ]
}

fn remainder() -> impl Strategy<Value = Remainder> {
    prop_oneof![Just(Remainder::Pad), Just(Remainder::Drop), Just(Remainder::Uneven)]
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn a_shuffle_is_a_permutation(len in 0..3000u64, seed: u64, epoch: u64) {
        let len = if cfg!(miri) { len % 200 } else { len };
        prop_assert!(is_permutation(&order(&Shuffle::new(len, seed), epoch)));
    }

    #[test]
    fn a_block_shuffle_is_a_permutation_by_windows_of_whole_blocks(
        len in 1..1500u64, block in 1..200u64, window in 1..20u64, seed: u64, epoch: u64,
    ) {
        let (len, block) = if cfg!(miri) { (len.min(200), block.min(20)) } else { (len, block) };
        let sampler = BlockShuffle::new(len, block, window, seed);
        let order = order(&sampler, epoch);
        prop_assert!(is_permutation(&order));
        // The naive model: cut the order into windows by the sizes of the blocks that occur in it.
        let size = |b: u64| block.min(len - b * block);
        let mut rest = &order[..];
        let mut windows = 0;
        while !rest.is_empty() {
            // All of the next `window` blocks, whichever they are, come before any other block.
            let mut blocks = BTreeSet::new();
            for index in rest {
                if blocks.len() == window as usize && !blocks.contains(&(index / block)) { break }
                blocks.insert(index / block);
            }
            let positions = blocks.iter().map(|&b| size(b)).sum::<u64>() as usize;
            let (head, tail) = rest.split_at(positions);
            prop_assert!(head.iter().all(|index| blocks.contains(&(index / block))));
            rest = tail;
            windows += 1;
        }
        prop_assert_eq!(windows, len.div_ceil(block).div_ceil(window));
    }

    #[test]
    fn fill_is_index_one_by_one(sampler in any_sampler(), epoch in 0..3u64, start: u64, step in 1..90u64, most in 0..60usize) {
        let len = sampler.len();
        prop_assume!(len > 0);
        let start = start % len;
        let mut out = vec![u64::MAX; most.min((len - start).div_ceil(step) as usize)];
        sampler.fill(epoch, start, step, &mut out);
        let naive: Vec<u64> = (0..out.len() as u64).map(|k| sampler.index(epoch, start + k * step)).collect();
        prop_assert_eq!(out, naive);
    }

    #[test]
    fn ranks_share_what_is_left_without_overlap(
        sampler in any_sampler(), world in 1..12u64, remainder in remainder(), start: u64, batch in 1..9u64,
    ) {
        let n = sampler.len();
        let start = start % (n + 1);
        let left = n - start;
        let ranks = cursors(n, world, remainder, start);
        let mut positions: Vec<u64> = Vec::new();
        let mut padding = 0;
        for cursor in &ranks {
            let own = delivered(cursor, &*sampler, 5);
            for (k, (index, padded)) in (0..).zip(own) {
                prop_assert_eq!(index, sampler.index(5, cursor.position(k)));
                if padded { padding += 1 } else { positions.push(cursor.position(k)) }
            }
        }
        positions.sort_unstable();
        let kept = if remainder == Remainder::Drop { left - left % world } else { left };
        prop_assert!(positions.iter().copied().eq(start..start + kept), "{positions:?}");
        prop_assert_eq!(padding, if remainder == Remainder::Pad { left.next_multiple_of(world) - left } else { 0 });
        if remainder != Remainder::Uneven {
            for drop_last in [false, true] {
                let batches: BTreeSet<u64> = ranks.iter().map(|c| c.batches(batch, drop_last)).collect();
                prop_assert_eq!(batches.len(), 1);
            }
        }
    }

    #[test]
    fn a_cursor_fills_in_pieces_as_in_one(n in 1..200u64, world in 1..12u64, remainder in remainder(), batch in 1..20u64) {
        let sampler = Shuffle::new(n, 1);
        for cursor in cursors(n, world, remainder, 0) {
            let whole: Vec<u64> = delivered(&cursor, &sampler, 0).into_iter().map(|(index, _)| index).collect();
            let mut pieces = Vec::new();
            for b in 0..cursor.batches(batch, false) {
                let mut out = vec![0; batch.min(cursor.samples() - b * batch) as usize];
                cursor.fill(&sampler, 0, b * batch, &mut out);
                pieces.extend(out);
            }
            prop_assert_eq!(pieces, whole);
        }
    }

    #[test]
    fn a_run_resumes_anywhere_with_any_world_size(
        sampler in any_sampler(), before in 1..9u64, after in 1..9u64, done: u64, remainder in remainder(),
    ) {
        let n = sampler.len();
        let first = cursors(n, before, remainder, 0);
        let k = done % (first[0].samples() + 1);
        let start = first[0].global_after(k);
        let mut got: Vec<u64> = first
            .iter()
            .flat_map(|c| (0..k.min(c.samples())).filter(|&k| !c.is_padding(k)).map(|k| c.position(k)))
            .collect();
        prop_assert_eq!(got.len() as u64, start);
        let second = cursors(n, after, remainder, start);
        for c in &second {
            got.extend((0..c.samples()).filter(|&k| !c.is_padding(k)).map(|k| c.position(k)));
        }
        got.sort_unstable();
        let lost = if remainder == Remainder::Drop { (n - start) % after } else { 0 };
        prop_assert!(got.into_iter().eq(0..n - lost));
    }

    #[test]
    fn a_mix_keeps_its_quotas_and_walks_each_part_pass_by_pass(
        parts in prop::collection::vec((1..40u64, 0.2..3.0f64), 1..5), block in 40..80u64, seed: u64,
    ) {
        let blocks = 6;
        let mix = Mix::new(&parts, block, seed).unwrap().with_len(blocks * block).unwrap();
        let quotas: Vec<u64> = mix.quotas().collect();
        prop_assert_eq!(quotas.iter().sum::<u64>(), block);
        let sum: f64 = parts.iter().map(|p| p.1).sum();
        let mut offset = 0;
        let order: Vec<u64> = (0..2).flat_map(|epoch| order(&mix, epoch)).collect();
        for (&(len, weight), &quota) in parts.iter().zip(&quotas) {
            prop_assert!((quota as f64 - block as f64 * weight / sum).abs() < 1.0);
            let own = offset..offset + len;
            let mut counts: HashMap<u64, u64> = own.clone().map(|i| (i, 0)).collect();
            let mut drawn = 0;
            for block in order.chunks(block as usize) {
                let inside: Vec<u64> = block.iter().copied().filter(|i| own.contains(i)).collect();
                prop_assert_eq!(inside.len() as u64, quota);
                drawn += quota;
                for i in inside { *counts.get_mut(&i).unwrap() += 1 }
                // After any block, over the epoch's boundary too: every pass is whole but the last.
                prop_assert!(counts.values().all(|&n| n == drawn / len || n == drawn.div_ceil(len)));
            }
            offset += len;
        }
    }

    #[test]
    fn a_fingerprint_tells_parameters_apart(len in 1..1000u64, seed: u64, block in 1..50u64, window in 1..9u64) {
        let prints = [
            Sequential::new(len).fingerprint(),
            Sequential::new(len + 1).fingerprint(),
            Shuffle::new(len, seed).fingerprint(),
            Shuffle::new(len + 1, seed).fingerprint(),
            Shuffle::new(len, !seed).fingerprint(),
            BlockShuffle::new(len, block, window, seed).fingerprint(),
            BlockShuffle::new(len, block + 1, window, seed).fingerprint(),
            BlockShuffle::new(len, block, window + 1, seed).fingerprint(),
            Weighted::new(&[1.0, 2.0], len, seed).unwrap().fingerprint(),
            Weighted::new(&[2.0, 1.0], len, seed).unwrap().fingerprint(),
            Weighted::new(&[1.0, 2.0], len + 1, seed).unwrap().fingerprint(),
            Mix::new(&[(len, 1.0)], block, seed).unwrap().fingerprint(),
            Mix::new(&[(len, 1.0)], block + 1, seed).unwrap().fingerprint(),
        ];
        prop_assert_eq!(prints.iter().collect::<BTreeSet<_>>().len(), prints.len());
        prop_assert_eq!(Shuffle::new(len, seed).fingerprint(), prints[2]);
    }
}

#[test]
#[cfg_attr(miri, ignore = "statistics need many draws")]
fn weighted_frequencies_come_near_the_weights() {
    let weights = [0.0, 1.0, 2.5, 0.0, 0.01, 6.49, 10.0];
    let draws = 200_000;
    let sampler = Weighted::new(&weights, draws, 3).unwrap();
    let mut counts = [0u64; 7];
    for index in order(&sampler, 0) {
        counts[index as usize] += 1;
    }
    for (&n, w) in counts.iter().zip(weights) {
        let mean = draws as f64 * w / 20.0;
        assert!((n as f64 - mean).abs() <= 5.0 * mean.sqrt(), "{n} for {w}: {counts:?}");
    }
    assert_ne!(order(&sampler, 0), order(&sampler, 1));
}

#[test]
fn extreme_weights_are_drawn_as_they_should() {
    let only = Weighted::new(&[0.0, f64::MAX, 0.0], 500, 1).unwrap();
    assert!(order(&only, 0).iter().all(|&i| i == 1));
    let both = order(&Weighted::new(&[f64::MAX, 0.0, f64::MAX], 500, 1).unwrap(), 0);
    assert!(!both.contains(&1) && both.contains(&0) && both.contains(&2));
    let tiny = order(&Weighted::new(&[5e-324, 0.0, 5e-324], 500, 1).unwrap(), 0);
    assert!(!tiny.contains(&1) && tiny.contains(&0) && tiny.contains(&2));
}

#[test]
fn unusable_weights_are_refused() {
    let message = |weights: &[f64]| {
        let e = Weighted::new(weights, 1, 0).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::InvalidConfig);
        e.to_string()
    };
    assert!(message(&[]).contains("at least one"));
    assert!(message(&[1.0, -0.5]).contains("weight 1 is -0.5"));
    assert!(message(&[f64::NAN]).contains("weight 0 is NaN"));
    assert!(message(&[1.0, 2.0, f64::INFINITY]).contains("weight 2 is inf"));
    assert!(message(&[0.0, -0.0]).contains("all 2 weights are zero"));
}

#[test]
fn an_unusable_mix_is_refused() {
    let message = |parts: &[(u64, f64)], block| Mix::new(parts, block, 0).unwrap_err().to_string();
    assert!(message(&[], 10).contains("at least one"));
    assert!(message(&[(5, 1.0), (5, f64::NAN)], 10).contains("weight 1 is NaN"));
    assert!(message(&[(5, 1.0), (5, 0.001)], 10).contains("part 1 of weight 0.001 gets none"));
    assert!(message(&[(5, 1.0)], 0).contains("none of a block's 0"));
    assert!(message(&[(5, 1.0), (0, 1.0)], 10).contains("part 1 of weight 1 has no sample"));
    assert!(message(&[(u64::MAX, 1.0), (5, 1.0)], 10).contains("at most 9223372036854775808"));
    assert!(Mix::new(&[(5, 1.0)], 10, 0).unwrap().with_len(u64::MAX).is_err());
    // An unused part takes no place, but keeps its indices.
    let mix = Mix::new(&[(0, 0.0), (3, 0.0), (4, 2.0)], 10, 0).unwrap();
    assert_eq!((mix.len(), mix.quotas().collect::<Vec<_>>()), (7, vec![0, 0, 10]));
    assert!(order(&mix, 0).iter().all(|i| (3..7).contains(i)));
}

#[test]
fn windows_parts_and_passes_have_orders_of_their_own() {
    // Blocks of one window of 64 samples: the places of the samples within their windows.
    let blocks = order(&BlockShuffle::new(256, 64, 1, 3), 0);
    let places: BTreeSet<Vec<u64>> =
        blocks.chunks(64).map(|window| window.iter().map(|i| i % 64).collect()).collect();
    assert_eq!(places.len(), 4);
    // Two parts of 64 samples through two passes, in the order in which each was drawn.
    let mix = order(&Mix::new(&[(64, 1.0), (64, 1.0)], 2, 3).unwrap().with_len(256).unwrap(), 0);
    let (first, second): (Vec<u64>, Vec<u64>) = mix.iter().partition(|&&i| i < 64);
    let passes: BTreeSet<Vec<u64>> = [first, second]
        .iter()
        .flat_map(|part| part.chunks(64))
        .map(|p| p.iter().map(|i| i % 64).collect())
        .collect();
    assert_eq!(passes.len(), 4);
    // And the parts alternate at random, block by block.
    assert_eq!(mix.chunks(2).map(|block| block[0] < 64).collect::<BTreeSet<_>>().len(), 2);
}

#[test]
fn largest_remainders_get_the_last_places() {
    let quotas = |weights: &[f64], block| {
        let parts: Vec<_> = weights.iter().map(|&w| (10, w)).collect();
        Mix::new(&parts, block, 0).unwrap().quotas().collect::<Vec<_>>()
    };
    assert_eq!(quotas(&[0.7, 0.2, 0.1], 10), [7, 2, 1]);
    assert_eq!(quotas(&[1.0, 1.0, 1.0], 10), [4, 3, 3]);
    assert_eq!(quotas(&[5.2, 2.7, 2.1], 10), [5, 3, 2]);
}

#[test]
fn positions_near_the_end_of_u64_neither_wrap_nor_panic() {
    let n = u64::MAX;
    let samplers: [Box<dyn Sampler>; 6] = [
        Box::new(Sequential::new(n)),
        Box::new(Shuffle::new(n, 1)),
        Box::new(BlockShuffle::new(n, 1000, 64, 1)),
        Box::new(BlockShuffle::new(n, n - 5, n, 1)),
        Box::new(BlockShuffle::new(n, 1, n, 1)),
        Box::new(Weighted::new(&[1.0, 2.0], n, 1).unwrap()),
    ];
    for sampler in &samplers {
        for remainder in [Remainder::Pad, Remainder::Drop, Remainder::Uneven] {
            let cursor = Cursor::new(n, Shard::new(6, 7).unwrap(), remainder, n - 15).unwrap();
            let seen: BTreeSet<u64> = (0..cursor.samples()).map(|k| cursor.position(k)).collect();
            let wanted = match remainder {
                Remainder::Pad => BTreeSet::from([n - 9, n - 2, 5]),
                _ => BTreeSet::from([n - 9, n - 2]),
            };
            assert_eq!(seen, wanted);
            assert_eq!(cursor.global_after(2), n - 1);
            let last = if remainder == Remainder::Pad { n } else { n - 1 };
            assert_eq!(cursor.global_after(u64::MAX), last);
            assert!(delivered(&cursor, &**sampler, u64::MAX).iter().all(|&(index, _)| index < n));
        }
    }
    let mix = Mix::new(&[(1 << 62, 1.0), (1 << 62, 1.0)], 1 << 32, 1).unwrap();
    assert!(mix.index(u64::MAX, mix.len() - 1) < mix.len());
    let whole = Cursor::new(n, Shard::new(u64::MAX - 1, u64::MAX).unwrap(), Remainder::Pad, 0).unwrap();
    assert_eq!((whole.samples(), whole.position(0), whole.global_after(1)), (1, n - 1, n));
}

#[test]
fn a_position_beyond_the_end_is_refused_aloud() {
    let refuses = |f: &dyn Fn()| std::panic::catch_unwind(std::panic::AssertUnwindSafe(f)).is_err();
    assert!(refuses(&|| assert!(Shuffle::new(10, 1).index(0, 10) < 10)));
    assert!(refuses(&|| Shuffle::new(10, 1).fill(0, 2, u64::MAX, &mut [0; 2])));
    assert!(refuses(&|| Sequential::new(10).fill(0, 8, 1, &mut [0; 3])));
    Sequential::new(0).fill(0, 5, 1, &mut []);
    assert_eq!(
        Cursor::new(10, Shard::WHOLE, Remainder::Pad, 11).unwrap_err().kind(),
        ErrorKind::InvalidArgument
    );
}

#[test]
fn row_65_every_epoch_has_an_order_of_its_own() {
    let sampler = Shuffle::new(1000, 7);
    let (zero, one) = (order(&sampler, 0), order(&sampler, 1));
    assert!(is_permutation(&zero) && is_permutation(&one));
    assert_ne!(zero, one);
    // Threads that ask in any order get the same: there is no state.
    for workers in [1, 2, 8] {
        let mut found = vec![0; 1000];
        std::thread::scope(|scope| {
            for chunk in found.chunks_mut(1000 / workers).enumerate() {
                scope.spawn(move || {
                    let (w, chunk) = chunk;
                    let start = w * (1000 / workers);
                    chunk
                        .iter_mut()
                        .enumerate()
                        .rev()
                        .for_each(|(i, x)| *x = sampler.index(0, (start + i) as u64));
                });
            }
        });
        assert_eq!(found, zero);
    }
}

#[test]
fn row_67_a_samples_draws_depend_on_seed_epoch_and_index_only() {
    let draw = |index| SampleRng::new(7, 0, index).u64();
    let alone: Vec<u64> = (0..20).map(draw).collect();
    assert_eq!(alone.iter().collect::<BTreeSet<_>>().len(), 20);
    for workers in [1, 4] {
        let mut together = vec![0; 20];
        std::thread::scope(|scope| {
            for (w, chunk) in together.chunks_mut(20 / workers).enumerate() {
                scope.spawn(move || {
                    let start = w * (20 / workers);
                    chunk.iter_mut().enumerate().for_each(|(i, x)| *x = draw((start + i) as u64));
                });
            }
        });
        assert_eq!(together, alone);
    }
}

#[test]
fn row_69_epochs_differ_and_ranks_stay_disjoint() {
    let sampler = Shuffle::new(22, 0);
    let ranks = cursors(22, 2, Remainder::Pad, 0);
    let epochs = [0, 1].map(|epoch| ranks.iter().map(|c| delivered(c, &sampler, epoch)).collect::<Vec<_>>());
    assert_ne!(epochs[0], epochs[1]);
    for ranks in epochs {
        let all: BTreeSet<u64> = ranks.iter().flatten().map(|&(index, _)| index).collect();
        assert_eq!((ranks[0].len(), ranks[1].len(), all.len()), (11, 11, 22));
    }
}

#[test]
fn row_70_three_samples_for_seven_ranks() {
    let padded: Vec<u64> = cursors(3, 7, Remainder::Pad, 0)
        .iter()
        .flat_map(|c| delivered(c, &Shuffle::new(3, 1), 0))
        .map(|(index, _)| index)
        .collect();
    assert_eq!((padded.len(), padded.into_iter().collect::<BTreeSet<_>>()), (7, BTreeSet::from([0, 1, 2])));
    assert_eq!(samples(3, 7, Remainder::Uneven), [1, 1, 1, 0, 0, 0, 0]);
    assert_eq!(samples(3, 7, Remainder::Drop), [0; 7]);
    assert_eq!(samples(0, 7, Remainder::Pad), [0; 7]);
}

#[test]
fn row_71_padding_is_marked() {
    let all: Vec<(u64, bool)> = cursors(10, 3, Remainder::Pad, 0)
        .iter()
        .flat_map(|c| delivered(c, &Sequential::new(10), 0))
        .collect();
    assert_eq!((all.len(), all.iter().filter(|(_, padding)| *padding).count()), (12, 2));
    let real: BTreeSet<u64> = all.iter().filter(|(_, padding)| !padding).map(|&(index, _)| index).collect();
    assert_eq!(real.len(), 10);
    assert_eq!(samples(10, 3, Remainder::Uneven), [4, 3, 3]);
}

#[test]
fn row_73_all_ranks_take_as_many_steps() {
    let steps =
        |remainder| cursors(5, 2, remainder, 0).iter().map(|c| c.batches(2, false)).collect::<Vec<_>>();
    assert_eq!(steps(Remainder::Pad), [2, 2]);
    assert_eq!(steps(Remainder::Drop), [1, 1]);
}

#[test]
fn row_75_the_count_of_batches_is_what_comes() {
    let cursor = Cursor::new(100, Shard::WHOLE, Remainder::Pad, 0).unwrap();
    assert_eq!((cursor.batches(8, false), cursor.batches(8, true), cursor.samples() % 8), (13, 12, 4));
}

#[test]
fn row_77_no_more_comes_out_than_there_is() {
    let cursor = Cursor::new(100, Shard::WHOLE, Remainder::Pad, 0).unwrap();
    assert_eq!(cursor.batches(4, false), 25);
    let indices: Vec<u64> = delivered(&cursor, &Shuffle::new(100, 1), 0).iter().map(|&(i, _)| i).collect();
    assert!(is_permutation(&indices));
}

#[test]
fn row_79_the_same_count_of_batches_on_every_rank() {
    let counts: Vec<u64> = cursors(137, 4, Remainder::Pad, 0).iter().map(|c| c.batches(2, true)).collect();
    assert_eq!(counts, [17; 4]);
}

#[test]
fn row_84_a_run_goes_on_with_another_world_size() {
    let sampler = Shuffle::new(100, 7);
    let before = cursors(100, 2, Remainder::Pad, 0);
    assert_eq!(before[0].global_after(20), 40);
    let rest: Vec<u64> = cursors(100, 4, Remainder::Pad, 40)
        .iter()
        .flat_map(|c| delivered(c, &sampler, 3))
        .map(
            |(index, padding)| if padding { panic!("60 samples for 4 ranks need no padding") } else { index },
        )
        .collect();
    let wanted: BTreeSet<u64> = order(&sampler, 3)[40..].iter().copied().collect();
    assert_eq!((rest.len(), rest.into_iter().collect::<BTreeSet<_>>()), (60, wanted));
}

#[test]
fn row_86_a_wrong_world_is_named() {
    let e = Shard::new(0, 0).unwrap_err();
    assert!(e.to_string().contains("must be at least 1"), "{e}");
    let e = Shard::new(2, 2).unwrap_err();
    assert!(e.to_string().contains("rank 2 with a world size of 2"), "{e}");
    assert_eq!(e.kind(), ErrorKind::InvalidConfig);
}

#[test]
fn row_87_fewer_samples_than_a_batch_are_no_batch() {
    let cursor = Cursor::new(3, Shard::WHOLE, Remainder::Pad, 0).unwrap();
    assert_eq!((cursor.batches(8, true), cursor.batches(8, false)), (0, 1));
}

#[test]
fn the_orders_and_fingerprints_are_pinned() {
    // A change here breaks every saved state: it needs a new fingerprint for the kind that changed.
    let pinned = |sampler: &dyn Sampler| ([5, 6, 7].map(|p| sampler.index(1, p)), sampler.fingerprint());
    assert_eq!(pinned(&Shuffle::new(5000, 42)), ([4979, 4691, 4532], 11027125495444208955));
    assert_eq!(pinned(&BlockShuffle::new(5000, 16, 4, 42)), ([2128, 2142, 2135], 13648906156483986775));
    assert_eq!(pinned(&Weighted::new(&[1.0, 2.0, 0.5], 10, 42).unwrap()), ([0, 1, 0], 16952447241661306446));
    assert_eq!(
        pinned(&Mix::new(&[(4000, 3.0), (1000, 1.0)], 8, 42).unwrap()),
        ([2749, 3283, 619], 7032105395471357546)
    );
    assert_eq!(Sequential::new(5000).fingerprint(), 5664207628152187173);
}

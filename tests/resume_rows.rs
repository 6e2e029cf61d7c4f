//! Saved states: a run that is resumed is the rest of the run that was not interrupted. The number in a test's name
//! is the row of the list in `docs/FAILURES.md`.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test stops at the first surprise"
)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::Config;
use warpfeed::sampler::{Sampler, Sequential, Shard, Shuffle};
use warpfeed::source::from_fn;
use warpfeed::{Batch, CpuOptions, Device, ErrorKind, Loader, Order, SampleRng, State, Stream};

#[path = "support/watch.rs"]
mod watch;
use watch::{LONG, Number, device_and_stream, device_with, epoch, numbers, range, samples, values, within};

/// The whole order of an epoch.
fn order(n: u64, seed: u64, epoch: u64) -> Vec<u64> {
    let shuffle = Shuffle::new(n, seed);
    (0..n).map(|position| shuffle.index(epoch, position)).collect()
}

/// The first `k` batches of the next epoch, and the state behind them.
fn start(loader: &Loader, stream: &Stream, k: usize) -> (Vec<Vec<u64>>, State) {
    let mut running = loader.epoch(stream).unwrap();
    let seen = running.by_ref().take(k).map(|b| values(&b.unwrap())).collect();
    (seen, loader.state())
}

#[test]
fn row_82_a_state_at_the_end_of_an_epoch_is_the_start_of_the_next() {
    within(LONG, || {
        let (device, stream) = device_and_stream();
        for workers in [0, 2] {
            let loader = numbers(512).batch_size(64).shuffle(3).workers(workers).build(&device).unwrap();
            let (seen, state) = start(&loader, &stream, 8);
            assert_eq!(seen.concat(), order(512, 3, 0));
            assert_eq!((state.epoch(), state.position()), (1, 0));
            let resumed = numbers(512).batch_size(64).shuffle(3).workers(workers).resume(state);
            let resumed = resumed.build(&device).unwrap();
            assert_eq!(resumed.state(), state);
            let first = resumed.epoch(&stream).unwrap().next().unwrap().unwrap();
            assert_eq!(
                (first.epoch(), first.number(), values(&first)),
                (1, 0, order(512, 3, 1)[..64].to_vec())
            );
        }
    });
}

#[test]
fn row_83_what_was_prefetched_does_not_count() {
    within(LONG, || {
        let (device, stream) = device_and_stream();
        let build = |workers| numbers(100).shuffle(7).workers(workers).host_slots(4);
        for workers in [0, 4] {
            let loader = build(workers).build(&device).unwrap();
            let mut running = loader.epoch(&stream).unwrap();
            let mut states = Vec::new();
            for batch in running.by_ref().take(38) {
                states.push(batch.unwrap().state());
                assert_eq!(states.last(), Some(&loader.state()), "a batch's state is the loader's");
            }
            for delivered in [37, 38] {
                let state = states[delivered - 1];
                assert_eq!((state.epoch(), state.position()), (0, delivered as u64));
                let again: State = state.to_string().parse().unwrap();
                let resumed = build(4 - workers).resume(again).build(&device).unwrap();
                assert_eq!(samples(&resumed, &stream), order(100, 7, 0)[delivered..]);
                assert_eq!(samples(&resumed, &stream), order(100, 7, 1));
            }
        }
    });
}

#[test]
fn row_84_a_state_resumes_with_another_number_of_ranks() {
    within(LONG, || {
        let (device, stream) = device_and_stream();
        let rank =
            |r, world| numbers(100).batch_size(5).shard(Shard::new(r, world).unwrap()).shuffle(7).workers(1);
        let states = [0, 1].map(|r| start(&rank(r, 2).build(&device).unwrap(), &stream, 4).1);
        assert_eq!(states[0], states[1]);
        assert_eq!(states[0].position(), 40);
        let mut rest: Vec<u64> = (0..4)
            .flat_map(|r| samples(&rank(r, 4).resume(states[0]).build(&device).unwrap(), &stream))
            .collect();
        rest.sort_unstable();
        let mut wanted = order(100, 7, 0)[40..].to_vec();
        wanted.sort_unstable();
        assert_eq!(rest, wanted);
    });
}

/// How a run is split and staffed.
#[derive(Debug, Clone)]
struct Split {
    batch: usize,
    world: u64,
    workers: usize,
    slots: (usize, usize),
}

fn split() -> impl Strategy<Value = Split> {
    (1..9usize, 1..4u64, 0..3usize, (1..4usize, 1..3usize)).prop_map(|(batch, world, workers, slots)| Split {
        batch,
        world,
        workers,
        slots,
    })
}

fn ranks(n: u64, seed: u64, split: &Split, state: Option<State>, device: &Device) -> Vec<Loader> {
    let one = |rank| {
        let mut builder = numbers(n)
            .shuffle(seed)
            .batch_size(split.batch)
            .shard(Shard::new(rank, split.world).unwrap())
            .workers(split.workers)
            .host_slots(split.slots.0)
            .device_slots(split.slots.1);
        if let Some(state) = state {
            builder = builder.resume(state);
        }
        builder.build(device).unwrap()
    };
    (0..split.world).map(one).collect()
}

/// What all ranks deliver in an epoch, padding left out, by position.
fn together(loaders: &[Loader], stream: &Stream) -> Vec<u64> {
    let of = |loader: &Loader| -> Vec<Option<u64>> {
        let batches = loader.epoch(stream).unwrap().map(Result::unwrap);
        let rows = |b: Batch| {
            let values = values(&b).into_iter().enumerate();
            values.map(|(row, x)| (!b.is_padding(row)).then_some(x)).collect::<Vec<_>>()
        };
        batches.flat_map(rows).collect()
    };
    let each: Vec<_> = loaders.iter().map(of).collect();
    let longest = each.iter().map(Vec::len).max().unwrap_or(0);
    (0..longest).flat_map(|k| each.iter().filter_map(move |rank| rank.get(k).copied().flatten())).collect()
}

proptest! {
    #![proptest_config(Config { cases: 60, failure_persistence: None, ..Config::default() })]

    #[test]
    fn a_run_resumed_anywhere_in_any_split_is_the_rest_of_the_uninterrupted_one(
        n in 0..80u64, seed in 0..4u64, before in split(), after in split(), epochs in 0..2u64, batches in 0..12usize,
    ) {
        within(LONG, move || {
            let (device, stream) = device_and_stream();
            let loaders = ranks(n, seed, &before, None, &device);
            for e in 0..epochs {
                assert_eq!(together(&loaders, &stream), order(n, seed, e));
            }
            let states: Vec<State> = loaders.iter().map(|l| start(l, &stream, batches).1).collect();
            assert!(states.windows(2).all(|s| s[0] == s[1]), "the ranks agree: {states:?}");
            let state = states[0];
            drop(loaders);
            let resumed = ranks(n, seed, &after, Some(state), &device);
            let rest = together(&resumed, &stream);
            assert_eq!(rest, order(n, seed, state.epoch())[state.position() as usize..]);
            assert_eq!(together(&resumed, &stream), order(n, seed, state.epoch() + 1));
        });
    }
}

/// A loader of which every third batch takes long, so that batches get ready out of order.
fn uneven(
    n: u64,
    batch: usize,
    workers: usize,
) -> warpfeed::Builder<impl warpfeed::source::Source<Record = u64>, Number> {
    let source = from_fn(n, move |i| {
        if i % (3 * batch as u64) == 0 {
            std::thread::sleep(Duration::from_millis(4 + SampleRng::new(1, 2, i).below(8)));
        }
        Ok(i)
    });
    Loader::builder(source).decode(Number).batch_size(batch).workers(workers).host_slots(8).device_slots(4)
}

#[test]
fn out_of_order_runs_resume_without_loss_or_repeat() {
    within(LONG, || {
        let (device, stream) = device_and_stream();
        let mut ahead = 0;
        for taken in [0, 1, 2, 5, 9, 14, 20] {
            let loader = uneven(83, 4, 4).order(Order::AsReady).build(&device).unwrap();
            let (before, state) = start(&loader, &stream, taken);
            ahead += usize::from(state.to_string().split(':').count() > 4);
            for in_order in [false, true] {
                let order = if in_order { Order::InOrder } else { Order::AsReady };
                let again: State = state.to_string().parse().unwrap();
                let resumed = uneven(83, 4, 2).order(order).resume(again).build(&device).unwrap();
                let running = resumed.epoch(&stream).unwrap();
                assert_eq!(running.remaining(), Some(21 - taken as u64));
                let rest: Vec<_> = running.map(|b| values(&b.unwrap())).collect();
                let mut all = [before.concat(), rest.concat()].concat();
                all.sort_unstable();
                assert_eq!(all, (0..83).collect::<Vec<_>>(), "{taken} taken, state {again}");
                assert_eq!((resumed.state().epoch(), resumed.state().position()), (1, 0));
            }
            if state.to_string().split(':').count() > 4 {
                let e = uneven(83, 5, 2).resume(state).build(&device).unwrap_err();
                assert_eq!(e.kind(), ErrorKind::StateMismatch);
                assert!(e.to_string().contains("batch size 4") && e.to_string().contains("5"), "{e}");
            }
        }
        assert!(ahead > 0, "no batch came out of order: the test shows nothing");
    });
}

#[test]
fn a_recorded_order_is_replayed_exactly() {
    within(LONG, || {
        let (device, stream) = device_and_stream();
        let loader = uneven(90, 3, 4).order(Order::AsReady).build(&device).unwrap();
        let mut recorded = Vec::new();
        let mut seen = Vec::new();
        for _ in 0..2 {
            seen.push(epoch(&loader, &stream));
            recorded.push(loader.delivered_order());
        }
        assert_ne!(
            recorded[0],
            (0..30).collect::<Vec<_>>(),
            "nothing came out of order: the test shows nothing"
        );
        for workers in [0, 1, 3] {
            let replay = Order::Replay(recorded.clone());
            let again = uneven(90, 3, workers).order(replay.clone()).build(&device).unwrap();
            let (first, state) = start(&again, &stream, 7);
            assert_eq!(first, seen[0][..7]);
            let rest = uneven(90, 3, workers).order(replay).resume(state).build(&device).unwrap();
            assert_eq!(epoch(&rest, &stream), seen[0][7..]);
            assert_eq!(epoch(&rest, &stream), seen[1]);
            let third = epoch(&rest, &stream);
            assert!(third.concat().is_sorted(), "epochs behind the recorded ones come in order");
        }
    });
}

#[test]
fn an_order_that_can_not_be_replayed_is_refused() {
    within(LONG, || {
        let (device, stream) = device_and_stream();
        // A batch may overtake 63 others: a state could not hold more.
        let reversed: Vec<u64> = (0..100).rev().collect();
        for order in [vec![0, 1, 1], vec![0], vec![0, 1, 5], reversed] {
            let n = if order.len() == 100 { 100 } else { 3 };
            let loader = numbers(n).order(Order::Replay(vec![order])).build(&device).unwrap();
            let mut running = loader.epoch(&stream).unwrap();
            assert_eq!(running.next().unwrap().unwrap_err().kind(), ErrorKind::InvalidConfig);
            assert!(running.next().is_none());
        }
        let near: Vec<u64> = (0..64).rev().chain((64..100).rev()).collect();
        let loader = numbers(100).order(Order::Replay(vec![near.clone()])).build(&device).unwrap();
        let (seen, state) = start(&loader, &stream, 40);
        assert_eq!(seen.concat(), near[..40]);
        let loader =
            numbers(100).order(Order::Replay(vec![near.clone()])).resume(state).build(&device).unwrap();
        assert_eq!(samples(&loader, &stream), near[40..]);
    });
}

#[test]
fn a_state_of_another_run_is_refused_with_both_fingerprints() {
    let (device, stream) = device_and_stream();
    let loader = numbers(50).shuffle(1).workers(0).build(&device).unwrap();
    let state = start(&loader, &stream, 3).1;
    let other = |what: &str, builder: warpfeed::Builder<_, Number>| {
        let e = builder.resume(state).build(&device).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::StateMismatch, "{what}");
        let (ours, text) = (format!("{:016x}", state.fingerprint()), e.to_string());
        let shown =
            text.split(|c: char| !c.is_ascii_hexdigit()).filter(|w| w.len() == 16).collect::<Vec<_>>();
        assert!(shown.len() == 2 && shown.contains(&ours.as_str()) && shown[0] != shown[1], "{what}: {text}");
    };
    other("seed", numbers(50).shuffle(2));
    other("sampler", numbers(50).sampler(Sequential::new(50)).seed(1));
    other("length", numbers(51).shuffle(1));
    other("data", Loader::builder(range(50).named("other")).decode(Number).shuffle(1));
    let same = numbers(50).shuffle(1).batch_size(9).drop_last(true).workers(1).host_slots(1).resume(state);
    assert_eq!(same.build(&device).unwrap().state(), state);
}

/// A batch that the consumer keeps, and what must be in it.
type Kept = (Batch, Vec<u64>);

/// Runs of random steps against a model of the order.
struct Model {
    n: u64,
    seed: u64,
    epoch: u64,
    position: u64,
    /// This sample fails until it was seen to.
    broken: Arc<AtomicU64>,
}

impl Model {
    fn build(&self, rng: &mut SampleRng, state: Option<State>) -> (Loader, Stream, usize, usize) {
        let broken = self.broken.clone();
        let source =
            from_fn(self.n, move |i| if broken.load(SeqCst) == i { anyhow::bail!("broken") } else { Ok(i) });
        let (batch, slots) = (1 + rng.below(6) as usize, 1 + rng.below(3) as usize);
        let late = CpuOptions::default().copy_delay(rng.u64(), Duration::from_micros(rng.below(500)));
        let device = device_with(late);
        let mut builder = Loader::builder(source).decode(Number).shuffle(self.seed).batch_size(batch);
        builder =
            builder.device_slots(slots).host_slots(1 + rng.below(3) as usize).workers(rng.below(4) as usize);
        if let Some(state) = state {
            builder = builder.resume(state);
        }
        (builder.build(&device).unwrap(), device.new_stream().unwrap(), batch, slots)
    }

    fn run(&mut self, rng: &mut SampleRng) {
        let (mut kept, mut older): (Vec<Kept>, Vec<Kept>) = (Vec::new(), Vec::new());
        let mut state = None;
        for _ in 0..3 {
            self.broken.store(rng.below(2 * self.n + 1), SeqCst);
            let (loader, stream, batch, slots) = self.build(rng, state);
            older.append(&mut kept);
            // Until it stops in the middle of an epoch, or after a few of them.
            state = (0..1 + rng.below(3))
                .find_map(|_| self.epoch_of(rng, &loader, &stream, (batch, slots), &mut kept))
                .or_else(|| Some(loader.state()));
            let state = state.unwrap();
            assert_eq!((state.epoch(), state.position()), (self.epoch, self.position));
        }
        for (batch, wanted) in kept.iter().chain(&older) {
            assert_eq!(&values(batch), wanted, "a batch keeps its bytes when its loader is gone");
        }
    }

    fn next_epoch(&mut self) {
        (self.epoch, self.position) = (self.epoch + 1, 0);
    }

    /// Some or all of an epoch; the state, where the run is to be stopped there.
    fn epoch_of(
        &mut self,
        rng: &mut SampleRng,
        loader: &Loader,
        stream: &Stream,
        (batch, slots): (usize, usize),
        kept: &mut Vec<Kept>,
    ) -> Option<State> {
        let order = order(self.n, self.seed, self.epoch);
        let mut running = loader.epoch(stream).unwrap();
        assert_eq!(running.number(), self.epoch);
        loop {
            let over = self.position == self.n;
            match rng.below(30) {
                0..=2 if !kept.is_empty() => {
                    let (batch, wanted) = kept.swap_remove(rng.below(kept.len() as u64) as usize);
                    assert_eq!(values(&batch), wanted);
                }
                3 => {
                    self.next_epoch();
                    return None;
                }
                4 => {
                    if over && self.n > 0 {
                        self.next_epoch();
                    }
                    return Some(loader.state());
                }
                _ if over => {
                    assert!(running.next().is_none());
                    self.next_epoch();
                    return None;
                }
                _ => {
                    let end = (self.position + batch as u64).min(self.n);
                    let wanted = order[self.position as usize..end as usize].to_vec();
                    match running.next().unwrap() {
                        Ok(got) => {
                            assert!(kept.len() < slots && !wanted.contains(&self.broken.load(SeqCst)));
                            self.position = end;
                            if rng.below(2) == 0 {
                                kept.push((got, wanted))
                            } else {
                                assert_eq!(values(&got), wanted)
                            }
                        }
                        Err(e) if e.kind() == ErrorKind::Exhausted => {
                            assert_eq!(kept.len(), slots, "{e}");
                            kept.pop();
                        }
                        Err(e) => {
                            assert_eq!((e.kind(), e.message()), (ErrorKind::Sample, "broken"));
                            let broken = self.broken.swap(u64::MAX, SeqCst);
                            assert!(
                                kept.len() < slots
                                    && wanted.contains(&broken)
                                    && e.place().index == Some(broken)
                            );
                            assert!(running.next().is_none());
                            return None;
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn random_runs_agree_with_the_model() {
    for case in 0..200 {
        println!("case {case}"); // shown where it fails
        within(LONG, move || {
            let mut rng = SampleRng::new(0x77, 0, case);
            let (n, seed) = (rng.below(40), rng.below(5));
            let broken = Arc::new(AtomicU64::new(u64::MAX));
            Model { n, seed, epoch: 0, position: 0, broken }.run(&mut rng);
        });
    }
}

//! No loader at all: the floor under everyone, and the cost of the harness.

use std::hint::black_box;

use anyhow::Result;

use crate::{Candidate, Seen, Work};

/// A loop that gathers through an order made once (a fixed permutation, so that even the shuffle is free) into
/// one reused batch.
pub fn candidates(work: &Work, workers: usize) -> Result<Vec<Candidate>> {
    if workers > 0 {
        return Ok(Vec::new());
    }
    let (values, batch_size) = (work.values.clone(), work.batch_size);
    let mut order: Vec<u32> = (0..values.len() as u32).collect();
    if work.shuffle {
        let mut state = work.seed;
        for i in (1..order.len()).rev() {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            order.swap(i, (state >> 33) as usize % (i + 1));
        }
    }
    let mut batch = Vec::with_capacity(batch_size);
    let epoch = move || {
        let mut seen = Seen::default();
        for indices in order.chunks(batch_size) {
            batch.clear();
            batch.extend(indices.iter().map(|&i| values[i as usize]));
            seen = seen.batch(black_box(&batch));
        }
        Ok(seen)
    };
    let setting = "one thread, no loader".to_string();
    Ok(vec![Candidate { rival: "base", workers, setting, epoch: Box::new(epoch) }])
}

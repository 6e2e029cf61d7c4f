//! dataloader-rs: a batch is a task of its private rayon pool; a new `Vec` a batch; in order.

use std::sync::Arc;

use anyhow::{Result, anyhow};
use dataloader_rs::{DataLoader, Dataset, RandomSampler, Sampler, SequentialSampler};

use crate::{Candidate, Seen, Work};

/// Values read one by one, as the default `get_batch` does, or by one `get_batch` a batch.
struct Values<const BATCH: bool>(Arc<Vec<u32>>);

impl<const BATCH: bool> Dataset for Values<BATCH> {
    type Item = u32;

    fn get(&self, index: usize) -> dataloader_rs::Result<u32> {
        Ok(self.0[index])
    }

    fn get_batch(&self, indices: &[usize]) -> dataloader_rs::Result<Vec<u32>> {
        if BATCH {
            return Ok(indices.iter().map(|&i| self.0[i]).collect());
        }
        indices.iter().map(|&i| self.get(i)).collect()
    }

    fn len(&self) -> usize {
        self.0.len()
    }
}

enum Order {
    Random(RandomSampler),
    Sequential(SequentialSampler),
}

impl Sampler for Order {
    fn indices(&mut self, len: usize) -> Vec<usize> {
        match self {
            Self::Random(s) => s.indices(len),
            Self::Sequential(s) => s.indices(len),
        }
    }
}

fn candidate<const BATCH: bool>(work: &Work, workers: usize, prefetch: usize) -> Candidate {
    let order = match work.shuffle {
        true => Order::Random(RandomSampler::new(work.seed)),
        false => Order::Sequential(SequentialSampler),
    };
    let mut loader = DataLoader::builder(Values::<BATCH>(work.values.clone()))
        .batch_size(work.batch_size)
        .sampler(order)
        .num_workers(workers)
        .prefetch_depth(prefetch)
        .build();
    let epoch = move || {
        let mut seen = Seen::default();
        for batch in &mut loader {
            seen = seen.batch(&batch.map_err(|e| anyhow!("{e}"))?);
        }
        Ok(seen)
    };
    let call = if BATCH { "get_batch" } else { "get" };
    let depth = if workers > 0 { format!(", prefetch_depth {prefetch}") } else { String::new() };
    Candidate { rival: "dataloader-rs", workers, setting: format!("{call}{depth}"), epoch: Box::new(epoch) }
}

/// With workers: how far they run ahead. `items_in_parallel` stays 1: more means a lock a sample.
pub fn candidates(work: &Work, workers: usize) -> Result<Vec<Candidate>> {
    let depths: &[usize] = if workers > 0 { &[2, 8, 32, 128] } else { &[2] };
    let both = |&d: &usize| [candidate::<false>(work, workers, d), candidate::<true>(work, workers, d)];
    Ok(depths.iter().flat_map(both).collect())
}

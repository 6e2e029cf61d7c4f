//! burn's data loader: each worker thread owns a part of the data set and sends its batches as they are
//! ready over one bounded channel; the order across workers is not fixed.

use std::sync::Arc;

use anyhow::{Result, anyhow};
use burn_core::data::dataloader::DataLoaderBuilder;
use burn_core::data::dataloader::batcher::Batcher;
use burn_core::data::dataset::{Dataset, DatasetError};
use burn_core::tensor::Device;

use crate::{Candidate, Seen, Work};

struct Values(Arc<Vec<u32>>);

impl Dataset<u32> for Values {
    fn get(&self, index: usize) -> Result<u32, DatasetError> {
        Ok(self.0[index])
    }

    fn len(&self) -> usize {
        self.0.len()
    }
}

/// Hands the items on as they are: no tensor is made.
struct Items;

impl Batcher<u32, Vec<u32>> for Items {
    fn batch(&self, items: Vec<u32>, _: &Device) -> Vec<u32> {
        items
    }
}

fn candidate(work: &Work, workers: usize, prefetch: Option<usize>) -> Candidate {
    let mut builder = DataLoaderBuilder::new(Items).batch_size(work.batch_size).num_workers(workers);
    if work.shuffle {
        builder = builder.shuffle(work.seed);
    }
    if let Some(prefetch) = prefetch {
        builder = builder.prefetch(prefetch);
    }
    let loader = builder.build(Values(work.values.clone()));
    let epoch = move || {
        let mut seen = Seen::default();
        for batch in loader.iter() {
            seen = seen.batch(&batch.map_err(|e| anyhow!("{e}"))?);
        }
        Ok(seen)
    };
    let order = if workers > 1 { "as ready" } else { "in order" };
    let prefetch = prefetch.map_or(String::new(), |p| format!(", prefetch {p}"));
    Candidate { rival: "burn", workers, setting: format!("{order}{prefetch}"), epoch: Box::new(epoch) }
}

/// With workers: how many finished batches they may queue. Up to 0.22 that was fixed at 100.
pub fn candidates(work: &Work, workers: usize) -> Result<Vec<Candidate>> {
    let queues: &[Option<usize>] = if workers > 0 { &[None, Some(32), Some(100)] } else { &[None] };
    Ok(queues.iter().map(|&q| candidate(work, workers, q)).collect())
}

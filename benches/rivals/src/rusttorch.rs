//! rusttorch-data: worker lanes over bounded channels; collation on the calling thread.

use std::convert::Infallible;
use std::sync::Arc;

use anyhow::{Result, anyhow};
use rusttorch_data::{DataLoader, Dataset, VecCollate};

use crate::{Candidate, Seen, Work};

struct Values(Arc<Vec<u32>>);

impl Dataset for Values {
    type Sample = u32;
    type Error = Infallible;

    fn len(&self) -> usize {
        self.0.len()
    }

    fn get(&self, index: usize) -> Result<u32, Infallible> {
        Ok(self.0[index])
    }

    fn get_batch(&self, indices: &[usize]) -> Result<Vec<u32>, Infallible> {
        Ok(indices.iter().map(|&i| self.0[i]).collect())
    }
}

/// The epoch's loop, for each of the loader's types.
macro_rules! candidate {
    ($builder:expr, $workers:expr, $setting:expr) => {{
        let mut loader = $builder.build().map_err(|e| anyhow!("{e}"))?;
        let mut number = 0;
        let epoch = move || {
            let mut seen = Seen::default();
            loader.set_epoch(number);
            number += 1;
            for batch in loader.iter() {
                seen = seen.batch(&batch.map_err(|e| anyhow!("{e}"))?);
            }
            Ok(seen)
        };
        Candidate { rival: "rusttorch-data", workers: $workers, setting: $setting, epoch: Box::new(epoch) }
    }};
}

/// Without workers, its serial mode. With workers: how far they run ahead, and whether batches keep their order.
pub fn candidates(work: &Work, workers: usize) -> Result<Vec<Candidate>> {
    let builder =
        || DataLoader::builder(Values(work.values.clone())).batch_size(work.batch_size).collate(VecCollate);
    let mut all = Vec::new();
    if workers == 0 {
        let setting = "serial".to_string();
        all.push(match work.shuffle {
            true => candidate!(builder().shuffle(work.seed).map_err(|e| anyhow!("{e}"))?, workers, setting),
            false => candidate!(builder(), workers, setting),
        });
        return Ok(all);
    }
    for ordered in [true, false] {
        for factor in [2, 8, 32, 128] {
            let order = if ordered { "in order" } else { "as ready" };
            let setting = format!("{order}, prefetch_factor {factor}");
            macro_rules! with_workers {
                ($b:expr) => {
                    $b.workers(workers).persistent_workers(true).prefetch_factor(factor).ordered(ordered)
                };
            }
            all.push(match work.shuffle {
                true => {
                    let builder = builder().shuffle(work.seed).map_err(|e| anyhow!("{e}"))?;
                    candidate!(with_workers!(builder), workers, setting)
                }
                false => candidate!(with_workers!(builder()), workers, setting),
            });
        }
    }
    Ok(all)
}

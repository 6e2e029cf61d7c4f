//! Which rank of a distributed run this is.

use crate::error::{Error, ErrorKind, Result};

/// One of `count` ranks that share every epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shard {
    index: u64,
    count: u64,
}

impl Shard {
    /// A run on its own: rank 0 of 1.
    pub const WHOLE: Self = Self { index: 0, count: 1 };

    /// Rank `index` of a world of `count` ranks.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] where `count` is 0 or `index` is not below it.
    pub fn new(index: u64, count: u64) -> Result<Self> {
        let wrong = |message| Err(Error::new(ErrorKind::InvalidConfig, message));
        match count {
            0 => wrong("world size 0: the world size must be at least 1".to_string()),
            _ if index >= count => {
                wrong(format!("rank {index} with a world size of {count}: ranks go from 0 to {}", count - 1))
            }
            _ => Ok(Self { index, count }),
        }
    }

    /// This rank, from 0.
    pub fn index(self) -> u64 {
        self.index
    }

    /// How many ranks there are.
    pub fn count(self) -> u64 {
        self.count
    }
}

impl Default for Shard {
    fn default() -> Self {
        Self::WHOLE
    }
}

/// What becomes of samples that can't be shared out evenly among the ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Remainder {
    /// Samples from the epoch's start are repeated until all ranks have as many; the repeated ones are marked as
    /// padding.
    #[default]
    Pad,
    /// The last samples, fewer than there are ranks, are left out of this epoch.
    Drop,
    /// Every sample exactly once: the first ranks may have one more than the others.
    Uneven,
}

//! Which sample comes when: pure functions from (epoch, position) to an index.

/// An order of samples. It holds no position: the same epoch and position give the same index, on every
/// rank and in every run.
pub trait Sampler: Send + Sync + 'static {
    /// How many positions an epoch has, over all ranks.
    fn len(&self) -> u64;

    /// Whether an epoch has no position.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The index of the sample at `position < len()` of `epoch`.
    fn index(&self, epoch: u64, position: u64) -> u64;

    /// Writes the indices at `start, start + step, start + 2·step, …` of `epoch`. Every position must be
    /// below `len()`.
    fn fill(&self, epoch: u64, start: u64, step: u64, out: &mut [u64]) {
        for (k, slot) in out.iter_mut().enumerate() {
            *slot = self.index(epoch, start + k as u64 * step);
        }
    }

    /// A number that stays the same as long as the order does.
    fn fingerprint(&self) -> u64;
}

//! A shuffle that reads whole blocks of neighbours.

use super::permutation::Permutation;
use super::{Sampler, write_positions};
use crate::random::key;

/// Every sample once an epoch, shuffled so that samples that lie together are read together.
///
/// Blocks of `block` consecutive indices are put in a random order; then the samples of each `window` blocks
/// that have become neighbours are shuffled among each other. So while `block · window` positions go by, only
/// `window` stretches of the source are read, and a larger window mixes better. The last block may be short, and so
/// may the last window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockShuffle {
    len: u64,
    block: u64,
    window: u64,
    seed: u64,
}

impl BlockShuffle {
    const KIND: u64 = u64::from_le_bytes(*b"blockshf");

    /// A shuffle of `0..len` in blocks of `block` samples, mixed over `window` blocks, keyed by
    /// `(seed, epoch)`. A `block` or `window` of 0 counts as 1; one beyond `len` makes it a full shuffle.
    pub fn new(len: u64, block: u64, window: u64, seed: u64) -> Self {
        Self { len, block: block.max(1), window: window.max(1), seed }
    }

    fn layout(&self, epoch: u64) -> Layout {
        let blocks = self.len.div_ceil(self.block);
        let order = Permutation::new(blocks, key(&[Self::KIND, self.seed, epoch]));
        let short = match self.len % self.block {
            0 => Short { at: blocks, len: 0 },
            len => Short { at: order.invert(blocks - 1), len },
        };
        Layout { block: self.block, blocks, order, short }
    }

    fn window(&self, epoch: u64, layout: &Layout, position: u64) -> Window {
        let (slot, _) = layout.slot_of(position);
        let number = slot / self.window;
        let first = number * self.window;
        let start = layout.start_of(first);
        let end = layout.start_of(first.saturating_add(self.window).min(layout.blocks));
        let order = Permutation::new(end - start, key(&[Self::KIND, self.seed, epoch, number]));
        Window { start, end, order }
    }
}

/// The blocks of an epoch in their shuffled order. A place in that order is a slot.
struct Layout {
    block: u64,
    blocks: u64,
    order: Permutation,
    short: Short,
}

/// The block that has less than `block` samples: its slot (behind the last where there is none) and size.
struct Short {
    at: u64,
    len: u64,
}

impl Layout {
    /// The position of a slot's first sample; `slot <= blocks`.
    fn start_of(&self, slot: u64) -> u64 {
        if slot <= self.short.at { slot * self.block } else { (slot - 1) * self.block + self.short.len }
    }

    /// The slot and the offset in it of a position.
    fn slot_of(&self, position: u64) -> (u64, u64) {
        let short_end = self.start_of(self.short.at) + self.short.len;
        match position.checked_sub(short_end) {
            Some(behind) => (self.short.at + 1 + behind / self.block, behind % self.block),
            None => (position / self.block, position % self.block),
        }
    }
}

/// Consecutive slots whose samples, at positions `start..end`, are shuffled among each other.
struct Window {
    start: u64,
    end: u64,
    order: Permutation,
}

impl Window {
    /// Replaces positions within this window by indices.
    fn map(&self, layout: &Layout, positions: &mut [u64]) {
        let mut offsets = [0; 64];
        for chunk in positions.chunks_mut(offsets.len()) {
            chunk.iter_mut().for_each(|x| *x -= self.start);
            self.order.apply_all(chunk);
            for (x, offset) in chunk.iter_mut().zip(&mut offsets) {
                (*x, *offset) = layout.slot_of(self.start + *x);
            }
            layout.order.apply_all(chunk);
            chunk.iter_mut().zip(offsets).for_each(|(x, offset)| *x = *x * layout.block + offset);
        }
    }
}

impl Sampler for BlockShuffle {
    fn len(&self) -> u64 {
        self.len
    }

    fn index(&self, epoch: u64, position: u64) -> u64 {
        let mut one = [position];
        self.fill(epoch, position, 1, &mut one);
        one[0]
    }

    fn fill(&self, epoch: u64, start: u64, step: u64, out: &mut [u64]) {
        write_positions(start, step, self.len, out);
        let layout = self.layout(epoch);
        let mut rest = out;
        while let Some(&first) = rest.first() {
            let window = self.window(epoch, &layout, first);
            let inside = rest.partition_point(|&position| position < window.end);
            let (head, tail) = rest.split_at_mut(inside);
            window.map(&layout, head);
            rest = tail;
        }
    }

    fn fingerprint(&self) -> u64 {
        key(&[Self::KIND, self.len, self.block, self.window, self.seed])
    }
}

//! Work runs later, on another thread: it owns what it uses.
use warpfeed::{Batch, Stream};

fn main() {}

fn borrows(batch: &Batch, stream: &Stream) -> warpfeed::Result<()> {
    let mut sum = 0;
    batch.enqueue(stream, |b| sum += b.len()).map(drop)
}

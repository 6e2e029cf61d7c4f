//! Work runs later, on another thread: it owns what it uses, and can be sent.
use std::rc::Rc;
use warpfeed::{Batch, Stream};

fn main() {}

fn not_send(batch: &Batch, stream: &Stream) -> warpfeed::Result<()> {
    let shared = Rc::new(1);
    batch.enqueue(stream, move |b| println!("{} {shared}", b.len()))
}

fn borrows(batch: &Batch, stream: &Stream) -> warpfeed::Result<()> {
    let mut sum = 0;
    batch.enqueue(stream, |b| sum += b.len())
}

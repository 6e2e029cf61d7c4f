//! Work runs on another thread: what it owns can be sent. (The compiler quotes the signature of `enqueue`.)
use std::rc::Rc;
use warpfeed::{Batch, Stream};

fn main() {}

fn not_send(batch: &Batch, stream: &Stream) -> warpfeed::Result<()> {
    let shared = Rc::new(1);
    batch.enqueue(stream, move |b| assert_eq!(b.len(), *shared)).map(drop)
}

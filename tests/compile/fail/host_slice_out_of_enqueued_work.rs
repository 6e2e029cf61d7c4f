//! What enqueued work reads can't leave the work: the slot may be filled again right behind it.
use std::sync::mpsc::Sender;
use warpfeed::{Batch, HostBatch, Stream};

fn main() {}

fn slice(batch: &Batch, stream: &Stream, out: Sender<&'static [u64]>) -> warpfeed::Result<()> {
    batch.enqueue(stream, move |b| {
        let _ = out.send(b.get::<u64>("x").unwrap());
    })
}

fn mask(batch: &Batch, stream: &Stream, out: Sender<&'static [bool]>) -> warpfeed::Result<()> {
    batch.enqueue(stream, move |b| {
        let _ = out.send(b.valid());
    })
}

fn keep(_: HostBatch<'static>) {}

fn whole(batch: &Batch, stream: &Stream) -> warpfeed::Result<()> {
    batch.enqueue(stream, |b| keep(b))
}

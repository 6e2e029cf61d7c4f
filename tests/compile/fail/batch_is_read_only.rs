//! A batch that was submitted can't be written: no slice of it is exclusive, and no batch is copied.
use warpfeed::{Batch, Stream};

fn main() {}

fn host(batch: &mut Batch) -> warpfeed::Result<()> {
    let x: &mut [u8] = &mut batch.host::<u8>("x")?;
    x[0] = 1;
    Ok(())
}

fn enqueued(batch: &Batch, stream: &Stream) -> warpfeed::Result<()> {
    batch.enqueue(stream, |b| b.get::<u8>("x").unwrap()[0] = 1)
}

fn copied(batch: &Batch) -> Batch {
    batch.clone()
}

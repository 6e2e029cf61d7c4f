//! An epoch borrows its loader, which can't be closed or dropped while it lives.
use warpfeed::{Loader, Stream};

fn main() {}

fn closes(loader: Loader, stream: &Stream) -> warpfeed::Result<()> {
    let mut epoch = loader.epoch(stream)?;
    loader.close()?;
    epoch.next();
    Ok(())
}

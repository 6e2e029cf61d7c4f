//! A host slice borrows its batch.
use warpfeed::{Device, Field, Loader, source};

fn main() -> warpfeed::Result<()> {
    let device = Device::cpu();
    let stream = device.new_stream()?;
    let loader = Loader::builder(source::from_fn(4, Ok))
        .decode_with([Field::scalar::<u64>("x")], |s, row| Ok(row.set("x", s.index())?))
        .build(&device)?;
    let mut kept = None;
    for batch in loader.epoch(&stream)? {
        let batch = batch?;
        kept = Some(batch.host::<u64>("x")?);
    }
    println!("{kept:?}");
    Ok(())
}

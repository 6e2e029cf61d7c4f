//! While a host slice lives, its batch can be neither dropped nor sent away.
use warpfeed::Batch;

fn main() {}

fn drops(batch: Batch) -> warpfeed::Result<u64> {
    let x = batch.host::<u64>("x")?;
    drop(batch);
    Ok(x[0])
}

fn sends(batch: Batch, to: std::sync::mpsc::Sender<Batch>) -> warpfeed::Result<u64> {
    let x = batch.host_ragged::<u64>("x", 0)?;
    let _ = to.send(batch);
    Ok(x[0])
}

fn text_too(batch: Batch) -> warpfeed::Result<usize> {
    let mut keys = batch.text("key")?;
    drop(batch);
    Ok(keys.next().map_or(0, str::len))
}

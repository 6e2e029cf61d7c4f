//! A device view borrows its batch.
use warpfeed::{Batch, RaggedView, View};

fn main() {}

fn view<'b>(batch: Batch) -> warpfeed::Result<View<'b, f32>> {
    batch.view::<f32>("x")
}

fn padded(batch: Batch) -> warpfeed::Result<usize> {
    let view = batch.padded_view::<f32>("x")?;
    drop(batch);
    Ok(view.elements())
}

fn ragged<'b>(batch: Batch) -> warpfeed::Result<RaggedView<'b, f32>> {
    batch.ragged_view::<f32>("x")
}

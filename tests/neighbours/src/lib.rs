//! What a training program does with a batch beside a library on cudarc: it compiles only if both mean the same crate,
//! built once, with the features of both.

use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaSlice, CudaStream, DriverError};
use warpfeed::{Batch, Device, Stream};

/// A step on the library's own stream: the batch goes to it as cudarc's slice.
pub fn step(device: &Device, theirs: Arc<CudaStream>, batch: &Batch) -> warpfeed::Result<usize> {
    let stream = Stream::from_cudarc(device, theirs)?;
    let image = batch.cuda_view::<f32>("image", &stream)?;
    let slice: &CudaSlice<f32> = &image;
    Ok(slice.len())
}

/// The other way round: the library works on one of warpfeed's streams.
pub fn borrowed(stream: &Stream) -> Option<&Arc<CudaStream>> {
    stream.cudarc()
}

/// A library's own object of the same context.
pub fn of_the_library(ordinal: usize) -> Result<Arc<CudaStream>, DriverError> {
    CudaContext::new(ordinal)?.new_stream()
}

//! A part of a batch as cudarc's own slice.

use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::Deref;

use cudarc::driver::CudaSlice;

use crate::device::stream::StreamFlavor;
use crate::error::{Error, ErrorKind, Result};

/// Elements of a batch as a [`CudaSlice`] of cudarc's, to pass to kernels and libraries built on it. It borrows the
/// batch's memory and never frees it; it can only be read from, as the batch itself.
///
/// What is enqueued through it must be enqueued on the stream that it was made for, before the batch is dropped. cudarc
/// keeps no events for it: its order with other streams is the batch's ([`Batch::record_stream`](crate::Batch::record_stream)).
pub struct CudaSliceRef<'b, T> {
    slice: ManuallyDrop<CudaSlice<T>>,
    _batch: std::marker::PhantomData<&'b [T]>,
}

impl<T> CudaSliceRef<'_, T> {
    /// # Safety
    /// `address` is aligned for `T`, and `len` elements of device memory there stay alive for the lifetime, not written
    /// but in order on `stream`.
    pub(crate) unsafe fn of(stream: &crate::device::Stream, address: *const u8, len: usize) -> Result<Self> {
        let StreamFlavor::Cuda(stream) = &stream.0 else {
            let text = "the batch lies on the CPU device, where cudarc finds nothing";
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        };
        drop(stream.device().0.enter()?);
        // SAFETY: the memory is there for the lifetime, by the contract; the slice is never dropped, so that it frees
        // nothing. The stream's context object keeps no events of cudarc's, so that nothing is called here.
        let slice = unsafe { stream.untracked().upgrade_device_ptr(address as u64, len) };
        Ok(Self { slice: ManuallyDrop::new(slice), _batch: std::marker::PhantomData })
    }
}

impl<T> Deref for CudaSliceRef<'_, T> {
    type Target = CudaSlice<T>;

    fn deref(&self) -> &CudaSlice<T> {
        &self.slice
    }
}

impl<T> Drop for CudaSliceRef<'_, T> {
    fn drop(&mut self) {
        // SAFETY: taken once, here. `leak` gives up all that the slice holds but the memory.
        let slice = unsafe { ManuallyDrop::take(&mut self.slice) };
        let _ = slice.leak();
    }
}

impl<T> fmt::Debug for CudaSliceRef<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CudaSliceRef({} elements)", self.slice.len())
    }
}

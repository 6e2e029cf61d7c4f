//! Copies of batches on the host, for devices whose memory the host can't reach.

use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use crate::device::{Device, DeviceBuffer, Event, HostBuffer, Stream, reaper};
use crate::error::{Error, ErrorKind, Result};
use crate::spec::Element;
use crate::sync::lock;

/// Reads batches back. Its stream and buffers are made when they are first needed.
#[derive(Debug)]
pub(crate) struct ReadBack {
    device: Device,
    stream: OnceLock<Stream>,
    buffers: Mutex<Buffers>,
    /// A buffer is free, or may be made.
    freed: Condvar,
    most: usize,
}

/// Each is of the size of a slot.
#[derive(Debug, Default)]
struct Buffers {
    /// Those that nobody uses.
    free: Vec<HostBuffer>,
    /// All that there are.
    made: usize,
}

/// The longest that a call waits for a buffer: only a stream that stands still takes longer.
const PATIENCE: Duration = Duration::from_secs(30);

impl ReadBack {
    /// With at most `most` buffers.
    pub(crate) fn new(device: &Device, most: usize) -> Self {
        let (stream, buffers) = (OnceLock::new(), Mutex::default());
        Self { device: device.clone(), stream, buffers, freed: Condvar::new(), most }
    }

    pub(crate) fn device(&self) -> &Device {
        &self.device
    }

    fn stream(&self) -> Result<&Stream> {
        if let Some(stream) = self.stream.get() {
            return Ok(stream);
        }
        let made = self.device.new_stream()?;
        // Another thread may have been faster; then this one goes.
        Ok(self.stream.get_or_init(|| made))
    }

    /// `n` elements from byte `offset` of `src` on, once `copied` has passed. Waits for them.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] where a byte of a bool is neither 0 nor 1; those of the device.
    ///
    /// # Safety
    /// Nobody writes that part of `src` behind `copied` before this returns.
    pub(crate) unsafe fn elements<T: Element>(
        &self,
        src: &DeviceBuffer,
        copied: Option<&Event>,
        offset: usize,
        n: usize,
    ) -> Result<Vec<T>> {
        let mut elements = Vec::<T>::with_capacity(n);
        let range: Range<usize> = offset..offset + n * size_of::<T>();
        let stream = self.stream()?;
        if let Some(copied) = copied {
            stream.follow(copied)?;
        }
        let start = elements.as_mut_ptr().cast::<u8>();
        // SAFETY: the vector has room for the elements and is not touched before the stream is done; nobody writes the
        // source, by the contract.
        let outcome = unsafe { stream.copy_to_host(start, src, range.clone()) };
        if let Err(error) = outcome.and_then(|()| stream.synchronize()) {
            // Nothing can tell whether the device still writes there.
            reaper::leak(elements, range.len(), &error);
            return Err(error);
        }
        // SAFETY: the copy has written these bytes.
        let bytes = unsafe { std::slice::from_raw_parts(start, range.len()) };
        if !T::accepts(bytes) {
            return Err(Error::new(ErrorKind::Corrupt, format!("bytes that are no {}", T::DTYPE)));
        }
        // SAFETY: `n` elements were written, which are values of T.
        unsafe { elements.set_len(n) };
        Ok(elements)
    }

    /// Enqueues a copy of the first `bytes` bytes of `src`, a slot of `size` bytes, on `stream`.
    ///
    /// # Errors
    /// Those of the device.
    ///
    /// # Safety
    /// The stream is ordered behind the batch in `src`, and nobody writes there until an event recorded behind the copy
    /// has passed.
    pub(crate) unsafe fn enqueue(
        self: &Arc<Self>,
        stream: &Stream,
        src: &DeviceBuffer,
        bytes: usize,
    ) -> Result<Staged> {
        let buffer = self.buffer(src.len())?;
        // SAFETY: the buffer is as long as a slot; it comes back when the work behind the copy is over, or is leaked.
        if let Err(error) = unsafe { stream.copy_to_host(buffer.as_ptr(), src, 0..bytes) } {
            // Nothing was enqueued: it is free still.
            self.give_back(buffer);
            return Err(error);
        }
        Ok(Staged { buffer: Some(buffer), home: self.clone() })
    }

    /// A buffer of `bytes` bytes. Where all are in use the caller waits for one.
    fn buffer(&self, bytes: usize) -> Result<HostBuffer> {
        let wait = |buffers: &mut Buffers| buffers.free.is_empty() && buffers.made >= self.most;
        let buffers = lock(&self.buffers);
        let waited = self.freed.wait_timeout_while(buffers, PATIENCE, wait);
        let mut buffers = waited.unwrap_or_else(PoisonError::into_inner).0;
        if let Some(buffer) = buffers.free.pop() {
            return Ok(buffer);
        }
        if buffers.made >= self.most {
            let text = format!(
                "all {} buffers for work on batches have been in use for {PATIENCE:?}: the stream does not get to it",
                self.most
            );
            return Err(Error::new(ErrorKind::Timeout, text));
        }
        let buffer = self.device.host_buffer(bytes)?;
        buffers.made += 1;
        Ok(buffer)
    }

    fn give_back(&self, buffer: HostBuffer) {
        lock(&self.buffers).free.push(buffer);
        self.freed.notify_one();
    }
}

/// A buffer that a copy is on its way into. Dropped, it is leaked, since nothing says when the copy ends.
pub(crate) struct Staged {
    buffer: Option<HostBuffer>,
    home: Arc<ReadBack>,
}

impl Staged {
    pub(crate) fn as_ptr(&self) -> *mut u8 {
        self.buffer.as_ref().map_or(std::ptr::null_mut(), HostBuffer::as_ptr)
    }

    /// The copy has passed, as work behind it on the stream knows.
    pub(crate) fn arrive(mut self) -> Arrived {
        Arrived { buffer: self.buffer.take(), home: self.home.clone() }
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        if let Some(buffer) = self.buffer.take() {
            let error = Error::new(ErrorKind::Device, "the work behind a read-back could not be enqueued");
            let bytes = buffer.len();
            reaper::leak(buffer, bytes, &error);
            lock(&self.home.buffers).made -= 1;
            self.home.freed.notify_one();
        }
    }
}

/// A buffer with a batch's bytes. Dropped, it is free for the next.
pub(crate) struct Arrived {
    buffer: Option<HostBuffer>,
    home: Arc<ReadBack>,
}

impl Drop for Arrived {
    fn drop(&mut self) {
        if let Some(buffer) = self.buffer.take() {
            self.home.give_back(buffer);
        }
    }
}

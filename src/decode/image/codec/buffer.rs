//! Memory that is used again from image to image.

use super::Head;
use crate::error::{Error, ErrorKind, Result};

/// Bytes that are kept whatever the images need: those of an RGB image of 5.6 million pixels.
pub(in super::super) const KEPT: usize = 16 << 20;

/// Bytes that are used again from image to image. What is over [`KEPT`] is given back once an image needs less than half of it, so
/// that one large image among small ones doesn't hold memory for ever, and a set of large ones doesn't allocate for each.
#[derive(Debug, Default)]
pub(in super::super) struct Buffer {
    bytes: Vec<u8>,
    /// What the image at hand needs.
    used: usize,
}

impl Buffer {
    /// `len` bytes, to be written in full: they are left from another image or zero. `head` is the image's, for messages.
    ///
    /// # Errors
    /// [`ErrorKind::LimitExceeded`] where the allocator has no room for them.
    pub(in super::super) fn take(&mut self, len: usize, head: &Head) -> Result<&mut [u8]> {
        self.used = len;
        self.trim();
        if len > self.bytes.capacity() {
            self.bytes = Vec::new(); // nothing in it is worth a copy
            self.bytes.try_reserve_exact(len).map_err(|e| {
                let (name, width, height) = (head.format.name(), head.width, head.height);
                let what = format!("{len} bytes of memory for a {name} of {width}x{height} can't be had");
                Error::new(ErrorKind::LimitExceeded, what).caused_by(e)
            })?;
        }
        self.bytes.resize(len, 0);
        Ok(&mut self.bytes)
    }

    /// `parts`, one after another.
    ///
    /// # Errors
    /// As [`Buffer::take`].
    pub(in super::super) fn join(&mut self, parts: &[&[u8]], head: &Head) -> Result<&[u8]> {
        let mut rest = self.take(parts.iter().map(|part| part.len()).sum(), head)?;
        for part in parts {
            let (to, behind) = rest.split_at_mut(part.len());
            to.copy_from_slice(part);
            rest = behind;
        }
        Ok(&self.bytes)
    }

    /// What was written.
    pub(in super::super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// An image is done: what the buffer holds stays until the next one.
    pub(in super::super) fn settle(&mut self) {
        self.trim();
        self.used = 0;
    }

    fn trim(&mut self) {
        let held = self.bytes.capacity();
        if held > KEPT && self.used < held / 2 {
            self.bytes = Vec::new();
        }
    }

    /// Bytes that are held.
    #[cfg(test)]
    pub(in super::super) fn held(&self) -> usize {
        self.bytes.capacity()
    }
}

#[cfg(test)]
mod tests {
    use super::super::Format;
    use super::*;

    const HEAD: Head = Head { format: Format::Png, width: 3, height: 2, orientation: 1 };

    #[test]
    fn large_memory_stays_while_it_is_needed_and_goes_once_it_is_not() {
        let mut buffer = Buffer::default();
        let mut image = |len: usize| {
            if len > 0 {
                assert_eq!(buffer.take(len, &HEAD).unwrap().len(), len);
            }
            buffer.settle();
            (buffer.held(), buffer.bytes().as_ptr())
        };
        let (held, at) = image(2 * KEPT);
        assert_eq!(held, 2 * KEPT);
        assert_eq!([image(KEPT), image(2 * KEPT)], [(held, at); 2], "half of it is enough");
        assert_eq!(image(9).0, 9);
        image(2 * KEPT);
        assert_eq!(image(0).0, 0, "an image that needs none");
        let (held, at) = image(KEPT);
        assert_eq!([image(0), image(9), image(KEPT)], [(held, at); 3], "so much may stay");
    }

    #[test]
    fn memory_that_is_not_there_is_an_error() {
        let mut buffer = Buffer::default();
        let e = buffer.take(isize::MAX as usize, &HEAD).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::LimitExceeded);
        assert_eq!(e.message(), "9223372036854775807 bytes of memory for a PNG of 3x2 can't be had");
        assert_eq!(buffer.take(2, &HEAD).unwrap(), [0, 0]);
    }
}

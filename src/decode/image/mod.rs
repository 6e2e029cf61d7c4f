//! From an encoded image to its row of a batch.

mod codec;

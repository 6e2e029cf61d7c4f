//! warpfeed
mod copy;
mod error;
mod random;
pub mod sampler;
pub mod source;
mod spec;
pub use error::{Error, ErrorKind, Place, Result, Stage};
pub use random::SampleRng;
pub use spec::{BatchSpec, DType, Element, FIELD_ALIGN, Field, FieldKind, MAX_FIELDS, ROW_ALIGN, VALID};

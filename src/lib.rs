//! warpfeed
mod copy;
mod device;
mod error;
mod random;
pub mod sampler;
pub mod source;
mod spec;
mod sync;
pub use device::{Counters, CpuOptions, Device, Event, Stream};
pub use error::{Error, ErrorKind, Place, Result, Stage};
pub use random::SampleRng;
pub use spec::{BatchSpec, DType, Element, FIELD_ALIGN, Field, FieldKind, MAX_FIELDS, ROW_ALIGN, VALID};

//! warpfeed
mod checkpoint;
mod copy;
pub mod decode;
mod error;
mod metrics;
mod random;
mod row;
pub mod sampler;
pub mod source;
mod spec;
mod sync;
pub use checkpoint::State;
pub use error::{Error, ErrorKind, Place, Result, Stage};
pub use metrics::Stats;
pub use random::SampleRng;
pub use row::{FieldKey, Row};
pub use spec::{BatchSpec, DType, Element, FIELD_ALIGN, Field, FieldKind, MAX_FIELDS, ROW_ALIGN, VALID};

//! warpfeed
mod checkpoint;
mod copy;
pub mod decode;
mod device;
mod error;
mod loader;
mod metrics;
mod pool;
mod random;
mod row;
pub mod sampler;
pub mod source;
mod spec;
mod sync;
pub use checkpoint::State;
pub use device::{Counters, CpuOptions, Device, Event, Stream};
pub use error::{Error, ErrorKind, Place, Result, Stage};
pub use loader::{
    AllHeld, Batch, Builder, Dims, Epoch, HostBatch, Loader, OnError, Order, RaggedView, Report, Runtime,
    View,
};
pub use metrics::Stats;
pub use random::SampleRng;
pub use row::{FieldKey, Row, RowBlock};
pub use spec::{
    BatchSpec, DType, Element, FIELD_ALIGN, Field, FieldKind, MAX_DIMS, MAX_FIELDS, ROW_ALIGN, VALID,
};

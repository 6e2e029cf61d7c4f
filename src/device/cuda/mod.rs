//! The CUDA device, on cudarc: the only place that touches the driver's memory, streams and events.

pub(crate) mod driver;

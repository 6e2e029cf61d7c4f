//! warpfeed keeps a GPU fed: CPU workers decode samples straight into page-locked batches, a copy stream uploads
//! batch N+1 while the compute stream works on batch N, and events order the two. The host never waits on the way.
//!
//! # The model
//!
//! A [source](source::Source) gives records by index; a [sampler](sampler::Sampler) says which index comes at which
//! position. A feeder thread takes a free *host slot*, one page-locked arena for a whole batch, and gives its rows to
//! the workers, each of which reads a record and [decodes](decode::Decode) it into its row. The last row sends the slot
//! on, and a copier thread enqueues its upload, one copy, into a free *device slot*. The consumer iterates
//! [`Loader::epoch`] and gets [`Batch`]es that are ordered on its stream. Dropping one records an event behind the
//! consumer's work; the slot is written again behind that event. A saved [`State`] goes on at the next sample that was not
//! delivered. The CPU [`Device`], with threads as streams, runs the same code in the same order with the same bytes.
//!
//! # Example
//!
//! ```
//! use warpfeed::{Device, Field, Loader, source};
//!
//! # fn main() -> anyhow::Result<()> {
//! let device = Device::auto()?; // the CPU device where there is no GPU
//! let compute = device.new_stream()?;
//! let loader = Loader::builder(source::from_fn(1000, |index| Ok([index as u8; 64])))
//!     .decode_with([Field::new::<u8>("image", &[8, 8]), Field::scalar::<i64>("label")], |sample, row| {
//!         let label = sample.index() as i64 % 10;
//!         row.copy("image", sample.read()?)?; // straight into the page-locked batch
//!         Ok(row.set("label", label)?)
//!     })
//!     .batch_size(64)
//!     .shuffle(42)
//!     .build(&device)?;
//! for _ in 0..3 {
//!     for batch in loader.epoch(&compute)? {
//!         let batch = batch?;
//!         batch.enqueue(&compute, |batch| {
//!             // On a GPU, kernels on `batch.view(..)`; on the CPU device, code on the stream's thread.
//!             let (_images, _labels) = (batch.get::<u8>("image"), batch.get::<i64>("label"));
//!         })?;
//!     } // the host runs ahead; the slot is used again when the stream is done with it
//! }
//! compute.synchronize()?;
//! println!("{}", loader.stats()); // where the time went, and what to change
//! # Ok(())
//! # }
//! ```
//!
//! # Trade-offs
//!
//! Memory is paid up front, `host_slots` page-locked and `device_slots` device copies of the largest batch. A batch that
//! is kept holds its slot. In the default order a slow sample delays its own batch and those behind it. A decoder states
//! its fields and their largest sizes before the first batch. Who can keep the whole data set on the device, or whose
//! step takes longer than a batch does to load with any loader, does not need this one.
//!
//! # Features
//!
//! | feature | default | brings |
//! |---|---|---|
//! | `cuda` | yes | NVIDIA GPUs, through cudarc; without a driver the CPU device takes their place |
//! | `cuda-12000` | yes | cudarc's bindings for CUDA 12.0 (drivers from R525 on); another crate may choose others |
//! | `image` | yes | images into rows ([`decode::Image`]); YOLO and COCO sets ([`source::Detection`]) |
//! | `tar` | yes | WebDataset shards ([`source::Shards`], [`source::ShardStream`]) |
//! | `turbojpeg` | no | JPEG by libjpeg-turbo: only a crop's part is decoded; its build needs cmake |
//! | `cli` | yes | the `warpfeed` command-line tool |

mod checkpoint;
mod copy;
pub mod decode;
mod device;
mod error;
/// The parsers, for fuzz targets.
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzzing;
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
#[cfg(feature = "cuda")]
pub use cudarc; // its types are in the interface: a program needs the very same version
pub use device::{Counters, CpuOptions, Device, Event, Stream, survey};
#[cfg(feature = "cuda")]
pub use device::{CudaOptions, CudaSliceRef};
pub use error::{Error, ErrorKind, Place, Result, Stage};
pub use loader::{
    AllHeld, Batch, Builder, Dims, Epoch, HostBatch, Loader, OnError, Order, Outcome, RaggedView, Report,
    Runtime, View,
};
pub use memmap2; // as cudarc, for `Builder::host_memory`
pub use metrics::Stats;
pub use random::SampleRng;
pub use row::{FieldKey, Row, RowBlock};
pub use spec::{
    BatchSpec, DType, Element, FIELD_ALIGN, Field, FieldKind, MAX_DIMS, MAX_FIELDS, ROW_ALIGN, VALID,
};

/// The unit tests of the package `tests/cuda` run with the simulated driver.
#[cfg(all(test, feature = "simulated"))]
use cusim as _;

/// The README's example compiles and runs.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

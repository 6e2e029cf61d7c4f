//! One error type, sorted by what the caller can do about it.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;

/// A result whose error is [`Error`] unless said otherwise.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong, by what the caller can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// An option or a combination of options is wrong: change the call that the message names.
    InvalidConfig,
    /// An argument of this call is wrong (a name, an index, a range): change the call.
    InvalidArgument,
    /// A field was asked for under another dtype than it has.
    DTypeMismatch,
    /// A sample does not have the shape that its field declares.
    ShapeMismatch,
    /// A size is over a limit that was set: raise the limit or leave the sample out.
    LimitExceeded,
    /// The decoder left a field of a sample unwritten, or a sample lacks the part that a field is made from.
    MissingField,
    /// The operating system refused an operation on a file or a thread.
    Io,
    /// A file or record ends before it should.
    Truncated,
    /// A file is not what its format or an earlier look said: corrupt, or changed while in use.
    Corrupt,
    /// There is not a single byte where data should be: fetch the file again or leave the sample out.
    Empty,
    /// The data is of a format, or uses a feature of one, that is not read here; the message names it: convert the file,
    /// or turn on the feature that the message names.
    Unsupported,
    /// A label is malformed or makes no sense; the message says which and the place where: mend that line, or
    /// choose the policy that drops it.
    InvalidLabel,
    /// Two samples, or two parts of one, have the same key: rename one.
    DuplicateKey,
    /// User code (a source, a decoder) returned an error for one sample.
    Sample,
    /// User code panicked; the message holds the panic's text.
    Panic,
    /// Work that was enqueued on a stream returned an error.
    Work,
    /// More samples failed than the fault policy allows in one epoch.
    TooManyFaults,
    /// Nothing arrived within `timeout`; the epoch goes on at the next call.
    Timeout,
    /// Every device slot is held by a live batch: drop one, then call again; the epoch goes on. Called again without
    /// a drop it is the same error, for ever: don't collect an epoch's batches.
    Exhausted,
    /// The stream is being captured into a graph: call again once capture has ended.
    Capturing,
    /// Another epoch of this loader is still alive.
    Busy,
    /// All epochs that were asked for have been delivered.
    Finished,
    /// This source can't continue in the middle.
    NotResumable,
    /// A saved state belongs to another source, sampler, seed or version.
    StateMismatch,
    /// This process was forked from the one that built the loader.
    Forked,
    /// The device refused an operation or was lost.
    Device,
    /// The loader or the thread behind it has ended, or the device's driver has, as it does before the process ends.
    Closed,
}

impl ErrorKind {
    /// Whether the epoch goes on after this error: the next call may succeed.
    pub fn is_transient(self) -> bool {
        matches!(self, Self::Timeout | Self::Exhausted | Self::Capturing)
    }
}

/// A step of the pipeline, as errors, timeouts and statistics name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Stage {
    /// Asking the sampler for indices.
    Sample,
    /// Reading a record.
    Read,
    /// Decoding a record into its row.
    Decode,
    /// Waiting for a free host slot.
    HostSlot,
    /// Waiting for a free device slot.
    DeviceSlot,
    /// The host-to-device link.
    Copy,
    /// A device-side transform.
    Transform,
    /// The code that takes the batches.
    Consumer,
}

impl Stage {
    /// The stage's name in messages and in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sample => "sample",
            Self::Read => "read",
            Self::Decode => "decode",
            Self::HostSlot => "host slot",
            Self::DeviceSlot => "device slot",
            Self::Copy => "copy",
            Self::Transform => "transform",
            Self::Consumer => "consumer",
        }
    }
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Where something is or went wrong. Each part is there as far as it is known.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Place {
    /// Epoch, from 0.
    pub epoch: Option<u64>,
    /// Number of the batch within the epoch, from 0.
    pub batch: Option<u64>,
    /// Row within the batch.
    pub row: Option<usize>,
    /// Index of the sample in its source.
    pub index: Option<u64>,
    /// The file.
    pub path: Option<PathBuf>,
    /// The shard, where a source has shards.
    pub shard: Option<String>,
    /// The member within the shard.
    pub member: Option<String>,
    /// Line within the file, from 1.
    pub line: Option<u64>,
    /// Byte offset within the file.
    pub offset: Option<u64>,
    /// The step of the pipeline.
    pub stage: Option<Stage>,
    /// The worker's number.
    pub worker: Option<usize>,
}

impl Place {
    /// A place that is known by a sample's index alone.
    pub fn of_index(index: u64) -> Self {
        Self { index: Some(index), ..Self::default() }
    }

    /// Takes from `other` every part that is unknown here.
    pub fn fill_from(&mut self, other: Self) {
        macro_rules! fill { ($($f:ident),*) => { $( if self.$f.is_none() { self.$f = other.$f; } )* } }
        fill!(epoch, batch, row, index, path, shard, member, line, offset, stage, worker);
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut sep = "";
        let mut part = |f: &mut fmt::Formatter<'_>, name: &str, value: &dyn fmt::Display| {
            let r = write!(f, "{sep}{name} {value}");
            sep = ", ";
            r
        };
        macro_rules! show { ($($name:literal $f:ident),*) => { $( if let Some(v) = &self.$f { part(f, $name, v)?; } )* } }
        show!("epoch" epoch, "batch" batch, "row" row, "index" index);
        if let Some(path) = &self.path {
            part(f, "file", &path.display())?;
        }
        show!("shard" shard, "member" member, "line" line, "byte" offset, "stage" stage, "worker" worker);
        Ok(())
    }
}

/// An error of this crate: a [kind](ErrorKind), a message, a [place](Place) and its cause.
pub struct Error(Box<Inner>);

struct Inner {
    kind: ErrorKind,
    message: String,
    place: Place,
    source: Option<anyhow::Error>,
}

impl Error {
    /// An error of `kind` that says `message`.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self(Box::new(Inner { kind, message: message.into(), place: Place::default(), source: None }))
    }

    /// Keeps `source` as the cause.
    #[must_use]
    pub fn caused_by(mut self, source: impl Into<anyhow::Error>) -> Self {
        self.0.source = Some(source.into());
        self
    }

    /// Adds what `place` knows; what is known already stays.
    #[must_use]
    pub fn at(mut self, place: Place) -> Self {
        self.0.place.fill_from(place);
        self
    }

    /// What user code returned for one sample. An [`Error`] of ours in it keeps its kind and place.
    pub fn from_user(error: anyhow::Error) -> Self {
        match error.downcast::<Self>() {
            Ok(ours) => ours,
            Err(other) => {
                let message = other.to_string();
                Self(Box::new(Inner {
                    kind: ErrorKind::Sample,
                    message,
                    place: Place::default(),
                    source: Some(other),
                }))
            }
        }
    }

    /// A panic's payload, as the error of the code that panicked. A payload whose own drop panics is leaked.
    pub fn from_panic(payload: Box<dyn std::any::Any + Send>) -> Self {
        let text = payload
            .downcast_ref::<&str>()
            .map(|s| (*s).to_string())
            .or_else(|| payload.downcast_ref::<String>().cloned())
            .unwrap_or_else(|| "a panic without a text".to_string());
        if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
            Box::leak(again);
        }
        Self::new(ErrorKind::Panic, format!("user code panicked: {text}"))
    }

    /// An I/O error on `path`; an unexpected end of the file is [`ErrorKind::Truncated`].
    pub fn io(path: impl Into<PathBuf>, what: &str, error: std::io::Error) -> Self {
        let kind = match error.kind() {
            std::io::ErrorKind::UnexpectedEof => ErrorKind::Truncated,
            _ => ErrorKind::Io,
        };
        Self::new(kind, format!("{what}: {error}"))
            .at(Place { path: Some(path.into()), ..Place::default() })
            .caused_by(error)
    }

    /// What the caller can do about it.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The message without the place.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// Where it happened.
    pub fn place(&self) -> &Place {
        &self.0.place
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)?;
        if self.0.place == Place::default() { Ok(()) } else { write!(f, " ({})", self.0.place) }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Error")
            .field("kind", &self.0.kind)
            .field("message", &self.0.message)
            .field("place", &self.0.place)
            .field("source", &self.0.source)
            .finish()
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source.as_ref().map(|e| &**e as _)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assert_bounds<T: Send + Sync + 'static>() {}

    #[test]
    fn an_error_is_send_sync_and_small() {
        assert_bounds::<Error>();
        assert_eq!(size_of::<Error>(), size_of::<usize>());
    }

    #[test]
    fn display_names_index_path_and_offset() {
        let e = Error::new(ErrorKind::Truncated, "3 of 10 bytes").at(Place {
            path: Some("a.bin".into()),
            offset: Some(20),
            ..Place::of_index(2)
        });
        assert_eq!(e.to_string(), "3 of 10 bytes (index 2, file a.bin, byte 20)");
    }

    #[test]
    fn an_error_of_ours_survives_the_way_through_user_code() {
        let inner = Error::new(ErrorKind::Truncated, "short").at(Place::of_index(5));
        let outer = Error::from_user(anyhow::Error::from(inner)).at(Place::of_index(9));
        assert_eq!((outer.kind(), outer.place().index), (ErrorKind::Truncated, Some(5)));
        let foreign = Error::from_user(anyhow::anyhow!("boom"));
        assert_eq!((foreign.kind(), foreign.message()), (ErrorKind::Sample, "boom"));
    }
}

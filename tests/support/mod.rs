//! What the integration tests share: samples whose bytes can be checked, and a collector of log lines.

#![allow(dead_code, reason = "each test binary uses a part of it")]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a test stops at the first surprise"
)]

use std::sync::{Arc, Mutex};

use warpfeed::decode::{Decode, Sample};
use warpfeed::source::Source;
use warpfeed::{Field, HostBatch, Row};

pub(crate) mod watch;

#[allow(unused_imports, reason = "each test binary uses a part of it")]
pub(crate) use watch::{device, device_and_stream, device_with, eventually, range, within};

/// FNV-1a, 64 bits.
pub(crate) fn checksum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |h, &b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3))
}

/// Record i becomes a row `x` of this many bytes, all of them i mod 251.
pub(crate) struct Uniform(pub(crate) usize);

impl<S: Source<Record = u64>> Decode<S> for Uniform {
    type Scratch = ();

    fn fields(&self, _: &S) -> warpfeed::Result<Vec<Field>> {
        Ok(vec![Field::new::<u8>("x", &[self.0])])
    }

    fn decode(&self, sample: &mut Sample<'_, S>, (): &mut (), row: &mut Row<'_>) -> anyhow::Result<()> {
        let byte = (*sample.read()? % 251) as u8;
        row.slice::<u8>("x")?.fill(byte);
        Ok(())
    }
}

/// A payload of this many bytes, drawn from the sample's generator; beside it the sample's index and the checksum
/// that the producer computed.
pub(crate) struct Signed(pub(crate) usize);

impl<S: Source> Decode<S> for Signed {
    type Scratch = ();

    fn fields(&self, _: &S) -> warpfeed::Result<Vec<Field>> {
        let payload = Field::new::<u8>("payload", &[self.0]);
        Ok(vec![Field::scalar::<u64>("index"), payload, Field::scalar::<u64>("sum")])
    }

    fn decode(&self, sample: &mut Sample<'_, S>, (): &mut (), row: &mut Row<'_>) -> anyhow::Result<()> {
        let mut rng = sample.rng();
        row.set("index", sample.index())?;
        let payload = row.slice::<u8>("payload")?;
        payload.chunks_mut(8).for_each(|c| c.copy_from_slice(&rng.u64().to_le_bytes()[..c.len()]));
        let sum = checksum(payload);
        Ok(row.set("sum", sum)?)
    }
}

/// Checks a batch of [`Signed`] where it lies: it must be the samples `indices`, each with its checksum.
pub(crate) fn check_signed(b: &HostBatch<'_>, indices: &[u64]) -> Result<(), String> {
    let (index, payload, sum) = (
        b.get::<u64>("index").map_err(|e| e.to_string())?,
        b.get::<u8>("payload").map_err(|e| e.to_string())?,
        b.get::<u64>("sum").map_err(|e| e.to_string())?,
    );
    if index != indices {
        return Err(format!("batch {}/{} holds {index:?}, not {indices:?}", b.epoch(), b.number()));
    }
    let row_bytes = payload.len() / index.len();
    for (row, sum) in sum.iter().enumerate() {
        let found = checksum(&payload[row * row_bytes..(row + 1) * row_bytes]);
        if found != *sum {
            return Err(format!("batch {}/{} row {row}: checksum differs", b.epoch(), b.number()));
        }
    }
    Ok(())
}

/// Collects what checks in enqueued work find.
#[derive(Clone, Default)]
pub(crate) struct Findings(Arc<Mutex<(u64, Vec<String>)>>);

impl Findings {
    pub(crate) fn add(&self, outcome: Result<(), String>) {
        let mut inner = self.0.lock().unwrap();
        match outcome {
            Ok(()) => inner.0 += 1,
            Err(text) => inner.1.push(text),
        }
    }

    /// Fails unless exactly `n` checks were made and all were right.
    pub(crate) fn assert_all_right(&self, n: u64) {
        let inner = self.0.lock().unwrap();
        let wrong = inner.1.len();
        assert!(wrong == 0, "{wrong} of {} are wrong, first: {}", inner.0 + wrong as u64, inner.1[0]);
        assert_eq!(inner.0, n, "checks that were made");
    }
}

/// Whether this process may lock `bytes` bytes more: where it may not, what a test says about locked memory can't be
/// seen here.
pub(crate) fn can_lock(bytes: usize) -> bool {
    let device = device();
    let loader = warpfeed::Loader::builder(range(1))
        .decode(Uniform(bytes))
        .host_slots(1)
        .workers(0)
        .build(&device)
        .unwrap();
    let locked = loader.stats().pinned;
    if !locked {
        println!("skipped in part: the system locks no {bytes} bytes");
    }
    locked
}

/// Runs `code` and returns what it logged on this thread, as `LEVEL text`.
pub(crate) fn logged<T>(code: impl FnOnce() -> T) -> (T, Vec<String>) {
    let lines = Arc::new(Mutex::new(Vec::new()));
    let value = tracing::subscriber::with_default(Collector { lines: lines.clone(), echo: false }, code);
    let lines = std::mem::take(&mut *lines.lock().unwrap());
    (value, lines)
}

/// What all threads of this process log from here on, also (as `LOG LEVEL text`) on stderr. Once a process.
pub(crate) fn log_of_the_process() -> Arc<Mutex<Vec<String>>> {
    let lines = Arc::new(Mutex::new(Vec::new()));
    tracing::subscriber::set_global_default(Collector { lines: lines.clone(), echo: true }).unwrap();
    lines
}

struct Collector {
    lines: Arc<Mutex<Vec<String>>>,
    echo: bool,
}

impl tracing::Subscriber for Collector {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        struct Text(String);
        impl tracing::field::Visit for Text {
            fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
                if field.name() == "message" {
                    self.0 = format!("{value:?}");
                }
            }
        }
        let mut text = Text(String::new());
        event.record(&mut text);
        let line = format!("{} {}", event.metadata().level(), text.0);
        if self.echo {
            eprintln!("LOG {line}");
        }
        self.lines.lock().unwrap().push(line);
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

//! The records of a benchmark.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use warpfeed::decode::{Decode, Sample};
use warpfeed::source::{Part, RecordFile, Records, Source};
use warpfeed::{ErrorKind, Field, Place, Result, Row, SampleRng};

use crate::pace::paced;
use crate::pipeline::{Feed, Plan};

/// Synthetic records are cut out of this many bytes, more than a processor's caches hold.
const POOL: usize = 64 << 20;
/// Records begin at the start of a cache line.
const LINE: usize = 64;
/// How much of the pool is made by a generator; the rest repeats it.
const PATTERN: usize = 1 << 16;

/// Records of bytes, all of one size, as one field `record`.
pub(crate) enum Data {
    /// Made once, in memory.
    Synthetic(Synthetic),
    /// Read from a file, by position.
    File(RecordFile),
}

pub(crate) struct Synthetic {
    len: u64,
    record_bytes: usize,
    pool: Vec<u8>,
    part: [Part; 1],
}

impl Data {
    /// `len` records of `record_bytes` bytes.
    pub(crate) fn synthetic(len: u64, record_bytes: usize) -> Self {
        let mut pool = Vec::with_capacity(POOL.max(record_bytes));
        let mut rng = SampleRng::new(0, 0, 0);
        while pool.len() < PATTERN {
            pool.extend_from_slice(&rng.u64().to_le_bytes());
        }
        while pool.len() < pool.capacity() {
            let more = pool.len().min(pool.capacity() - pool.len());
            pool.extend_from_within(..more);
        }
        let field = Field::new::<u8>("record", &[record_bytes]);
        Self::Synthetic(Synthetic { len, record_bytes, pool, part: [Part { field, range: 0..record_bytes }] })
    }

    /// The records of `record_bytes` bytes in the file at `path`.
    ///
    /// # Errors
    /// As [`RecordFile::open`].
    pub(crate) fn open(path: &Path, record_bytes: usize) -> Result<Self> {
        RecordFile::open(path, record_bytes).map(Self::File)
    }
}

impl Synthetic {
    fn record(&self, index: u64) -> Result<&[u8]> {
        let start = index.wrapping_mul(self.record_bytes as u64) as usize;
        let start = start % (self.pool.len() - self.record_bytes + 1) / LINE * LINE;
        let record = self.pool.get(start..start + self.record_bytes).filter(|_| index < self.len);
        record.ok_or_else(|| {
            let text = format!("there is no record {index}: there are {}", self.len);
            warpfeed::Error::new(ErrorKind::InvalidArgument, text).at(Place::of_index(index))
        })
    }
}

impl Source for Data {
    type Record = [u8];
    type Scratch = Vec<u8>;

    fn len(&self) -> Option<u64> {
        match self {
            Self::Synthetic(data) => Some(data.len),
            Self::File(file) => file.len(),
        }
    }

    fn fingerprint(&self) -> u64 {
        match self {
            Self::Synthetic(data) => data.len,
            Self::File(file) => file.fingerprint(),
        }
    }

    fn describe(&self, index: u64) -> Place {
        match self {
            Self::Synthetic(_) => Place::of_index(index),
            Self::File(file) => file.describe(index),
        }
    }

    fn read<'a>(&'a self, index: u64, scratch: &'a mut Vec<u8>) -> Result<&'a [u8]> {
        match self {
            Self::Synthetic(data) => data.record(index),
            Self::File(file) => file.read(index, scratch),
        }
    }

    fn hint(&self, upcoming: &[u64]) {
        if let Self::File(file) = self {
            file.hint(upcoming);
        }
    }
}

impl Records for Data {
    fn parts(&self) -> &[Part] {
        match self {
            Self::Synthetic(data) => &data.part,
            Self::File(file) => file.parts(),
        }
    }

    fn read_into(&self, index: u64, rows: &mut [&mut [u8]]) -> Result<()> {
        match self {
            Self::Synthetic(data) => {
                let record = data.record(index)?;
                rows.iter_mut().for_each(|row| row.copy_from_slice(record));
                Ok(())
            }
            Self::File(file) => file.read_into(index, rows),
        }
    }
}

/// Copies a record into its row, and takes as long for it as was asked.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Copied {
    time: Duration,
    spin: bool,
}

impl Feed<Data, Copied> {
    /// The records of `data`, in order, decoded as `plan` says.
    pub(crate) fn records(data: &Arc<Data>, plan: &Plan) -> Self {
        let decode = Copied { time: plan.decode, spin: plan.spin };
        Self { source: data.clone(), decode, shuffle: None }
    }
}

impl Decode<Arc<Data>> for Copied {
    type Scratch = ();

    fn fields(&self, source: &Arc<Data>) -> Result<Vec<Field>> {
        Ok(source.parts().iter().map(|part| part.field.clone()).collect())
    }

    fn decode(
        &self,
        sample: &mut Sample<'_, Arc<Data>>,
        (): &mut (),
        row: &mut Row<'_>,
    ) -> anyhow::Result<()> {
        let mut copy = |sample: &mut Sample<'_, Arc<Data>>| match **sample.source() {
            Data::Synthetic(_) => row.copy(0, sample.read()?),
            Data::File(_) => sample.read_into(row),
        };
        if self.time.is_zero() {
            copy(sample)?;
        } else {
            paced(self.time, self.spin, || copy(sample))?;
        }
        Ok(())
    }
}

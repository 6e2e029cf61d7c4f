//! Fixed-size records as they are.

use super::{Decode, Sample};
use crate::error::{Error, ErrorKind, Result};
use crate::row::Row;
use crate::source::Records;
use crate::spec::{Field, MAX_FIELDS};

/// Records of bytes, read straight into the rows: one field a part. The default decoder.
#[derive(Debug, Clone, Copy, Default)]
pub struct Raw;

impl<S: Records> Decode<S> for Raw {
    type Scratch = ();

    fn fields(&self, source: &S) -> Result<Vec<Field>> {
        let parts = source.parts();
        if parts.len() > MAX_FIELDS {
            let text = format!("{} parts of a record, and at most {MAX_FIELDS} fields", parts.len());
            return Err(Error::new(ErrorKind::InvalidConfig, text));
        }
        Ok(parts.iter().map(|p| p.field.clone()).collect())
    }

    fn decode(&self, sample: &mut Sample<'_, S>, (): &mut (), row: &mut Row<'_>) -> anyhow::Result<()> {
        Ok(sample.read_into(row)?)
    }
}

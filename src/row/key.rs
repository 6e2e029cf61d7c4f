//! Naming a field.

use crate::error::{Error, ErrorKind, Result};
use crate::spec::{BatchSpec, Column};

/// How a field is named in a call: by its name, or (a little faster) by its place among the decoder's fields.
pub trait FieldKey: sealed::Sealed + Copy {
    #[doc(hidden)]
    fn number(self, spec: &BatchSpec) -> Result<usize>;
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for &str {}
    impl Sealed for usize {}
}

impl FieldKey for &str {
    fn number(self, spec: &BatchSpec) -> Result<usize> {
        match spec.columns().iter().position(|c| c.field.name() == self) {
            Some(number) => Ok(number),
            None => spec.column(self).map(|_| 0),
        }
    }
}

impl FieldKey for usize {
    fn number(self, spec: &BatchSpec) -> Result<usize> {
        if self < spec.columns().len() {
            return Ok(self);
        }
        let text = format!("field number {self} of {}", spec.columns().len());
        Err(Error::new(ErrorKind::InvalidArgument, text))
    }
}

pub(super) fn find(spec: &BatchSpec, field: impl FieldKey) -> Result<(usize, &Column)> {
    let number = field.number(spec)?;
    Ok((number, &spec.columns()[number]))
}

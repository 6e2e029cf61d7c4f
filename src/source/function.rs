//! Records that a function makes from their index.

use std::any::type_name;

use super::{Source, out_of_range};
use crate::error::{Error, Place, Result};
use crate::random::{key, key_of_bytes};

/// A source whose record `i` is what a function returns for `i`. Made by [`from_fn`].
#[derive(Debug, Clone)]
pub struct Function<F> {
    len: u64,
    name: u64,
    function: F,
}

/// A source of `len` records, of which `function(index)` makes one. Workers call it at the same time.
///
/// What it returns as an error is the error of that sample (kind [`ErrorKind::Sample`](crate::ErrorKind::Sample),
/// or its own where it is an [`Error`]), with its index.
///
/// ```
/// use warpfeed::source::{self, Source};
/// let squares = source::from_fn(10, |i| Ok(i * i));
/// assert_eq!(*squares.read(3, &mut None)?, 9);
/// # Ok::<(), warpfeed::Error>(())
/// ```
pub fn from_fn<T, F>(len: u64, function: F) -> Function<F>
where
    T: Send + 'static,
    F: Fn(u64) -> anyhow::Result<T> + Send + Sync + 'static,
{
    Function { len, name: key_of_bytes(type_name::<T>().as_bytes()), function }
}

impl<F> Function<F> {
    /// Names the data for the fingerprint. Without a name the fingerprint knows the length and the type of
    /// a record only.
    #[must_use]
    pub fn named(mut self, name: &str) -> Self {
        self.name = key_of_bytes(name.as_bytes());
        self
    }
}

impl<T, F> Source for Function<F>
where
    T: Send + 'static,
    F: Fn(u64) -> anyhow::Result<T> + Send + Sync + 'static,
{
    type Record = T;
    type Scratch = Option<T>;

    fn len(&self) -> Option<u64> {
        Some(self.len)
    }

    fn fingerprint(&self) -> u64 {
        key(&[u64::from_le_bytes(*b"function"), self.len, self.name])
    }

    fn read<'a>(&'a self, index: u64, scratch: &'a mut Option<T>) -> Result<&'a T> {
        if index >= self.len {
            return Err(out_of_range(index, self.len));
        }
        *scratch = None; // the last record is freed before the next is made
        match (self.function)(index) {
            Ok(record) => Ok(scratch.insert(record)),
            Err(e) => Err(Error::from_user(e).at(Place::of_index(index))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;
    use crate::source::contract::holds_contract;

    #[test]
    fn a_function_is_a_source() {
        holds_contract(&from_fn(4, |i| Ok(i * 10)), &[&0, &10, &20, &30]);
        holds_contract(&from_fn(0, |_| Ok(1u8)), &[]);
    }

    #[test]
    fn row_61_an_error_names_its_index_and_is_not_the_end() {
        let source = from_fn(5, |i| if i == 3 { anyhow::bail!("boom") } else { Ok(i) });
        let mut scratch = None;
        for i in [0, 1, 2, 4] {
            assert_eq!(*source.read(i, &mut scratch).unwrap(), i);
        }
        let e = source.read(3, &mut scratch).unwrap_err();
        assert_eq!((e.kind(), e.place().index, e.message()), (ErrorKind::Sample, Some(3), "boom"));
        assert_eq!(scratch, None, "a failed read leaves no older record behind");
    }

    #[test]
    fn row_40_a_million_records_cost_nothing_until_read() {
        let source = from_fn(1_000_000, |_| -> anyhow::Result<u8> { panic!("nothing is read at build") });
        assert_eq!((source.len(), size_of_val(&source)), (Some(1_000_000), 16));
    }
}

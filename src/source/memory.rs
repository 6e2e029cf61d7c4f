//! Records that are values in memory.

use std::any::type_name;
use std::sync::Arc;

use super::{Source, out_of_range};
use crate::error::Result;
use crate::random::{key, key_of_bytes};

/// A source of values in memory; a record is a `&T` into it. Made by [`from_vec`], or from a shared slice by
/// `Memory::from(arc)`.
#[derive(Debug, Clone)]
pub struct Memory<T> {
    items: Items<T>,
    name: u64,
}

#[derive(Debug, Clone)]
enum Items<T> {
    Owned(Arc<Vec<T>>),
    Shared(Arc<[T]>),
}

/// A source of the values of a vector, which is moved, not copied.
///
/// ```
/// use warpfeed::source::{self, Source};
/// let words = source::from_vec(vec!["feed", "the", "warps"]);
/// assert_eq!(*words.read(2, &mut ())?, "warps");
/// # Ok::<(), warpfeed::Error>(())
/// ```
pub fn from_vec<T: Send + Sync + 'static>(values: Vec<T>) -> Memory<T> {
    Memory::from(values)
}

impl<T> Memory<T> {
    /// Names the data for the fingerprint. Without a name the fingerprint knows the length and the type
    /// only: a saved state can't tell two vectors of one length and type apart.
    #[must_use]
    pub fn named(mut self, name: &str) -> Self {
        self.name = key_of_bytes(name.as_bytes());
        self
    }

    fn items(&self) -> &[T] {
        match &self.items {
            Items::Owned(items) => items,
            Items::Shared(items) => items,
        }
    }
}

impl<T> From<Vec<T>> for Memory<T> {
    fn from(values: Vec<T>) -> Self {
        Self { items: Items::Owned(Arc::new(values)), name: key_of_bytes(type_name::<T>().as_bytes()) }
    }
}

impl<T> From<Arc<[T]>> for Memory<T> {
    fn from(values: Arc<[T]>) -> Self {
        Self { items: Items::Shared(values), name: key_of_bytes(type_name::<T>().as_bytes()) }
    }
}

impl<T: Send + Sync + 'static> Source for Memory<T> {
    type Record = T;
    type Scratch = ();

    fn len(&self) -> Option<u64> {
        Some(self.items().len() as u64)
    }

    fn fingerprint(&self) -> u64 {
        key(&[u64::from_le_bytes(*b"memory\0\0"), self.items().len() as u64, self.name])
    }

    fn read<'a>(&'a self, index: u64, (): &'a mut ()) -> Result<&'a T> {
        let items = self.items();
        let item = usize::try_from(index).ok().and_then(|i| items.get(i));
        item.ok_or_else(|| out_of_range(index, items.len() as u64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::contract::holds_contract;

    #[test]
    fn a_vector_and_a_shared_slice_are_sources() {
        holds_contract(&from_vec(vec![3u8, 1, 4]), &[&3, &1, &4]);
        holds_contract(&Memory::from(Arc::<[String]>::from(vec!["a".to_string()])), &[&"a".to_string()]);
        holds_contract(&from_vec(Vec::<f32>::new()), &[]);
        holds_contract(&Arc::new(from_vec(vec![9u64])), &[&9]);
    }

    #[test]
    fn a_name_length_or_type_changes_the_fingerprint() {
        let base = from_vec(vec![1u8, 2]).fingerprint();
        assert_eq!(base, Memory::from(Arc::<[u8]>::from([5u8, 6])).fingerprint());
        assert_ne!(base, from_vec(vec![1u8]).fingerprint());
        assert_ne!(base, from_vec(vec![1i8, 2]).fingerprint());
        let named = from_vec(vec![1u8, 2]).named("train").fingerprint();
        assert!(named != base && named != from_vec(vec![1u8, 2]).named("val").fingerprint());
    }

    #[test]
    fn row_40_a_million_values_are_moved_not_copied() {
        let values = vec![7u64; 1_000_000];
        let at = values.as_ptr();
        let source = from_vec(values);
        assert!(std::ptr::eq(source.read(0, &mut ()).unwrap(), at));
    }
}

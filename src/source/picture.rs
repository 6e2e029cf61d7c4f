//! Encoded images, as a decoder sees the records that hold them.

use std::sync::Arc;

use super::{Concat, Function, Memory, Sequence, ShuffleBuffer, Source, Subset, Take};
use crate::error::{Place, Result};

/// What a source knows of each image besides its pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Labels {
    /// Nothing.
    None,
    /// The class of the image.
    Class,
    /// Boxes with a class each.
    Boxes {
        /// The most boxes of one image.
        most: usize,
    },
}

/// What the corners of a [`LabelBox`] are measured in. In both the origin is the upper left corner of the image, x
/// goes to the right and y down.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Unit {
    /// Pixels.
    #[default]
    Pixels,
    /// Fractions of the image's width and height, as YOLO label files have them.
    Fractions,
}

/// A box around an object, and the object's class.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct LabelBox {
    /// The class, from 0.
    pub class: u32,
    /// Left, top, right, bottom.
    pub corners: [f32; 4],
}

/// One encoded image and what is known of it.
#[derive(Debug, Clone, Copy, Default)]
pub struct Picture<'a> {
    /// The file's bytes: JPEG, PNG, WebP, BMP or GIF.
    pub bytes: &'a [u8],
    /// The class, where the source's labels are [`Labels::Class`].
    pub class: Option<i64>,
    /// The boxes, where they are [`Labels::Boxes`].
    pub boxes: &'a [LabelBox],
    /// What the boxes are measured in.
    pub unit: Unit,
    /// Width and height in pixels that the labels give the image, where they do: COCO's annotations.
    pub declared: Option<[u32; 2]>,
}

/// A source of encoded images, for [`decode::Image`](crate::decode::Image): folders, shards and detection sets of files, and any
/// source of values whose records are a [`PictureRecord`], as `Vec<u8>` and `(Vec<u8>, i64)` are.
#[diagnostic::on_unimplemented(
    message = "`{Self}` has no encoded images",
    note = "open files as `source::ImageFolder`, `source::Shards` or `source::Detection`, or implement `source::PictureRecord` for the type of its records"
)]
pub trait Pictures: Source {
    /// What every record has besides the image.
    fn labels(&self) -> Labels {
        Labels::None
    }

    /// The image of a record, and what is known of it.
    ///
    /// # Errors
    /// Whatever the record lacks or has too much of.
    fn picture<'r>(&self, record: &'r Self::Record) -> Result<Picture<'r>>;

    /// Where a record lies, as far as it knows itself: of a sequence [`Source::describe`] has no more than the index.
    fn place(&self, _record: &Self::Record) -> Place {
        Place::default()
    }
}

impl<S: Pictures> Pictures for Arc<S> {
    fn labels(&self) -> Labels {
        (**self).labels()
    }

    fn picture<'r>(&self, record: &'r S::Record) -> Result<Picture<'r>> {
        (**self).picture(record)
    }

    fn place(&self, record: &S::Record) -> Place {
        (**self).place(record)
    }
}

/// Selections of a source leave its records as they are.
macro_rules! selections {
    ($($selection:ident),*) => { $(
        impl<S: Pictures> Pictures for $selection<S> {
            fn labels(&self) -> Labels {
                self.selected_from().labels()
            }

            fn picture<'r>(&self, record: &'r S::Record) -> Result<Picture<'r>> {
                self.selected_from().picture(record)
            }

            fn place(&self, record: &S::Record) -> Place {
                self.selected_from().place(record)
            }
        }
    )* };
}
selections!(Subset, Take, ShuffleBuffer);

impl<S: Pictures> Pictures for Concat<S> {
    /// Those of the first source, with room for the most boxes of any.
    fn labels(&self) -> Labels {
        let mut all = self.joined().iter().map(Pictures::labels);
        let first = all.next().unwrap_or(Labels::None);
        all.fold(first, |sum, labels| match (sum, labels) {
            (Labels::Boxes { most: a }, Labels::Boxes { most: b }) => Labels::Boxes { most: a.max(b) },
            _ => sum,
        })
    }

    /// As the first source has it: what a record looks like does not depend on which of them it came from.
    fn picture<'r>(&self, record: &'r S::Record) -> Result<Picture<'r>> {
        match self.joined().first() {
            Some(source) => source.picture(record),
            None => Ok(Picture::default()), // there are no records
        }
    }

    fn place(&self, record: &S::Record) -> Place {
        self.joined().first().map(|source| source.place(record)).unwrap_or_default()
    }
}

/// A record that holds an encoded image, whatever source of values it comes from: implement it for a type of your own and
/// [`from_vec`](super::from_vec), [`from_fn`](super::from_fn) and the sequences of it are [`Pictures`].
pub trait PictureRecord: Send + Sync + 'static {
    /// What every record has besides the image.
    const LABELS: Labels = Labels::None;

    /// The image, and what is known of it.
    ///
    /// # Errors
    /// Whatever the record lacks or has too much of.
    fn picture(&self) -> Result<Picture<'_>>;
}

impl PictureRecord for Vec<u8> {
    fn picture(&self) -> Result<Picture<'_>> {
        Ok(Picture { bytes: self, ..Picture::default() })
    }
}

impl PictureRecord for (Vec<u8>, i64) {
    const LABELS: Labels = Labels::Class;

    fn picture(&self) -> Result<Picture<'_>> {
        Ok(Picture { bytes: &self.0, class: Some(self.1), ..Picture::default() })
    }
}

impl<T: PictureRecord> Pictures for Memory<T> {
    fn labels(&self) -> Labels {
        T::LABELS
    }

    fn picture<'r>(&self, record: &'r T) -> Result<Picture<'r>> {
        record.picture()
    }
}

impl<T: PictureRecord> Pictures for Sequence<T> {
    fn labels(&self) -> Labels {
        T::LABELS
    }

    fn picture<'r>(&self, record: &'r T) -> Result<Picture<'r>> {
        record.picture()
    }
}

impl<T, F> Pictures for Function<F>
where
    T: PictureRecord,
    F: Fn(u64) -> anyhow::Result<T> + Send + Sync + 'static,
{
    fn labels(&self) -> Labels {
        T::LABELS
    }

    fn picture<'r>(&self, record: &'r T) -> Result<Picture<'r>> {
        record.picture()
    }
}

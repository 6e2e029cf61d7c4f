//! A sample as files hold it.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use super::picture::{LabelBox, Picture, Unit};
use crate::error::{Error, ErrorKind, Place, Result};

/// What the name of an image's file ends with, in lower case.
pub(super) const IMAGE_EXTENSIONS: [&str; 8] = ["jpg", "jpeg", "png", "webp", "bmp", "gif", "jpe", "jfif"];

/// What members are named in shards that are certainly no image: labels, texts, arrays.
const OTHER_EXTENSIONS: [&str; 14] =
    ["cls", "cls2", "index", "txt", "text", "json", "jsn", "csv", "npy", "npz", "pth", "pt", "pickle", "pyd"];

fn is_one_of(known: &[&str], extension: &str) -> bool {
    known.iter().any(|known| known.eq_ignore_ascii_case(extension))
}

/// Whether what follows the last dot of a member's name is known.
fn ends_as(known: &[&str], name: &str) -> bool {
    is_one_of(known, name.rsplit('.').next().unwrap_or(name))
}

/// Bytes of memory that are kept whatever the samples need.
const KEPT_BYTES: usize = 16 << 20;

/// One sample as files hold it: a key, and members named by their extensions (`jpg`, `cls`, `json`), beside what the
/// source itself knows of it. The record of sources of files; its memory is reused.
#[derive(Debug, Clone, Default)]
pub struct Bundle {
    key: String,
    /// The shard that it was read from, where its source can't tell by an index.
    shard: Option<Arc<Path>>,
    /// The members, one after another.
    bytes: Vec<u8>,
    members: Vec<(String, Range<usize>)>,
    class: Option<i64>,
    boxes: Vec<LabelBox>,
    unit: Unit,
    declared: Option<[u32; 2]>,
}

impl PartialEq for Bundle {
    /// Whether both have the same key, members and labels, wherever their bytes lie.
    fn eq(&self, other: &Self) -> bool {
        let labels = |b: &Self| (b.class, b.unit, b.declared);
        self.key == other.key
            && self.members().eq(other.members())
            && labels(self) == labels(other)
            && self.boxes == other.boxes
    }
}

impl Bundle {
    /// What names the sample in its set: the path of its file, or the members' common name in a shard.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// The bytes of the member with this name.
    pub fn member(&self, name: &str) -> Option<&[u8]> {
        self.members().find_map(|(n, bytes)| (n == name).then_some(bytes))
    }

    /// Names and bytes of the members, in the order of the files.
    pub fn members(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.members
            .iter()
            .map(|(name, range)| (name.as_str(), self.bytes.get(range.clone()).unwrap_or_default()))
    }

    /// The class, where the source knows one.
    pub fn class(&self) -> Option<i64> {
        self.class
    }

    /// The boxes, where the source knows them, and what they are measured in.
    pub fn boxes(&self) -> (&[LabelBox], Unit) {
        (&self.boxes, self.unit)
    }

    /// Forgets all but the memory; that too where it is over 16 MiB and the sample before took less than half of it.
    pub(super) fn restart(&mut self, key: &str) {
        self.key.clear();
        self.key.push_str(key);
        self.shard = None;
        let held = self.bytes.capacity();
        if held > KEPT_BYTES && self.bytes.len() < held / 2 {
            self.bytes = Vec::new();
        }
        self.bytes.clear();
        self.members.clear();
        self.class = None;
        self.boxes.clear();
        self.declared = None;
    }

    /// Adds a member of `len` bytes, to be written in full by the caller: they are left from an earlier sample or zero.
    pub(super) fn add(&mut self, name: &str, len: usize) -> &mut [u8] {
        let start = self.filled();
        self.name(name, start..start + len);
        self.room(len)
    }

    /// How many bytes there are, of members or not.
    pub(super) fn filled(&self) -> usize {
        self.bytes.len()
    }

    /// `len` bytes more that belong to no member yet, to be written in full by the caller.
    pub(super) fn room(&mut self, len: usize) -> &mut [u8] {
        let start = self.bytes.len();
        self.bytes.resize(start + len, 0);
        &mut self.bytes[start..]
    }

    /// Makes a member of bytes that are there.
    pub(super) fn name(&mut self, name: &str, range: Range<usize>) {
        self.members.push((name.to_string(), range));
    }

    #[cfg(feature = "tar")]
    pub(super) fn set_shard(&mut self, shard: &Arc<Path>) {
        self.shard = Some(Arc::clone(shard));
    }

    /// Where the sample lies, as far as it knows itself: of a [`ShardStream`](super::ShardStream) its shard and key, which a decoder can give its
    /// errors ([`Error::at`]); of other sources nothing, since [`Source::describe`](super::Source::describe) tells.
    pub fn place(&self) -> Place {
        let Some(shard) = &self.shard else { return Place::default() };
        let name = shard.file_name().unwrap_or(shard.as_os_str()).to_string_lossy().into_owned();
        let path = Some(shard.to_path_buf());
        Place { shard: Some(name), path, member: Some(self.key.clone()), ..Place::default() }
    }

    pub(super) fn set_class(&mut self, class: i64) {
        self.class = Some(class);
    }

    #[cfg(feature = "image")]
    pub(super) fn set_boxes(&mut self, boxes: &[LabelBox], unit: Unit, declared: Option<[u32; 2]>) {
        self.declared = declared;
        self.boxes.clear();
        self.boxes.extend_from_slice(boxes);
        self.unit = unit;
    }

    /// The sample's image: its first member that is named for an image format and nothing else (`jpg`); or the first whose name ends so
    /// (`depth.png`); or its only member, unless that is named for something else (`cls`).
    ///
    /// # Errors
    /// [`ErrorKind::MissingField`] naming the members where there is none.
    pub(super) fn picture(&self) -> Result<Picture<'_>> {
        let whole = self.members().find(|(name, _)| is_one_of(&IMAGE_EXTENSIONS, name));
        let image = whole.or_else(|| self.members().find(|(name, _)| ends_as(&IMAGE_EXTENSIONS, name)));
        let only = (self.members.len() == 1).then(|| self.members().next()).flatten();
        let only = only.filter(|(name, _)| !ends_as(&OTHER_EXTENSIONS, name));
        self.pictured(image.or(only), "the sample has no image")
    }

    /// The sample's image: the first of `names` that it has as a member.
    ///
    /// # Errors
    /// As [`Bundle::picture`].
    #[cfg(feature = "tar")]
    pub(super) fn picture_named(&self, names: &[String]) -> Result<Picture<'_>> {
        let image = names.iter().find_map(|name| self.members().find(|(member, _)| member == name));
        self.pictured(image, &format!("the sample has no {}", names.join(" and no ")))
    }

    fn pictured<'a>(&'a self, image: Option<(&str, &'a [u8])>, lacking: &str) -> Result<Picture<'a>> {
        let Some((_, bytes)) = image else {
            let names: Vec<&str> = self.members.iter().take(12).map(|(name, _)| name.as_str()).collect();
            let text = format!("{lacking}; its members are {}", names.join(", "));
            let place = Place { member: Some(self.key.clone()), ..Place::default() };
            return Err(Error::new(ErrorKind::MissingField, text).at(place));
        };
        Ok(Picture { bytes, class: self.class, boxes: &self.boxes, unit: self.unit, declared: self.declared })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_large_sample_holds_no_memory_for_ever() {
        let mut bundle = Bundle::default();
        let mut sample = |len: usize| {
            bundle.restart("a");
            bundle.add("jpg", len);
            bundle.bytes.capacity()
        };
        let large = sample(2 * KEPT_BYTES);
        assert!(large >= 2 * KEPT_BYTES);
        assert_eq!([sample(2 * KEPT_BYTES), sample(9)], [large; 2], "the memory is used again");
        assert!(sample(9) < 100);
        let held = sample(KEPT_BYTES);
        assert_eq!([sample(9), sample(9)], [held; 2], "so much may stay");
    }
}

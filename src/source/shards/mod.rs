//! WebDataset shards: tar archives in which neighbouring members with the same key are a sample.

mod cache;
/// Calls of the parsers, for fuzz targets.
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod index;
mod indexed;
mod name;
mod packed;
mod pattern;
mod report;
mod stream;
mod walk;

use std::path::{Path, PathBuf};

pub use indexed::Shards;
pub use report::{ShardReport, Skipped};
pub use stream::ShardStream;

use self::name::KeyRule;
use super::Bundle;
use super::picture::{Labels, Picture};
use crate::error::{Error, ErrorKind, Place, Result};

/// A sample's members have so many bytes together at most, unless told otherwise.
const SAMPLE_BYTES: u64 = 1 << 30;

/// What becomes of a shard that is damaged: cut, or with a header that makes no sense.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnDamage {
    /// [`Shards`] are not opened. A [`ShardStream`] gives the whole samples before the damage, then the error in the place of a sample,
    /// and goes on with the next shard.
    #[default]
    Fail,
    /// The whole samples before the damage are kept and the rest is left out: counted in the report, with one warning.
    Skip,
}

/// Where indices of shards are kept between runs.
#[derive(Debug, Clone, PartialEq, Eq)]
enum CacheIn {
    Beside,
    Folder(PathBuf),
}

/// How shards are read. Made by [`Shards::options`].
///
/// ```no_run
/// use warpfeed::source::{OnDamage, Shards};
/// let options = Shards::options().require(["jpg", "cls"]).on_damage(OnDamage::Skip);
/// let train = options.clone().cache_index_beside().open("train-{000..147}.tar")?;
/// println!("{}", train.report());
/// let stream = options.stream("more-{000..031}.tar.gz")?.shuffle_shards(7);
/// # Ok::<(), warpfeed::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShardOptions {
    rules: Rules,
    damage: OnDamage,
    cache: Option<CacheIn>,
}

/// What makes a sample of members.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Rules {
    key: KeyRule,
    require: Vec<String>,
    most: u64,
    /// The members that may be the image, the first choice first; none where their names tell.
    image: Vec<String>,
    /// The member that is the class; empty where there is to be none.
    class: String,
    /// Whether every sample is to have it.
    classed: bool,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            key: KeyRule::FirstDot,
            require: Vec::new(),
            most: SAMPLE_BYTES,
            image: Vec::new(),
            class: "cls".to_string(),
            classed: false,
        }
    }
}

impl Default for ShardOptions {
    fn default() -> Self {
        Self { rules: Rules::default(), damage: OnDamage::Fail, cache: None }
    }
}

impl ShardOptions {
    /// Splits the base names of members at their last dot, so that keys may have dots in them; WebDataset, and this crate unless told so,
    /// splits at the first.
    #[must_use]
    pub fn last_dot(mut self) -> Self {
        self.rules.key = KeyRule::LastDot;
        self
    }

    /// Members that every sample must have, by their extensions in lower case. One that lacks any is an error of that sample
    /// ([`ErrorKind::MissingField`]).
    #[must_use]
    pub fn require(mut self, members: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.rules.require = members.into_iter().map(Into::into).collect();
        self
    }

    /// Which member is a sample's image, as WebDataset's `to_tuple` has it: `"jpg;png"` is `jpg` or, where there is none, `png`. A sample that
    /// has none of them is an error when it is decoded ([`ErrorKind::MissingField`]). Unless set, or where nothing is named, it is as [`Shards`] says.
    #[must_use]
    pub fn image(mut self, members: &str) -> Self {
        let names = members.split(';').map(|name| name.trim().to_lowercase());
        self.rules.image = names.filter(|name| !name.is_empty()).collect();
        self
    }

    /// Which member is the class, an integer in text; `cls` unless set. Named here (or in [`ShardOptions::require`]) every sample must have it:
    /// one that lacks it is [`ErrorKind::MissingField`]. An empty name says that the images have no class.
    #[must_use]
    pub fn class(mut self, member: &str) -> Self {
        self.rules.class = member.trim().to_lowercase();
        self.rules.classed = !self.rules.class.is_empty();
        self
    }

    /// The most bytes that the members of one sample may have together; 1 GiB unless set. More is an error of that sample
    /// ([`ErrorKind::LimitExceeded`]), before memory is taken for it.
    #[must_use]
    pub fn max_sample_bytes(mut self, bytes: u64) -> Self {
        self.rules.most = bytes;
        self
    }

    /// What becomes of damaged shards.
    #[must_use]
    pub fn on_damage(mut self, damage: OnDamage) -> Self {
        self.damage = damage;
        self
    }

    /// Keeps the index of each shard in a file beside it, `NAME.tar.warpfeed-index`, for the next time it is opened. One that
    /// does not fit the shard's size and modification time, or is damaged, is made anew; where it can't be written that is a warning.
    #[must_use]
    pub fn cache_index_beside(mut self) -> Self {
        self.cache = Some(CacheIn::Beside);
        self
    }

    /// As [`ShardOptions::cache_index_beside`], but in `folder`, which is made where it is missing.
    #[must_use]
    pub fn cache_index_in(mut self, folder: impl Into<PathBuf>) -> Self {
        self.cache = Some(CacheIn::Folder(folder.into()));
        self
    }

    /// Opens shards for random access: [`Shards::open`].
    ///
    /// # Errors
    /// As [`Shards::open`].
    pub fn open(self, path: impl AsRef<Path>) -> Result<Shards> {
        let path = path.as_ref();
        let (plain, left_out) = pattern::plain(path, pattern::shards(path)?);
        let mut shards = Shards::with(self, plain)?;
        shards.leave_out(&left_out);
        Ok(shards)
    }

    /// Opens a list of shards for random access: [`Shards::open_all`].
    ///
    /// # Errors
    /// As [`Shards::open`].
    pub fn open_all(self, paths: impl IntoIterator<Item = impl AsRef<Path>>) -> Result<Shards> {
        Shards::with(self, listed(paths))
    }

    /// Opens shards to be read in sequence: [`ShardStream::open`].
    ///
    /// # Errors
    /// As [`ShardStream::open`]; [`ErrorKind::InvalidConfig`] also where an index should be kept: there is none.
    pub fn stream(self, path: impl AsRef<Path>) -> Result<ShardStream> {
        ShardStream::with(self, pattern::shards(path.as_ref())?)
    }

    /// Opens a list of shards to be read in sequence: [`ShardStream::open_all`].
    ///
    /// # Errors
    /// As [`ShardOptions::stream`].
    pub fn stream_all(self, paths: impl IntoIterator<Item = impl AsRef<Path>>) -> Result<ShardStream> {
        ShardStream::with(self, listed(paths))
    }
}

fn listed(paths: impl IntoIterator<Item = impl AsRef<Path>>) -> Vec<PathBuf> {
    paths.into_iter().map(|path| path.as_ref().to_path_buf()).collect()
}

/// Refuses a list of shards that is empty or of which some don't exist.
fn check_list(paths: &[PathBuf]) -> Result<()> {
    if paths.is_empty() {
        return Err(Error::new(ErrorKind::InvalidConfig, "there are no shards to read"));
    }
    pattern::all_exist(paths)
}

/// The place of a shard.
fn place_of(path: &Path) -> Place {
    let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
    Place { shard: Some(name), path: Some(path.to_path_buf()), ..Place::default() }
}

/// The place of a sample or of its member, in a shard.
fn within(shard: Place, member: impl Into<String>, offset: u64) -> Place {
    Place { member: Some(member.into()), offset: Some(offset), ..shard }
}

impl Rules {
    /// Refuses a sample of too many bytes.
    fn limit(&self, bytes: u64) -> Result<()> {
        if bytes <= self.most {
            return Ok(());
        }
        let text = format!(
            "the sample has {bytes} bytes or more, the limit is {}: raise max_sample_bytes",
            self.most
        );
        Err(Error::new(ErrorKind::LimitExceeded, text))
    }

    /// Refuses a sample without a member that is required.
    fn complete<'n, N: Iterator<Item = &'n str>>(&self, names: impl Fn() -> N) -> Result<()> {
        match self.require.iter().find(|required| !names().any(|name| name == *required)) {
            None => Ok(()),
            Some(missing) => Err(lacks(missing, names())),
        }
    }

    /// What samples are labelled with, if some `have` the member that is the class.
    fn labels(&self, have: bool) -> Labels {
        let promised = self.classed || self.require.contains(&self.class);
        if !self.class.is_empty() && (have || promised) { Labels::Class } else { Labels::None }
    }

    /// The class that a sample names: an integer, blanks around it aside.
    fn class_of(&self, bundle: &Bundle) -> Option<Result<i64>> {
        let bytes = bundle.member(&self.class)?;
        let text = std::str::from_utf8(bytes).ok().map(str::trim);
        Some(text.and_then(|text| text.parse().ok()).ok_or_else(|| {
            let shown: String = String::from_utf8_lossy(bytes).chars().take(40).collect();
            let text = format!("the sample's `{}` is no integer: {shown:?}", self.class);
            Error::new(ErrorKind::InvalidLabel, text)
        }))
    }

    /// Notes the class of a sample that is whole, where it is one.
    fn note_class(&self, bundle: &mut Bundle) {
        if let Some(Ok(class)) = self.class_of(bundle) {
            bundle.set_class(class);
        }
    }

    /// The picture of a sample whose set has `labels`.
    fn picture<'b>(&self, labels: Labels, bundle: &'b Bundle) -> Result<Picture<'b>> {
        let at = |e: Error| e.at(Place { member: Some(bundle.key().to_string()), ..Place::default() });
        if labels == Labels::Class && bundle.class().is_none() {
            let missing = || Err(lacks(&self.class, bundle.members().map(|(name, _)| name)));
            self.class_of(bundle).unwrap_or_else(missing).map_err(at)?;
        }
        if self.image.is_empty() { bundle.picture() } else { bundle.picture_named(&self.image) }
    }
}

fn lacks<'n>(missing: &str, names: impl Iterator<Item = &'n str>) -> Error {
    let names: Vec<&str> = names.take(12).collect();
    let text = format!("the sample has no {missing:?}; it has {}", names.join(", "));
    Error::new(ErrorKind::MissingField, text)
}

fn duplicate(field: &str) -> Error {
    Error::new(ErrorKind::DuplicateKey, format!("the sample has {field:?} twice"))
}

fn sparse() -> Error {
    Error::new(ErrorKind::Unsupported, "sparse members are not read: write the archive without `--sparse`")
}

#[cfg(test)]
mod tests;

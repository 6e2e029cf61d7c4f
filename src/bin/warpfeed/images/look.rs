//! One image and what its head and its name say.

use warpfeed::decode::codec::{self, Format, Head, Limits};
use warpfeed::source::{Bundle, Picture, Pictures, Source};
use warpfeed::{Place, Result};

/// An image as it is stored, and its head.
pub(crate) struct Look<'a> {
    pub(crate) picture: Picture<'a>,
    pub(crate) head: Head,
    /// The extension in the file's name where it is that of another format.
    pub(crate) misnamed: Option<&'a str>,
}

impl<'a> Look<'a> {
    /// Sample `index` of `set`; no pixel is decoded.
    ///
    /// # Errors
    /// With their place: what keeps the sample from being read, a label that is wrong, a head that makes no sense or has another size than the labels say.
    pub(crate) fn at<S>(set: &'a S, index: u64, scratch: &'a mut Bundle) -> Result<Self>
    where
        S: Pictures<Record = Bundle, Scratch = Bundle>,
    {
        let placed = |e: warpfeed::Error| e.at(place(set, index));
        let bundle = set.read(index, scratch).map_err(placed)?;
        let picture = set.picture(bundle).map_err(placed)?;
        let head = codec::head(picture.bytes, Limits::default()).map_err(placed)?;
        picture.declared.map_or(Ok(()), |size| head.check_size(size)).map_err(placed)?;
        let own = bundle.members().find(|(_, bytes)| std::ptr::eq(*bytes, picture.bytes));
        let extension = own.map(|(name, _)| name.rsplit('.').next().unwrap_or(name));
        let misnamed = extension.filter(|e| named(e).is_some_and(|format| format != head.format));
        Ok(Self { picture, head, misnamed })
    }
}

/// Where a sample lies.
pub(crate) fn place(set: &impl Source, index: u64) -> Place {
    let mut place = set.describe(index);
    place.index = Some(index);
    place
}

/// The format that files with this extension should have.
fn named(extension: &str) -> Option<Format> {
    Some(match extension.to_ascii_lowercase().as_str() {
        "jpg" | "jpeg" | "jpe" | "jfif" => Format::Jpeg,
        "png" => Format::Png,
        "webp" => Format::WebP,
        "bmp" => Format::Bmp,
        "gif" => Format::Gif,
        _ => return None,
    })
}

//! From an encoded image to its row of a batch.

mod boxes;
pub mod codec;
mod fit;
mod geometry;
mod orientation;
mod resize;

pub use boxes::{BoxFormat, ImageCounts};
pub use geometry::Geometry;
pub use orientation::Orientation;

use boxes::{BoxRules, BoxTally, VALUES};
use codec::{Color, Limits};
use fit::Fit;
use orientation::Turn;
use resize::{Painter, Painting};

use super::{Decode, Sample};
use crate::error::{Error, ErrorKind, Result};
use crate::random::SampleRng;
use crate::row::Row;
use crate::source::{Labels, Pictures};
use crate::spec::Field;

/// What becomes of a file that ends before its last pixel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnTruncated {
    /// [`ErrorKind::Truncated`], for the loader's policy.
    #[default]
    Error,
    /// The pixels that are there, the rest as the codec leaves it, and `true` in the field `partial`.
    Deliver,
}

/// Decodes images of any size into rows of one size, 8 bits a channel.
///
/// | field | row | where |
/// |---|---|---|
/// | `image` | u8 \[height, width, 3\], or 1 for gray | always |
/// | `label` | i64 | the source's labels are [`Labels::Class`] |
/// | `boxes` | f32, ragged, 5 a box: class, then [`BoxFormat`] | they are [`Labels::Boxes`] |
/// | `geometry` | f32 \[11\]: [`Geometry`] | unless [`Image::without_geometry`] |
/// | `partial` | bool | [`OnTruncated::Deliver`] |
/// | `key` | text on the host | [`Image::keys`] |
///
/// How an image comes to the row's size is its *fit*: [`Image::stretch`], [`Image::resize_then_center_crop`],
/// [`Image::random_resized_crop`], [`Image::random_crop`], [`Image::letterbox`]; unless one is named, the image is resized, its
/// aspect kept, so that it just covers the row, and its middle is taken. Resizing is bilinear with antialiasing.
///
/// What is random is drawn from [`Sample::rng`] in this order: the fit, then the horizontal flip, then the vertical one, each only
/// where it is asked for. So it depends on the seed, the epoch, the sample's index and the image's size alone.
///
/// # Boxes
/// They follow their image. A box is first clipped to the image, then to what of the image is visible in the row. It is
/// dropped where less than [`Image::min_box_size`] is left of its width or height in the row, or less than
/// [`Image::min_visibility`] of its area within the image. [`Image::counts`] tells how many were kept, clipped and dropped. An image
/// without boxes has a row of none.
///
/// ```
/// use warpfeed::decode::Image;
/// let train = Image::rgb8(224, 224).random_resized_crop(Image::SCALE, Image::RATIO).flip(0.5);
/// let val = Image::rgb8(224, 224).resize_then_center_crop(256);
/// let detect = Image::rgb8(640, 640).letterbox();
/// # let _ = (train, val, detect);
/// ```
#[derive(Debug, Clone)]
pub struct Image {
    height: usize,
    width: usize,
    color: Color,
    fit: Fit,
    fill: Option<u8>,
    scale_up: Option<bool>,
    flip: [f64; 2],
    scaled: bool,
    orientation: Orientation,
    on_truncated: OnTruncated,
    limits: Limits,
    boxes: BoxRules,
    geometry: bool,
    keys: bool,
    any_size: bool,
    counts: ImageCounts,
}

impl Image {
    /// torchvision's default for [`Image::random_resized_crop`]: 8 % to all of the area.
    pub const SCALE: (f64, f64) = (0.08, 1.0);
    /// torchvision's default for [`Image::random_resized_crop`]: 3:4 to 4:3.
    pub const RATIO: (f64, f64) = (3.0 / 4.0, 4.0 / 3.0);

    /// Three channels, red first. Gray is copied to all three, alpha is dropped.
    pub fn rgb8(height: usize, width: usize) -> Self {
        Self::new(height, width, Color::Rgb8)
    }

    /// One channel, the luminance.
    pub fn gray8(height: usize, width: usize) -> Self {
        Self::new(height, width, Color::Gray8)
    }

    fn new(height: usize, width: usize, color: Color) -> Self {
        Self {
            height,
            width,
            color,
            fit: Fit::Cover,
            fill: None,
            scale_up: None,
            flip: [0.0; 2],
            scaled: false,
            orientation: Orientation::default(),
            on_truncated: OnTruncated::default(),
            limits: Limits::default(),
            boxes: BoxRules { format: BoxFormat::default(), min_size: 2.0, min_visibility: 0.1 },
            geometry: true,
            keys: false,
            any_size: false,
            counts: ImageCounts::default(),
        }
    }

    fn with_fit(self, fit: Fit) -> Self {
        Self { fit, ..self }
    }

    /// Resizes to the row's size, whatever the image's aspect.
    #[must_use]
    pub fn stretch(self) -> Self {
        self.with_fit(Fit::Stretch)
    }

    /// Resizes so that the shorter side has `short_side` pixels and takes the middle of it: torchvision's `Resize(short_side)` and
    /// `CenterCrop((height, width))`, with its rounding. Where the resized image is smaller than the row, it is filled around.
    #[must_use]
    pub fn resize_then_center_crop(self, short_side: u32) -> Self {
        self.with_fit(Fit::ResizeThenCenterCrop { short: short_side })
    }

    /// Takes a random part of the image and resizes it: torchvision's `RandomResizedCrop`. `scale` is the range of its area as a
    /// fraction of the image's, `ratio` that of its width over its height, drawn evenly in its logarithm.
    #[must_use]
    pub fn random_resized_crop(self, scale: (f64, f64), ratio: (f64, f64)) -> Self {
        self.with_fit(Fit::RandomResizedCrop { scale, ratio })
    }

    /// Takes a random window of the row's size, without resizing. Along a side where the image is smaller, all of it comes into
    /// the middle of the row.
    #[must_use]
    pub fn random_crop(self) -> Self {
        self.with_fit(Fit::RandomCrop)
    }

    /// Resizes, the aspect kept, so that the whole image fits, and fills around it: Ultralytics' `LetterBox`, with its rounding.
    #[must_use]
    pub fn letterbox(self) -> Self {
        self.with_fit(Fit::Letterbox { scale_up: true })
    }

    /// With [`Image::letterbox`], whether images smaller than the row are enlarged (they are unless this says `false`).
    #[must_use]
    pub fn scale_up(self, scale_up: bool) -> Self {
        Self { scale_up: Some(scale_up), ..self }
    }

    /// The value of every channel where the row shows nothing of the image; 114 for a letterbox, else 0.
    #[must_use]
    pub fn fill(self, value: u8) -> Self {
        Self { fill: Some(value), ..self }
    }

    /// Mirrors left and right with probability `p`.
    #[must_use]
    pub fn flip(mut self, p: f64) -> Self {
        self.flip[0] = p;
        self
    }

    /// Mirrors top and bottom with probability `p`.
    #[must_use]
    pub fn vertical_flip(mut self, p: f64) -> Self {
        self.flip[1] = p;
        self
    }

    /// Lets the codec decode at 1/2, 1/4 or 1/8 of the size where what is left is at least as large as the target: faster, where the
    /// codec can, and slightly other pixels. The geometry stays that of the full size.
    #[must_use]
    pub fn scaled_decoding(self, scaled: bool) -> Self {
        Self { scaled, ..self }
    }

    /// What becomes of the EXIF orientation of a file.
    #[must_use]
    pub fn orientation(self, orientation: Orientation) -> Self {
        Self { orientation, ..self }
    }

    /// What becomes of a file that ends early.
    #[must_use]
    pub fn on_truncated(self, on_truncated: OnTruncated) -> Self {
        Self { on_truncated, ..self }
    }

    /// The largest files, in bytes, and the largest images, in pixels, that are decoded; others are
    /// [`ErrorKind::LimitExceeded`] before memory is allocated for them. Unless said otherwise 256 MiB and 178,956,970 pixels (where Pillow
    /// refuses an image). No side may have more than 1,048,576 pixels.
    #[must_use]
    pub fn limits(self, bytes: u64, pixels: u64) -> Self {
        Self { limits: Limits { bytes, pixels }, ..self }
    }

    /// How boxes are written.
    #[must_use]
    pub fn boxes_as(mut self, format: BoxFormat) -> Self {
        self.boxes.format = format;
        self
    }

    /// Drops boxes whose width or height is under `pixels` in the row after clipping; 2 unless said otherwise, as
    /// Ultralytics' `box_candidates`. 0 keeps every box with an area.
    #[must_use]
    pub fn min_box_size(mut self, pixels: f32) -> Self {
        self.boxes.min_size = pixels;
        self
    }

    /// Drops boxes of whose area in the image less than `fraction` is visible in the row; 0.1 unless said otherwise, as
    /// Ultralytics' `box_candidates`.
    #[must_use]
    pub fn min_visibility(mut self, fraction: f32) -> Self {
        self.boxes.min_visibility = fraction;
        self
    }

    /// Whether an image may have another size than its labels give it (`width` and `height` of COCO's annotations). Unless set that is
    /// [`ErrorKind::InvalidLabel`]: boxes in pixels are of the image that they were drawn on, and not of a resized copy. The size as it is when
    /// turned by the EXIF orientation will do too.
    #[must_use]
    pub fn any_size(self, any_size: bool) -> Self {
        Self { any_size, ..self }
    }

    /// Leaves the field `geometry` out.
    #[must_use]
    pub fn without_geometry(self) -> Self {
        Self { geometry: false, ..self }
    }

    /// Adds the host-only field `key`: the member of a shard, or the path of a file, as [`Pictures::place`] or else [`Source::describe`](crate::source::Source::describe) has it;
    /// the index where neither has one.
    #[must_use]
    pub fn keys(self) -> Self {
        Self { keys: true, ..self }
    }

    /// A handle to the counts of this decoder and its clones.
    pub fn counts(&self) -> ImageCounts {
        self.counts.clone()
    }

    fn size(&self) -> Result<[u32; 2]> {
        let side = |n: usize, what: &str| match u32::try_from(n) {
            Ok(n) if (1..=1 << 20).contains(&n) => Ok(n),
            _ => {
                let text = format!("the rows' {what} is {n}, not 1 to 1,048,576 pixels");
                Err(Error::new(ErrorKind::InvalidConfig, text))
            }
        };
        Ok([side(self.width, "width")?, side(self.height, "height")?])
    }

    fn fit(&self) -> Result<Fit> {
        match (self.fit, self.scale_up) {
            (fit, None) => Ok(fit),
            (Fit::Letterbox { .. }, Some(scale_up)) => Ok(Fit::Letterbox { scale_up }),
            (..) => {
                Err(Error::new(ErrorKind::InvalidConfig, "scale_up is for a letterbox: call `letterbox` too"))
            }
        }
    }

    fn check(&self) -> Result<()> {
        let config = |text: String| Err(Error::new(ErrorKind::InvalidConfig, text));
        self.size()?;
        self.fit()?.check()?;
        for (p, what) in self.flip.into_iter().zip(["flip", "vertical_flip"]) {
            if !(0.0..=1.0).contains(&p) {
                return config(format!("{what}: the probability is {p}, not 0 to 1"));
            }
        }
        if !(0.0..=1.0).contains(&self.boxes.min_visibility) {
            return config(format!("min_visibility is {}, not 0 to 1", self.boxes.min_visibility));
        }
        if !(0.0..f32::INFINITY).contains(&self.boxes.min_size) {
            return config(format!("min_box_size is {} pixels", self.boxes.min_size));
        }
        Ok(())
    }
}

/// A worker's memory: decoders, the resizer, and their buffers.
#[derive(Debug, Default)]
pub struct ImageScratch {
    painter: Painter,
    boxes: Vec<f32>,
}

impl<S: Pictures> Decode<S> for Image {
    type Scratch = ImageScratch;

    fn fields(&self, source: &S) -> Result<Vec<Field>> {
        self.check()?;
        let mut fields = vec![Field::new::<u8>("image", &[self.height, self.width, self.color.channels()])];
        match source.labels() {
            Labels::None => {}
            Labels::Class => fields.push(Field::scalar::<i64>("label")),
            Labels::Boxes { most } => {
                fields.push(Field::ragged::<f32>("boxes", most.max(1).saturating_mul(VALUES)));
            }
        }
        if self.geometry {
            fields.push(Field::new::<f32>("geometry", &[Geometry::LEN]));
        }
        if self.on_truncated == OnTruncated::Deliver {
            fields.push(Field::scalar::<bool>("partial"));
        }
        if self.keys {
            fields.push(Field::host("key"));
        }
        Ok(fields)
    }

    fn decode(
        &self,
        sample: &mut Sample<'_, S>,
        scratch: &mut ImageScratch,
        row: &mut Row<'_>,
    ) -> anyhow::Result<()> {
        let (source, index, rng) = (sample.source(), sample.index(), sample.rng());
        let record = sample.read()?;
        self.write(source, record, rng, scratch, row).map_err(|e| e.at(source.place(record)))?;
        if self.keys {
            write_key(source, record, index, row.text("key")?);
        }
        Ok(())
    }
}

impl Image {
    /// Writes every field but the key.
    fn write<S: Pictures>(
        &self,
        source: &S,
        record: &S::Record,
        mut rng: SampleRng,
        scratch: &mut ImageScratch,
        row: &mut Row<'_>,
    ) -> Result<()> {
        let size = self.size()?;
        let fit = self.fit()?;
        let picture = source.picture(record)?;
        let head = codec::head(picture.bytes, self.limits)?;
        let stored = [head.width, head.height];
        if let Some(declared) = picture.declared.filter(|_| !self.any_size) {
            head.check_size(declared)
                .map_err(|e| Error::new(e.kind(), format!("{} (`any_size` lets it pass)", e.message())))?;
        }
        let turn = match self.orientation {
            Orientation::Stored => Turn::default(),
            Orientation::Applied => Turn::of(head.orientation),
        };
        let geometry = fit.place(turn.size(stored), size, &mut rng)?;
        let geometry = geometry.flipped(self.flip.map(|p| p > 0.0 && rng.chance(p)), size);
        let painting = Painting {
            bytes: picture.bytes,
            head: &head,
            color: self.color,
            turn,
            geometry,
            fill: self.fill.unwrap_or(fit.fill()),
            lenient: self.on_truncated == OnTruncated::Deliver,
            scaled: self.scaled,
        };
        let partial = scratch.painter.paint(&painting, row.overwrite("image")?, size)?;

        let mut tally = BoxTally::default();
        match source.labels() {
            Labels::None => {}
            Labels::Class => {
                let missing = || Error::new(ErrorKind::MissingField, "the sample has no class");
                row.set("label", picture.class.ok_or_else(missing)?)?;
            }
            Labels::Boxes { .. } => {
                let boxes = &mut scratch.boxes;
                tally = self.boxes.apply(picture.boxes, picture.unit, &geometry, size, boxes);
                row.copy_ragged("boxes", boxes)?;
            }
        }
        if self.geometry {
            row.copy("geometry", &geometry.to_row())?;
        }
        if self.on_truncated == OnTruncated::Deliver {
            row.set("partial", partial)?;
        }
        self.counts.add(tally, partial);
        Ok(())
    }
}

fn write_key<S: Pictures>(source: &S, record: &S::Record, index: u64, text: &mut String) {
    let mut place = source.place(record);
    if place.member.is_none() {
        place.fill_from(source.describe(index));
    }
    match (&place.member, &place.path) {
        (Some(member), _) => text.push_str(member),
        (None, Some(path)) => text.push_str(&path.to_string_lossy()),
        (None, None) => text.push_str(&index.to_string()),
    }
}

//! Where an image lies in its row.

use super::codec::Rect;
use crate::error::{Error, ErrorKind, Result};

/// How an image came into its row, as the field `geometry` delivers it: the rectangle `crop` of the image, mirrored as
/// `flip` says, was stretched over the rectangle `target` of the row. The target may reach beyond the row, where only a
/// part of the crop is visible, or leave some of it to the fill.
///
/// A point (x, y) of the image, in pixels from its upper left corner (the centre of the first pixel is (0.5, 0.5)), lies in
/// the row at
///
/// ```text
/// u = (x − crop.x) / crop.width      or 1 − u where flipped horizontally
/// x' = target.x + u · target.width   and so for y
/// ```
///
/// The image's size is the one after its EXIF orientation where [`Orientation::Applied`](super::Orientation::Applied).
///
/// ```
/// # use warpfeed::decode::Geometry;
/// // A 1280 × 720 image letterboxed into 640 × 640.
/// let row = [1280.0, 720.0, 0.0, 0.0, 1280.0, 720.0, 0.0, 140.0, 640.0, 360.0, 0.0];
/// let geometry = Geometry::from_row(&row)?;
/// assert_eq!(geometry.forward([640.0, 360.0]), [320.0, 320.0]);
/// assert_eq!(geometry.invert_box([0.0, 140.0, 320.0, 320.0]), [0.0, 0.0, 640.0, 360.0]);
/// # Ok::<(), warpfeed::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    /// Width and height.
    pub(super) image: [u32; 2],
    pub(super) crop: Rect,
    pub(super) target: Target,
    /// Horizontally, vertically.
    pub(super) flip: [bool; 2],
}

/// A rectangle in the coordinates of a row's pixels, which may reach beyond them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) x: i64,
    pub(super) y: i64,
    pub(super) width: u32,
    pub(super) height: u32,
}

impl Geometry {
    /// How many numbers a row of the field has.
    pub const LEN: usize = 11;

    /// From a row of the field `geometry`: width and height of the image; x, y, width and height of the crop; the same of
    /// the target; 0 for no flip, 1 for a horizontal one, 2 for a vertical one, 3 for both. All are whole numbers (those of a
    /// target over 2²⁴ pixels are rounded to what an `f32` holds).
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for anything else: a hole, whose row is all zero, has no geometry.
    pub fn from_row(row: &[f32]) -> Result<Self> {
        let bad = || {
            let text = format!(
                "{row:?} is no geometry: it has {} whole numbers, a hole in a batch has zeros",
                Self::LEN
            );
            Error::new(ErrorKind::InvalidArgument, text)
        };
        let row: &[f32; Self::LEN] = row.try_into().map_err(|_| bad())?;
        let whole = |v: f32| v.fract() == 0.0 && v.abs() <= 9e15;
        let size = |v: f32| (1.0..=u32::MAX as f32).contains(&v);
        let at = |v: f32| (0.0..=u32::MAX as f32).contains(&v);
        let [width, height, x, y, w, h, tx, ty, tw, th, flip] = *row;
        let fits = row.iter().all(|&v| whole(v))
            && [width, height, w, h, tw, th].iter().all(|&v| size(v))
            && at(x)
            && at(y)
            && f64::from(x) + f64::from(w) <= f64::from(width)
            && f64::from(y) + f64::from(h) <= f64::from(height)
            && (0.0..=3.0).contains(&flip);
        if !fits {
            return Err(bad());
        }
        Ok(Self {
            image: [width as u32, height as u32],
            crop: Rect { x: x as u32, y: y as u32, width: w as u32, height: h as u32 },
            target: Target { x: tx as i64, y: ty as i64, width: tw as u32, height: th as u32 },
            flip: [flip as u8 & 1 == 1, flip as u8 & 2 == 2],
        })
    }

    /// The row of the field: the inverse of [`Geometry::from_row`].
    pub fn to_row(&self) -> [f32; Self::LEN] {
        let (crop, target) = (self.crop, self.target);
        [
            self.image[0] as f32,
            self.image[1] as f32,
            crop.x as f32,
            crop.y as f32,
            crop.width as f32,
            crop.height as f32,
            target.x as f32,
            target.y as f32,
            target.width as f32,
            target.height as f32,
            f32::from(u8::from(self.flip[0]) | u8::from(self.flip[1]) << 1),
        ]
    }

    /// Width and height of the image, in pixels.
    pub fn image(&self) -> [u32; 2] {
        self.image
    }

    /// The part of the image that is stretched over the target: x, y, width, height in pixels of the image.
    pub fn crop(&self) -> [u32; 4] {
        [self.crop.x, self.crop.y, self.crop.width, self.crop.height]
    }

    /// Where the crop lies in the row: x, y, width, height in pixels of the row; x and y may be negative.
    pub fn target(&self) -> [i64; 4] {
        let Target { x, y, width, height } = self.target;
        [x, y, width.into(), height.into()]
    }

    /// Whether the crop is mirrored horizontally, and vertically.
    pub fn flip(&self) -> [bool; 2] {
        self.flip
    }

    /// Where a point (x, y) of the image lies in the row.
    pub fn forward(&self, [x, y]: [f32; 2]) -> [f32; 2] {
        let [x, y] = [self.axis(0).forward(x.into()), self.axis(1).forward(y.into())];
        [x as f32, y as f32]
    }

    /// Where a box (left, top, right, bottom) of the image lies in the row, not clipped.
    pub fn forward_box(&self, corners: [f32; 4]) -> [f32; 4] {
        self.forward_f64(corners.map(f64::from)).map(|v| v as f32)
    }

    /// Where a point (x, y) of the row lies in the image.
    pub fn invert(&self, [x, y]: [f32; 2]) -> [f32; 2] {
        let [x, y] = [self.axis(0).invert(x.into()), self.axis(1).invert(y.into())];
        [x as f32, y as f32]
    }

    /// Where a box (left, top, right, bottom) of the row, a prediction say, lies in the image, not clipped.
    pub fn invert_box(&self, [x0, y0, x1, y1]: [f32; 4]) -> [f32; 4] {
        let [x0, x1] = sorted([x0, x1].map(|x| self.axis(0).invert(x.into())));
        let [y0, y1] = sorted([y0, y1].map(|y| self.axis(1).invert(y.into())));
        [x0, y0, x1, y1].map(|v| v as f32)
    }

    /// As [`Geometry::invert_box`], clipped to the image.
    pub fn invert_clipped(&self, corners: [f32; 4]) -> [f32; 4] {
        let [width, height] = self.image.map(|v| v as f32);
        let [x0, y0, x1, y1] = self.invert_box(corners);
        [x0.clamp(0.0, width), y0.clamp(0.0, height), x1.clamp(0.0, width), y1.clamp(0.0, height)]
    }

    pub(super) fn forward_f64(&self, [x0, y0, x1, y1]: [f64; 4]) -> [f64; 4] {
        let [x0, x1] = sorted([x0, x1].map(|x| self.axis(0).forward(x)));
        let [y0, y1] = sorted([y0, y1].map(|y| self.axis(1).forward(y)));
        [x0, y0, x1, y1]
    }

    pub(super) fn axis(&self, axis: usize) -> Axis {
        let (crop, target, flip) = (self.crop, self.target, self.flip[axis]);
        match axis {
            0 => Axis { from: crop.x, size: crop.width, to: target.x, length: target.width, flip },
            _ => Axis { from: crop.y, size: crop.height, to: target.y, length: target.height, flip },
        }
    }

    /// The part of a row of this width and height that shows the image: left, top, right, bottom. Empty, with right ≤ left or bottom
    /// ≤ top, where the target lies beside the row.
    pub(super) fn visible(&self, [width, height]: [u32; 2]) -> [i64; 4] {
        let Target { x, y, width: w, height: h } = self.target;
        let (right, bottom) = (x + i64::from(w), y + i64::from(h));
        [x.max(0), y.max(0), right.min(width.into()), bottom.min(height.into())]
    }

    /// Turns the whole row of this width and height over, and the target with it.
    pub(super) fn flipped(mut self, flip: [bool; 2], [width, height]: [u32; 2]) -> Self {
        if flip[0] {
            self.target.x = i64::from(width) - self.target.x - i64::from(self.target.width);
        }
        if flip[1] {
            self.target.y = i64::from(height) - self.target.y - i64::from(self.target.height);
        }
        self.flip = flip;
        self
    }
}

fn sorted([a, b]: [f64; 2]) -> [f64; 2] {
    if b < a { [b, a] } else { [a, b] }
}

/// One axis of a geometry.
#[derive(Debug, Clone, Copy)]
pub(super) struct Axis {
    from: u32,
    size: u32,
    to: i64,
    length: u32,
    flip: bool,
}

impl Axis {
    fn forward(self, at: f64) -> f64 {
        let moved = (at - f64::from(self.from)) * f64::from(self.length) / f64::from(self.size);
        let moved = if self.flip { f64::from(self.length) - moved } else { moved };
        self.to as f64 + moved
    }

    fn invert(self, at: f64) -> f64 {
        let moved = at - self.to as f64;
        let moved = if self.flip { f64::from(self.length) - moved } else { moved };
        f64::from(self.from) + moved * f64::from(self.size) / f64::from(self.length)
    }

    /// The part of the image that lies in `low..high` of the row: its start and its length.
    pub(super) fn seen_in(self, low: i64, high: i64) -> [f64; 2] {
        let hidden = if self.flip { self.to + i64::from(self.length) - high } else { low - self.to };
        let scale = f64::from(self.size) / f64::from(self.length);
        if high - low == i64::from(self.length) {
            return [self.from.into(), self.size.into()];
        }
        [f64::from(self.from) + hidden as f64 * scale, (high - low) as f64 * scale]
    }
}

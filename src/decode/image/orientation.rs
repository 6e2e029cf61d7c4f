//! EXIF's eight orientations.

use super::codec::Rect;

/// What becomes of the EXIF orientation of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Orientation {
    /// It is ignored: the pixels come as they are stored, as from Pillow, OpenCV with `IMREAD_IGNORE_ORIENTATION` and torchvision.
    /// Boxes are taken to be those of the stored image.
    #[default]
    Stored,
    /// The image is turned as it says. Boxes are taken to be those of the turned image.
    Applied,
}

/// How the upright image comes from the stored one: pixel (x, y) is the stored pixel (x, y), or (y, x) where `swap`, whose x and y
/// count from the other end where `mirror`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Turn {
    pub(super) swap: bool,
    pub(super) mirror: [bool; 2],
}

impl Turn {
    /// Of an EXIF orientation, 1 to 8; any other number is none.
    pub(super) fn of(exif: u8) -> Self {
        let (swap, x, y) = match exif {
            2 => (false, true, false),
            3 => (false, true, true),
            4 => (false, false, true),
            5 => (true, false, false),
            6 => (true, false, true),
            7 => (true, true, true),
            8 => (true, true, false),
            _ => (false, false, false),
        };
        Self { swap, mirror: [x, y] }
    }

    pub(super) fn is_none(self) -> bool {
        self == Self::default()
    }

    /// Width and height of the upright image from those of the stored one, and the other way round.
    pub(super) fn size<T>(self, [a, b]: [T; 2]) -> [T; 2] {
        if self.swap { [b, a] } else { [a, b] }
    }

    /// A part of the upright image along both axes, start and length each, as a part of the stored one of this size.
    pub(super) fn part(self, [x, y]: [[f64; 2]; 2], stored: [u32; 2]) -> [[f64; 2]; 2] {
        let [mut x, mut y] = self.size([x, y]);
        if self.mirror[0] {
            x[0] = f64::from(stored[0]) - x[0] - x[1];
        }
        if self.mirror[1] {
            y[0] = f64::from(stored[1]) - y[0] - y[1];
        }
        [x, y]
    }

    /// A rectangle of the upright image in the stored one of this size.
    pub(super) fn rect(self, rect: Rect, stored: [u32; 2]) -> Rect {
        let along = |start: u32, length: u32| [f64::from(start), f64::from(length)];
        let part = [along(rect.x, rect.width), along(rect.y, rect.height)];
        let [x, y] = self.part(part, stored).map(|axis| axis.map(|v| v as u32));
        Rect { x: x[0], y: y[0], width: x[1], height: y[1] }
    }

    /// Writes the stored pixels, `N` bytes each, `stored` of them in rows without gaps, upright into `out`, whose rows are `stride`
    /// pixels apart.
    pub(super) fn write<const N: usize>(
        self,
        from: &[[u8; N]],
        stored: [usize; 2],
        out: &mut [[u8; N]],
        stride: usize,
    ) {
        let [width, height] = self.size(stored);
        for (y, line) in out.chunks_mut(stride.max(1)).take(height).enumerate() {
            for (x, to) in line.iter_mut().take(width).enumerate() {
                let [mut sx, mut sy] = self.size([x, y]);
                if self.mirror[0] {
                    sx = stored[0] - 1 - sx;
                }
                if self.mirror[1] {
                    sy = stored[1] - 1 - sy;
                }
                if let Some(pixel) = from.get(sy * stored[0] + sx) {
                    *to = *pixel;
                }
            }
        }
    }
}

//! A plain model of images.

/// An image as the tests see it: height, width, RGB.
#[derive(Clone)]
pub(crate) struct Pixels {
    pub(crate) width: usize,
    pub(crate) height: usize,
    pub(crate) rgb: Vec<u8>,
}

impl Pixels {
    /// A smooth and a rough part, other in each channel.
    pub(crate) fn new(width: usize, height: usize) -> Self {
        let mut rgb = Vec::new();
        for y in 0..height {
            for x in 0..width {
                let noise = (x * 7919 + y * 104_729 + x * y * 31) % 97;
                rgb.push((x * 255 / width.max(2)) as u8);
                rgb.push((y * 255 / height.max(2)) as u8);
                rgb.push((noise * 255 / 96) as u8);
            }
        }
        Self { width, height, rgb }
    }

    pub(crate) fn at(&self, x: usize, y: usize, channel: usize) -> u8 {
        self.rgb[(y * self.width + x) * 3 + channel]
    }

    pub(crate) fn bmp(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let (width, height) = (self.width as u32, self.height as u32);
        let mut encoder = image::codecs::bmp::BmpEncoder::new(&mut out);
        encoder.encode(&self.rgb, width, height, image::ExtendedColorType::Rgb8).unwrap();
        out
    }

    pub(crate) fn cut(&self, [x, y, width, height]: [usize; 4]) -> Self {
        let rgb = (y..y + height)
            .flat_map(|y| &self.rgb[(y * self.width + x) * 3..][..width * 3])
            .copied()
            .collect();
        Self { width, height, rgb }
    }

    /// Bilinear with antialiasing, in f64: a triangle as wide as the scale, cut at the edges.
    pub(crate) fn resized(&self, width: usize, height: usize) -> Self {
        let weights = |from: usize, to: usize| -> Vec<Vec<(usize, f64)>> {
            let scale = from as f64 / to as f64;
            let support = scale.max(1.0);
            (0..to)
                .map(|i| {
                    let centre = (i as f64 + 0.5) * scale;
                    let weight = |k: usize| (1.0 - ((k as f64 + 0.5 - centre) / support).abs()).max(0.0);
                    let sum: f64 = (0..from).map(weight).sum();
                    (0..from).map(|k| (k, weight(k) / sum)).filter(|w| w.1 > 0.0).collect()
                })
                .collect()
        };
        let (across, down) = (weights(self.width, width), weights(self.height, height));
        let mut rgb = Vec::new();
        for rows in &down {
            for columns in &across {
                for channel in 0..3 {
                    let sum: f64 = rows
                        .iter()
                        .flat_map(|&(y, v)| columns.iter().map(move |&(x, h)| (x, y, v * h)))
                        .map(|(x, y, w)| w * f64::from(self.at(x, y, channel)))
                        .sum();
                    rgb.push(sum.round() as u8);
                }
            }
        }
        Self { width, height, rgb }
    }

    pub(crate) fn flipped(&self) -> Self {
        let mut out = self.clone();
        for line in out.rgb.chunks_exact_mut(self.width * 3) {
            line.as_chunks_mut::<3>().0.reverse();
        }
        out
    }

    /// Laid on a canvas of `fill`.
    pub(crate) fn on(&self, width: usize, height: usize, fill: u8, [left, top]: [usize; 2]) -> Self {
        let mut rgb = vec![fill; width * height * 3];
        for y in 0..self.height {
            let to = ((y + top) * width + left) * 3;
            rgb[to..to + self.width * 3].copy_from_slice(&self.rgb[y * self.width * 3..][..self.width * 3]);
        }
        Self { width, height, rgb }
    }
}

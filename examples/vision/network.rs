//! Convolutional networks with their training step, in plain Rust: what a model on the device would be.
//!
//! Every sum is taken in a fixed order, whatever the number of threads: equal batches give equal weights, bit for bit.

use std::ops::Range;

use rayon::prelude::*;
use warpfeed::SampleRng;

/// Samples whose gradients one task sums up. Fixed, as the order of a sum must not depend on the threads.
const GROUP: usize = 4;
/// Adam's decay of the mean gradient and of its square, and what keeps it from dividing by 0 (Kingma and Ba, 2015).
const DECAY: [f32; 2] = [0.9, 0.999];
const TINY: f32 = 1e-8;

/// Height, width and channels: values lie row by row, the channels of a pixel side by side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) height: usize,
    pub(crate) width: usize,
    pub(crate) channels: usize,
}

impl Shape {
    pub(crate) fn pixels(self) -> usize {
        self.height * self.width
    }

    pub(crate) fn len(self) -> usize {
        self.pixels() * self.channels
    }
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Layer {
    /// `outputs` filters of `side` × `side` (1 or 3) pixels, with zeros around the image; negative results become 0
    /// where it is `rectified`. On a single pixel, with side 1, it is a dense layer.
    Convolution { side: usize, outputs: usize, rectified: bool },
    /// The largest of each 2 × 2 pixels.
    MaxPool,
    /// The mean over all pixels.
    Mean,
}

impl Layer {
    /// A rectified convolution of 3 × 3.
    pub(crate) fn filters(outputs: usize) -> Self {
        Self::Convolution { side: 3, outputs, rectified: true }
    }
}

/// A layer in its place; its weights are a range of the network's: `[side, side, channels, outputs]`, then a bias an output.
struct Stage {
    layer: Layer,
    input: Shape,
    output: Shape,
    weights: Range<usize>,
}

/// Layers one after the other, and the state of their training.
pub(crate) struct Network {
    stages: Vec<Stage>,
    weights: Vec<f32>,
    /// Adam's mean of the gradient, and of its square.
    moments: [Vec<f32>; 2],
    steps: i32,
}

impl Network {
    /// A network that knows nothing yet: uniform weights of variance 2 / inputs (He et al., 2015), biases 0.
    pub(crate) fn new(input: Shape, layers: &[Layer], seed: u64) -> Self {
        let mut rng = SampleRng::named(seed, "weights");
        let mut weights = Vec::new();
        let mut shape = input;
        let stages: Vec<_> = layers
            .iter()
            .map(|&layer| {
                let (input, start) = (shape, weights.len());
                match layer {
                    Layer::Convolution { side, outputs, .. } => {
                        let inputs = side * side * input.channels;
                        let bound = (6.0 / inputs as f32).sqrt();
                        weights.extend((0..inputs * outputs).map(|_| rng.uniform(-bound, bound)));
                        weights.resize(weights.len() + outputs, 0.0);
                        shape.channels = outputs;
                    }
                    Layer::MaxPool => (shape.height, shape.width) = (shape.height / 2, shape.width / 2),
                    Layer::Mean => (shape.height, shape.width) = (1, 1),
                }
                Stage { layer, input, output: shape, weights: start..weights.len() }
            })
            .collect();
        let zeros = vec![0.0; weights.len()];
        Self { stages, weights, moments: [zeros.clone(), zeros], steps: 0 }
    }

    pub(crate) fn input(&self) -> Shape {
        self.stages[0].input
    }

    pub(crate) fn output(&self) -> Shape {
        self.stages[self.stages.len() - 1].output
    }

    /// What the network makes of each of `images`, `[n, height, width, channels]`.
    pub(crate) fn infer(&self, images: &[u8]) -> Vec<Vec<f32>> {
        let of = |image: &[u8]| self.forward(image).pop().unwrap_or_default();
        images.par_chunks_exact(self.input().len()).map(of).collect()
    }

    /// One step of Adam on a batch: `images` is `[n, height, width, channels]`, and `loss(k, output, slope)` gives
    /// sample k's loss and writes its gradient by the outputs. Returns the mean loss.
    pub(crate) fn train(
        &mut self,
        images: &[u8],
        rate: f32,
        loss: impl Fn(usize, &[f32], &mut [f32]) -> f32 + Sync,
    ) -> f32 {
        let image = self.input().len();
        let groups = images.par_chunks(GROUP * image).enumerate().map(|(number, group)| {
            let mut gradient = vec![0.0; self.weights.len()];
            let mut sum = 0.0;
            for (k, image) in group.chunks_exact(image).enumerate() {
                let values = self.forward(image);
                let mut slope = vec![0.0; self.output().len()];
                sum += loss(number * GROUP + k, &values[values.len() - 1], &mut slope);
                self.backward(&values, slope, &mut gradient);
            }
            (sum, gradient)
        });
        let groups: Vec<_> = groups.collect();
        let share = image as f32 / images.len() as f32;
        let mut gradient = vec![0.0; self.weights.len()];
        for (_, part) in &groups {
            add(&mut gradient, part);
        }
        self.step(&gradient, share, rate);
        groups.iter().map(|(sum, _)| sum).sum::<f32>() * share
    }

    /// A hash (FNV-1a, 64 bits) of every bit of every weight.
    pub(crate) fn hash(&self) -> u64 {
        let bytes = self.weights.iter().flat_map(|w| w.to_le_bytes());
        bytes
            .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
    }

    /// The values between the layers: the image, in -1 to 1, then what each stage makes of those before it.
    fn forward(&self, image: &[u8]) -> Vec<Vec<f32>> {
        let mut values = vec![image.iter().map(|&p| f32::from(p) / 127.5 - 1.0).collect::<Vec<_>>()];
        for stage in &self.stages {
            let output = stage.forward(&values[values.len() - 1], &self.weights[stage.weights.clone()]);
            values.push(output);
        }
        values
    }

    /// Adds a sample's part to `gradient`; `slope` is that of the loss by the last values.
    fn backward(&self, values: &[Vec<f32>], mut slope: Vec<f32>, gradient: &mut [f32]) {
        for (k, stage) in self.stages.iter().enumerate().rev() {
            let range = stage.weights.clone();
            let (weights, gradient) = (&self.weights[range.clone()], &mut gradient[range]);
            slope = stage.backward([&values[k], &values[k + 1]], slope, weights, gradient, k > 0);
        }
    }

    fn step(&mut self, gradient: &[f32], share: f32, rate: f32) {
        self.steps += 1;
        let [fresh, fresh_square] = DECAY.map(|d| 1.0 - d.powi(self.steps));
        let [mean, square] = &mut self.moments;
        for (((w, m), s), g) in self.weights.iter_mut().zip(mean).zip(square).zip(gradient) {
            let g = g * share;
            *m = DECAY[0] * *m + (1.0 - DECAY[0]) * g;
            *s = DECAY[1] * *s + (1.0 - DECAY[1]) * g * g;
            *w -= rate * (*m / fresh) / ((*s / fresh_square).sqrt() + TINY);
        }
    }
}

impl Stage {
    fn forward(&self, input: &[f32], weights: &[f32]) -> Vec<f32> {
        let mut output = vec![0.0; self.output.len()];
        let channels = self.input.channels;
        match self.layer {
            Layer::Convolution { side, outputs, rectified } => {
                let inputs = side * side * channels;
                let (filters, biases) = weights.split_at(inputs * outputs);
                for pixel in output.chunks_exact_mut(outputs) {
                    pixel.copy_from_slice(biases);
                }
                let patches = self.patches(input, side);
                multiply(Matrix::of(&patches, inputs), Matrix::of(filters, outputs), &mut output);
                if rectified {
                    output.iter_mut().for_each(|x| *x = x.max(0.0));
                }
            }
            Layer::MaxPool => {
                output.fill(f32::MIN);
                self.pooled(|from, to| {
                    for (most, x) in output[to..to + channels].iter_mut().zip(&input[from..]) {
                        *most = most.max(*x);
                    }
                });
            }
            Layer::Mean => {
                input.chunks_exact(channels).for_each(|pixel| add(&mut output, pixel));
                output.iter_mut().for_each(|x| *x /= self.input.pixels() as f32);
            }
        }
        output
    }

    /// Adds to the gradient of the weights; returns that of the inputs if it is `needed`.
    fn backward(
        &self,
        [input, output]: [&[f32]; 2],
        mut slope: Vec<f32>,
        weights: &[f32],
        gradient: &mut [f32],
        needed: bool,
    ) -> Vec<f32> {
        let channels = self.input.channels;
        let mut behind = vec![0.0; self.input.len()];
        match self.layer {
            Layer::Convolution { side, outputs, rectified } => {
                let inputs = side * side * channels;
                if rectified {
                    slope.iter_mut().zip(output).filter(|(_, y)| **y <= 0.0).for_each(|(s, _)| *s = 0.0);
                }
                let patches = self.patches(input, side);
                let (filters, biases) = gradient.split_at_mut(inputs * outputs);
                let slopes = Matrix::of(&slope, outputs);
                multiply(Matrix::of(&patches, inputs).transposed(), slopes, filters);
                slope.chunks_exact(outputs).for_each(|pixel| add(biases, pixel));
                if needed {
                    let filters = Matrix::of(&weights[..inputs * outputs], outputs);
                    let mut patches = vec![0.0; self.input.pixels() * inputs];
                    multiply(slopes, filters.transposed(), &mut patches);
                    self.unpatch(&patches, side, &mut behind);
                }
            }
            Layer::MaxPool => self.pooled(|from, to| {
                for c in 0..channels {
                    // The first that is the largest has moved the output: its slope goes there alone.
                    if input[from + c] == output[to + c] {
                        behind[from + c] = std::mem::take(&mut slope[to + c]);
                    }
                }
            }),
            Layer::Mean => {
                let share = 1.0 / self.input.pixels() as f32;
                slope.iter_mut().for_each(|x| *x *= share);
                behind.chunks_exact_mut(channels).for_each(|pixel| pixel.copy_from_slice(&slope));
            }
        }
        behind
    }

    /// Calls `each` with the places of a pixel and of the pixel that it is pooled into, four to one.
    fn pooled(&self, mut each: impl FnMut(usize, usize)) {
        let (from, to) = (self.input, self.output);
        for (y, x) in (0..2 * to.height).flat_map(|y| (0..2 * to.width).map(move |x| (y, x))) {
            each((y * from.width + x) * from.channels, (y / 2 * to.width + x / 2) * to.channels);
        }
    }

    /// The `side` × `side` pixels around each pixel, `[pixels, side, side, channels]`.
    fn patches(&self, input: &[f32], side: usize) -> Vec<f32> {
        if side == 1 {
            return input.to_vec();
        }
        let Shape { height, width, channels } = self.input;
        let row = width * channels;
        let framed_row = (width + side - 1) * channels;
        let mut framed = vec![0.0; (height + side - 1) * framed_row];
        for (y, pixels) in input.chunks_exact(row).enumerate() {
            let at = (y + side / 2) * framed_row + side / 2 * channels;
            framed[at..at + row].copy_from_slice(pixels);
        }
        let run = side * channels;
        let mut patches = vec![0.0; self.input.pixels() * side * run];
        for (k, patch) in patches.chunks_exact_mut(run).enumerate() {
            let (pixel, dy) = (k / side, k % side);
            let at = (pixel / width + dy) * framed_row + pixel % width * channels;
            patch.copy_from_slice(&framed[at..at + run]);
        }
        patches
    }

    /// The reverse of [`Stage::patches`]: adds up what the patches say of the same pixel.
    fn unpatch(&self, patches: &[f32], side: usize, sums: &mut [f32]) {
        if side == 1 {
            return sums.copy_from_slice(patches);
        }
        let Shape { height, width, channels } = self.input;
        let row = width * channels;
        let framed_row = (width + side - 1) * channels;
        let mut framed = vec![0.0; (height + side - 1) * framed_row];
        let run = side * channels;
        for (k, patch) in patches.chunks_exact(run).enumerate() {
            let (pixel, dy) = (k / side, k % side);
            let at = (pixel / width + dy) * framed_row + pixel % width * channels;
            add(&mut framed[at..at + run], patch);
        }
        for (y, pixels) in sums.chunks_exact_mut(row).enumerate() {
            let at = (y + side / 2) * framed_row + side / 2 * channels;
            pixels.copy_from_slice(&framed[at..at + row]);
        }
    }
}

fn add(sum: &mut [f32], part: &[f32]) {
    sum.iter_mut().zip(part).for_each(|(s, p)| *s += p);
}

/// Values that lie row by row, seen as a matrix or as its transpose.
#[derive(Clone, Copy)]
struct Matrix<'a> {
    values: &'a [f32],
    size: [usize; 2],
    strides: [isize; 2],
}

impl<'a> Matrix<'a> {
    fn of(values: &'a [f32], columns: usize) -> Self {
        Self { values, size: [values.len() / columns, columns], strides: [columns as isize, 1] }
    }

    fn transposed(self) -> Self {
        let ([rows, columns], [down, right]) = (self.size, self.strides);
        Self { size: [columns, rows], strides: [right, down], ..self }
    }
}

/// `c += a · b`, on this thread alone.
fn multiply(a: Matrix<'_>, b: Matrix<'_>, c: &mut [f32]) {
    let ([m, k], [inner, n]) = (a.size, b.size);
    assert_eq!((k, m * n), (inner, c.len()), "sizes fit");
    let (a, [ra, ca], b, [rb, cb]) = (a.values.as_ptr(), a.strides, b.values.as_ptr(), b.strides);
    // SAFETY: `Matrix::of` and `transposed` keep sizes and strides within the values, `c` is m · n long (asserted), and
    // being borrowed for writing it overlaps neither.
    unsafe { matrixmultiply::sgemm(m, k, n, 1.0, a, ra, ca, b, rb, cb, 1.0, c.as_mut_ptr(), n as isize, 1) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INPUT: Shape = Shape { height: 6, width: 8, channels: 3 };

    fn image(k: u64) -> Vec<u8> {
        let mut rng = SampleRng::named(k, "image");
        (0..INPUT.len()).map(|_| rng.below(256) as u8).collect()
    }

    /// A quarter of the sum of the squared outputs, each weighted by its place.
    fn loss(output: &[f32], slope: &mut [f32]) -> f32 {
        let weight = |k: usize| 1.0 + (k % 5) as f32;
        slope.iter_mut().enumerate().for_each(|(k, s)| *s = 0.5 * weight(k) * output[k]);
        output.iter().enumerate().map(|(k, y)| 0.25 * weight(k) * y * y).sum()
    }

    /// The gradient by each weight against the loss a little to either side of it.
    fn check(layers: &[Layer]) {
        let mut network = Network::new(INPUT, layers, 5);
        // Biases of their own, away from the kink of a rectified unit that sees zeros.
        let mut rng = SampleRng::named(9, "biases");
        network.weights.iter_mut().filter(|w| **w == 0.0).for_each(|w| *w = rng.uniform(0.1, 0.4));
        let image = image(1);
        let values = network.forward(&image);
        let mut slope = vec![0.0; network.output().len()];
        loss(&values[values.len() - 1], &mut slope);
        let mut gradient = vec![0.0; network.weights.len()];
        network.backward(&values, slope.clone(), &mut gradient);

        let most = gradient.iter().fold(0.0, |most: f32, g| most.max(g.abs()));
        let mut off = 0;
        for (k, g) in gradient.iter().enumerate() {
            const H: f32 = 2e-3;
            let before = network.weights[k];
            let [up, down] = [H, -H].map(|h| {
                network.weights[k] = before + h;
                let output = network.forward(&image).pop().unwrap_or_default();
                f64::from(loss(&output, &mut slope.clone()))
            });
            network.weights[k] = before;
            let measured = (up - down) / f64::from(2.0 * H);
            off += usize::from((measured - f64::from(*g)).abs() > 0.02 * f64::from(most));
        }
        // A step over the kink of a unit or of a maximum shows as a difference: they are few.
        assert!(most > 0.1 && off * 50 <= gradient.len(), "{off} of {} differ; {most}", gradient.len());
    }

    #[test]
    fn gradients_are_those_of_the_loss() {
        let dense = |outputs| Layer::Convolution { side: 1, outputs, rectified: false };
        check(&[Layer::Convolution { side: 3, outputs: 4, rectified: false }]);
        check(&[Layer::filters(4), Layer::filters(3)]);
        check(&[Layer::filters(4), Layer::MaxPool, Layer::filters(5), dense(2)]);
        check(&[Layer::filters(4), Layer::MaxPool, Layer::filters(5), Layer::Mean, dense(3)]);
    }

    #[test]
    fn a_convolution_sees_the_neighbours() {
        let layer = Layer::Convolution { side: 3, outputs: 1, rectified: false };
        let mut network = Network::new(Shape { height: 3, width: 4, channels: 1 }, &[layer], 1);
        // The pixel to the left and above, and a bias.
        network.weights.fill(0.0);
        (network.weights[0], network.weights[9]) = (1.0, 0.25);
        let image = [255, 0, 255, 0, 0, 255, 0, 0, 0, 0, 0, 0];
        let expected = [0.25, 0.25, 0.25, 0.25, 0.25, 1.25, -0.75, 1.25, 0.25, -0.75, 1.25, -0.75];
        assert_eq!(network.infer(&image), [expected]);
    }

    #[test]
    fn one_thread_and_many_learn_the_same() {
        let layers = [Layer::filters(4), Layer::MaxPool, Layer::Mean];
        let images: Vec<u8> = (0..23).flat_map(image).collect();
        let learned = |threads: usize| {
            let mut network = Network::new(INPUT, &layers, 3);
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            let losses: Vec<_> =
                pool.install(|| (0..5).map(|_| network.train(&images, 0.01, |_, o, s| loss(o, s))).collect());
            (losses, network.hash())
        };
        let (losses, _) = learned(1);
        assert!(losses[4] < losses[0], "{losses:?}");
        assert_eq!(learned(1), learned(7));
    }
}

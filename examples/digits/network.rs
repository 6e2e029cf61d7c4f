//! A network of two layers with its training step, in plain Rust: what a model on the device would be.

use std::array;

use warpfeed::SampleRng;

use super::digit::{INK, PIXELS};

const HIDDEN: usize = 128;
const CLASSES: usize = 10;
const MOMENTUM: f32 = 0.9;

/// Pixels → [`HIDDEN`] rectified units → one score a class; cross-entropy; gradient descent with momentum.
pub(crate) struct Network {
    hidden: Layer<PIXELS, HIDDEN>,
    output: Layer<HIDDEN, CLASSES>,
    loss: f64,
    seen: usize,
}

impl Network {
    /// A network that knows nothing yet.
    pub(crate) fn new(seed: u64) -> Self {
        let mut rng = SampleRng::new(seed, 0, 0);
        Self { hidden: Layer::new(&mut rng), output: Layer::new(&mut rng), loss: 0.0, seen: 0 }
    }

    /// One step of gradient descent on a batch: `images` is `[n, 8, 8]`, ink from 0 to 16, `labels` is `[n]`.
    pub(crate) fn train(&mut self, images: &[u8], labels: &[u8], rate: f32) {
        for (image, &label) in images.chunks_exact(PIXELS).zip(labels) {
            let (input, hidden, scores) = self.forward(image);
            let chances = softmax(scores);
            self.loss -= f64::from(chances[usize::from(label)].max(f32::MIN_POSITIVE).ln());
            self.seen += 1;
            // The gradient of the cross-entropy by the scores.
            let slope: [f32; CLASSES] =
                array::from_fn(|k| chances[k] - if k == usize::from(label) { 1.0 } else { 0.0 });
            let behind = self.output.backward(&hidden, &slope);
            let slope = array::from_fn(|k| if hidden[k] > 0.0 { behind[k] } else { 0.0 });
            self.hidden.learn(&input, &slope);
        }
        let rate = rate / labels.len() as f32;
        self.hidden.step(rate);
        self.output.step(rate);
    }

    /// The digit that an image looks most like.
    pub(crate) fn classify(&self, image: &[u8]) -> u8 {
        let (_, _, scores) = self.forward(image);
        (0..CLASSES as u8)
            .max_by(|&a, &b| scores[usize::from(a)].total_cmp(&scores[usize::from(b)]))
            .unwrap_or(0)
    }

    /// The mean loss of the training steps since the last call.
    pub(crate) fn take_loss(&mut self) -> f64 {
        std::mem::take(&mut self.loss) / std::mem::take(&mut self.seen).max(1) as f64
    }

    /// A hash (FNV-1a, 64 bits) of every bit of every weight.
    pub(crate) fn hash(&self) -> u64 {
        let weights = self.hidden.weights().chain(self.output.weights());
        weights
            .flat_map(f32::to_le_bytes)
            .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
    }

    fn forward(&self, image: &[u8]) -> ([f32; PIXELS], [f32; HIDDEN], [f32; CLASSES]) {
        let input = array::from_fn(|p| f32::from(image[p]) / f32::from(INK));
        let hidden = self.hidden.forward(&input).map(|x| x.max(0.0));
        (input, hidden, self.output.forward(&hidden))
    }
}

fn softmax(scores: [f32; CLASSES]) -> [f32; CLASSES] {
    let top = scores.iter().copied().fold(f32::MIN, f32::max);
    let powers = scores.map(|s| (s - top).exp());
    let sum: f32 = powers.iter().sum();
    powers.map(|p| p / sum)
}

/// A dense layer of `I` inputs and `O` outputs; the last of its `I + 1` rows of weights is the bias.
struct Layer<const I: usize, const O: usize> {
    weights: Vec<[f32; O]>,
    gradient: Vec<[f32; O]>,
    velocity: Vec<[f32; O]>,
}

impl<const I: usize, const O: usize> Layer<I, O> {
    /// Uniform weights of variance 2 / `I` (He et al., 2015).
    fn new(rng: &mut SampleRng) -> Self {
        let bound = (6.0 / I as f32).sqrt();
        let mut weights: Vec<_> = (0..I).map(|_| array::from_fn(|_| rng.uniform(-bound, bound))).collect();
        weights.push([0.0; O]);
        let zeros = vec![[0.0; O]; I + 1];
        Self { weights, gradient: zeros.clone(), velocity: zeros }
    }

    fn forward(&self, input: &[f32; I]) -> [f32; O] {
        let mut output = self.weights[I];
        for (weights, &x) in self.weights.iter().zip(input) {
            add(&mut output, x, weights);
        }
        output
    }

    /// Adds a sample's part to the gradient of the weights.
    fn learn(&mut self, input: &[f32; I], slope: &[f32; O]) {
        for (gradient, &x) in self.gradient.iter_mut().zip(input.iter().chain(&[1.0])) {
            add(gradient, x, slope);
        }
    }

    /// As [`Layer::learn`]; returns the gradient by the inputs.
    fn backward(&mut self, input: &[f32; I], slope: &[f32; O]) -> [f32; I] {
        self.learn(input, slope);
        array::from_fn(|i| self.weights[i].iter().zip(slope).map(|(w, s)| w * s).sum())
    }

    fn step(&mut self, rate: f32) {
        let rows = self.weights.iter_mut().zip(&mut self.velocity).zip(&mut self.gradient);
        for ((weights, velocity), gradient) in rows {
            for k in 0..O {
                velocity[k] = MOMENTUM * velocity[k] - rate * gradient[k];
                weights[k] += velocity[k];
            }
            *gradient = [0.0; O];
        }
    }

    fn weights(&self) -> impl Iterator<Item = f32> {
        self.weights.iter().flatten().copied()
    }
}

/// `sum += x · row`. Most pixels are blank and many units silent: those are skipped.
fn add<const N: usize>(sum: &mut [f32; N], x: f32, row: &[f32; N]) {
    if x != 0.0 {
        for k in 0..N {
            sum[k] += x * row[k];
        }
    }
}

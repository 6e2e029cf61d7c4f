//! A detector's last layer: what it is trained towards, the boxes that it says, and how good they are.

/// Values of a box in the loader's field: class, then centre x, centre y, width and height as fractions of the image.
pub(crate) const VALUES: usize = 5;
/// Outputs of a cell before its class scores: objectness, centre x and y within the cell, width and height.
const HEAD: usize = 5;
/// A width or height that the network says by 0.
const USUAL: f32 = 0.3;

/// A box with a class, as it is or as it is thought to be.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Found {
    pub(crate) class: usize,
    /// How sure the network is, 0 to 1.
    pub(crate) score: f32,
    /// Left, top, right and bottom, as fractions of the image.
    pub(crate) corners: [f32; 4],
}

impl Found {
    /// A labelled box, from its [`VALUES`].
    pub(crate) fn labelled(values: &[f32]) -> Self {
        let [x, y, w, h] = [values[1], values[2], values[3], values[4]];
        let corners = [x - w / 2.0, y - h / 2.0, x + w / 2.0, y + h / 2.0];
        Self { class: values[0] as usize, score: 1.0, corners }
    }

    /// Whether the other is of the same class and overlaps by half.
    pub(crate) fn matches(&self, other: &Self) -> bool {
        self.class == other.class && overlap(self.corners, other.corners) >= 0.5
    }
}

/// Intersection over union of two boxes, 0 to 1.
pub(crate) fn overlap(a: [f32; 4], b: [f32; 4]) -> f32 {
    let area = |[left, top, right, bottom]: [f32; 4]| (right - left).max(0.0) * (bottom - top).max(0.0);
    let both = area([a[0].max(b[0]), a[1].max(b[1]), a[2].min(b[2]), a[3].min(b[3])]);
    if both > 0.0 { both / (area(a) + area(b) - both) } else { 0.0 }
}

/// A square grid of cells, each of which may say one box whose centre lies in it: `[grid, grid, 5 + classes]`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Head {
    pub(crate) grid: usize,
    pub(crate) classes: usize,
}

impl Head {
    pub(crate) fn outputs(self) -> usize {
        HEAD + self.classes
    }

    /// The loss of one image against its `labels` (of [`VALUES`] each), and its slope by the outputs: cross-entropy of
    /// objectness in every cell, and in a cell that holds a centre, squares for the box and cross-entropy for the class.
    pub(crate) fn loss(self, output: &[f32], labels: &[f32], slope: &mut [f32]) -> f32 {
        const WEIGHTS: [f32; 3] = [2.0, 1.0, 0.5]; // of the centre, the size, the class
        let mut held = vec![None; self.grid * self.grid];
        for label in labels.chunks_exact(VALUES) {
            let [x, y] = [label[1], label[2]].map(|c| c * self.grid as f32);
            let [column, row] = [x, y].map(|c| (c.max(0.0) as usize).min(self.grid - 1));
            held[row * self.grid + column] = Some((label, [x - column as f32, y - row as f32]));
        }
        let mut loss = 0.0;
        let cells = output.chunks_exact(self.outputs()).zip(slope.chunks_exact_mut(self.outputs()));
        for ((said, slope), held) in cells.zip(held) {
            let target = if held.is_some() { 1.0 } else { 0.0 };
            loss += said[0].max(0.0) - said[0] * target + (-said[0].abs()).exp().ln_1p();
            slope[0] = sigmoid(said[0]) - target;
            let Some((label, centre)) = held else { continue };
            for k in 0..2 {
                let place = sigmoid(said[1 + k]);
                let off = place - centre[k];
                loss += WEIGHTS[0] * off * off;
                slope[1 + k] = WEIGHTS[0] * 2.0 * off * place * (1.0 - place);
                let off = said[3 + k] - (label[3 + k].max(1e-3) / USUAL).ln();
                loss += WEIGHTS[1] * off * off;
                slope[3 + k] = WEIGHTS[1] * 2.0 * off;
            }
            let class = label[0] as usize;
            loss += WEIGHTS[2] * cross_entropy(&said[HEAD..], class, &mut slope[HEAD..]);
            slope[HEAD..].iter_mut().for_each(|s| *s *= WEIGHTS[2]);
        }
        loss
    }

    /// The boxes that the network says of one image, the surest first, without those that overlap a surer one of
    /// their class by half.
    pub(crate) fn found(self, output: &[f32]) -> Vec<Found> {
        const LEAST: f32 = 0.02;
        let cells = output.chunks_exact(self.outputs()).enumerate();
        let mut all: Vec<_> = cells
            .map(|(cell, said)| {
                let mut chances = said[HEAD..].to_vec();
                softmax(&mut chances);
                let class = largest(&chances);
                let [x, y] = [cell % self.grid, cell / self.grid].map(|c| c as f32);
                let place = |c: f32, said: f32| (c + sigmoid(said)) / self.grid as f32;
                let size = |said: f32| (USUAL * said.exp()).min(1.0);
                let values =
                    [class as f32, place(x, said[1]), place(y, said[2]), size(said[3]), size(said[4])];
                Found { score: sigmoid(said[0]) * chances[class], ..Found::labelled(&values) }
            })
            .filter(|d| d.score >= LEAST)
            .collect();
        all.sort_by(|a, b| b.score.total_cmp(&a.score));
        let mut kept: Vec<Found> = Vec::new();
        for one in all {
            if !kept.iter().any(|k| k.matches(&one)) {
                kept.push(one);
            }
        }
        kept
    }
}

/// What was said of images, against what is there.
#[derive(Debug, Clone, Default)]
pub(crate) struct Score {
    images: Vec<[Vec<Found>; 2]>,
}

impl Score {
    /// Boxes whose score is below this are not shown, and don't count for [`Score::mean_overlap`].
    pub(crate) const SHOWN: f32 = 0.3;

    /// Adds an image.
    pub(crate) fn mark(&mut self, said: Vec<Found>, truth: Vec<Found>) {
        self.images.push([said, truth]);
    }

    /// What the score of the same images were if one box were said of each, once for each class.
    pub(crate) fn of_fixed(&self, corners: [f32; 4], classes: usize) -> Self {
        let said: Vec<_> = (0..classes).map(|class| Found { class, score: 1.0, corners }).collect();
        Self { images: self.images.iter().map(|[_, truth]| [said.clone(), truth.clone()]).collect() }
    }

    /// Boxes that are there.
    pub(crate) fn boxes(&self) -> usize {
        self.images.iter().map(|[_, truth]| truth.len()).sum()
    }

    /// The overlap of each true box with the box shown that overlaps it most, whatever its class; their mean.
    pub(crate) fn mean_overlap(&self) -> f64 {
        let overlaps = self.images.iter().flat_map(|[said, truth]| {
            truth.iter().map(|t| {
                let shown = said.iter().filter(|d| d.score >= Self::SHOWN);
                f64::from(shown.map(|d| overlap(d.corners, t.corners)).fold(0.0, f32::max))
            })
        });
        overlaps.sum::<f64>() / self.boxes().max(1) as f64
    }

    /// The mean over classes of the average precision at an overlap of 0.5: the area under precision by recall, where
    /// precision is the best at that recall or a higher one.
    pub(crate) fn ap50(&self) -> f64 {
        let truths = || self.images.iter().flat_map(|[_, truth]| truth);
        let classes = truths().map(|t| t.class + 1).max().unwrap_or(0);
        let present = (0..classes).filter(|&class| truths().any(|t| t.class == class));
        let all: Vec<f64> = present.map(|class| self.average_precision(class)).collect();
        all.iter().sum::<f64>() / all.len().max(1) as f64
    }

    fn average_precision(&self, class: usize) -> f64 {
        let mut found = Vec::new(); // score, and whether it is right
        let mut total = 0;
        for [said, truth] in &self.images {
            let mut missing: Vec<_> = truth.iter().filter(|t| t.class == class).map(|t| t.corners).collect();
            total += missing.len();
            for one in said.iter().filter(|d| d.class == class) {
                let near = |t: &[f32; 4]| overlap(*t, one.corners);
                let best =
                    (0..missing.len()).max_by(|&a, &b| near(&missing[a]).total_cmp(&near(&missing[b])));
                let right = best.filter(|&k| near(&missing[k]) >= 0.5);
                found.push((one.score, right.map(|k| missing.swap_remove(k)).is_some()));
            }
        }
        found.sort_by(|a, b| b.0.total_cmp(&a.0));
        let mut right = 0.0;
        let mut precisions: Vec<(f64, bool)> = Vec::with_capacity(found.len());
        for (k, &(_, hit)) in found.iter().enumerate() {
            right += f64::from(u8::from(hit));
            precisions.push((right / (k + 1) as f64, hit));
        }
        let mut best = 0.0_f64;
        let area = precisions.iter().rev().map(|&(precision, hit)| {
            best = best.max(precision);
            if hit { best } else { 0.0 }
        });
        area.sum::<f64>() / f64::from(total.max(1) as u32)
    }
}

/// The one box that overlaps `boxes` most in the mean: of those around their middle of any size, by twentieths.
pub(crate) fn best_fixed(boxes: &[Found]) -> [f32; 4] {
    let middle = |k: usize| {
        let sum: f32 = boxes.iter().map(|b| (b.corners[k] + b.corners[k + 2]) / 2.0).sum();
        sum / boxes.len().max(1) as f32
    };
    let (x, y) = (middle(0), middle(1));
    let sizes = (1..=20).flat_map(|w| (1..=20).map(move |h| [w as f32 / 40.0, h as f32 / 40.0]));
    let candidates = sizes.map(|[w, h]| [x - w, y - h, x + w, y + h]);
    let fit = |corners: [f32; 4]| boxes.iter().map(|b| overlap(corners, b.corners)).sum::<f32>();
    candidates.max_by(|a, b| fit(*a).total_cmp(&fit(*b))).unwrap_or_default()
}

/// The cross-entropy of `scores` against `class`, and its slope by the scores.
pub(crate) fn cross_entropy(scores: &[f32], class: usize, slope: &mut [f32]) -> f32 {
    slope.copy_from_slice(scores);
    softmax(slope);
    let loss = -slope[class].max(f32::MIN_POSITIVE).ln();
    slope[class] -= 1.0;
    loss
}

/// Where the largest value is.
pub(crate) fn largest(values: &[f32]) -> usize {
    (0..values.len()).max_by(|&a, &b| values[a].total_cmp(&values[b])).unwrap_or(0)
}

pub(crate) fn softmax(scores: &mut [f32]) {
    let top = scores.iter().copied().fold(f32::MIN, f32::max);
    scores.iter_mut().for_each(|s| *s = (*s - top).exp());
    let sum: f32 = scores.iter().sum();
    scores.iter_mut().for_each(|s| *s /= sum);
}

fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

#[cfg(test)]
mod tests {
    use super::*;
    use warpfeed::SampleRng;

    const LABELS: [f32; 10] = [1.0, 0.3, 0.6, 0.2, 0.4, 2.0, 0.8, 0.1, 0.3, 0.15];

    fn found(class: usize, score: f32, corners: [f32; 4]) -> Found {
        Found { class, score, corners }
    }

    #[test]
    fn the_slope_is_that_of_the_loss() {
        let head = Head { grid: 3, classes: 3 };
        let mut rng = SampleRng::named(1, "outputs");
        let output: Vec<_> = (0..9 * head.outputs()).map(|_| rng.uniform(-2.0, 2.0)).collect();
        let mut slope = vec![0.0; output.len()];
        head.loss(&output, &LABELS, &mut slope);
        for (k, slope) in slope.iter().enumerate() {
            const H: f32 = 1e-2;
            let [up, down] = [H, -H].map(|h| {
                let mut moved = output.clone();
                moved[k] += h;
                head.loss(&moved, &LABELS, &mut vec![0.0; output.len()])
            });
            let measured = (up - down) / (2.0 * H);
            assert!((measured - slope).abs() < 2e-3 + 0.01 * slope.abs(), "{k}: {measured} {slope}");
        }
    }

    #[test]
    fn what_is_learned_is_what_is_said() {
        let head = Head { grid: 4, classes: 3 };
        let mut output = vec![0.0; 16 * head.outputs()];
        for _ in 0..4000 {
            let mut slope = vec![0.0; output.len()];
            head.loss(&output, &LABELS, &mut slope);
            output.iter_mut().zip(&slope).for_each(|(o, s)| *o -= 0.2 * s);
        }
        let mut score = Score::default();
        let truth: Vec<_> = LABELS.chunks_exact(VALUES).map(Found::labelled).collect();
        score.mark(head.found(&output), truth);
        assert_eq!(score.boxes(), 2);
        assert!(
            score.mean_overlap() > 0.95 && score.ap50() > 0.999,
            "{} {}",
            score.mean_overlap(),
            score.ap50()
        );
    }

    #[test]
    fn average_precision_is_the_area_under_the_curve() {
        let (here, there) = ([0.0, 0.0, 0.4, 0.4], [0.5, 0.5, 0.9, 0.9]);
        let mut score = Score::default();
        // Right, wrong, right: precision 1 up to recall 1/2, then 2/3 up to 1.
        score.mark(
            vec![found(0, 0.9, here), found(0, 0.8, here), found(0, 0.7, there)],
            vec![found(0, 1.0, here), found(0, 1.0, there)],
        );
        assert!((score.ap50() - (0.5 + 0.5 * 2.0 / 3.0)).abs() < 1e-9, "{}", score.ap50());
        // Another class, of which nothing is found; and what is said of an image without objects.
        score.mark(vec![found(0, 0.95, here)], vec![found(2, 1.0, there)]);
        // Now wrong, right, wrong, right: precision 1/2 at both.
        assert!((score.ap50() - 0.25).abs() < 1e-9, "{}", score.ap50());
    }

    #[test]
    fn overlaps() {
        assert_eq!(overlap([0.0, 0.0, 0.5, 1.0], [0.25, 0.0, 0.75, 1.0]), 1.0 / 3.0);
        assert_eq!(overlap([0.0, 0.0, 0.5, 0.5], [0.5, 0.5, 1.0, 1.0]), 0.0);
        let boxes = [[0.1, 0.3, 0.9, 0.7], [0.1, 0.3, 0.9, 0.7]].map(|c| found(0, 1.0, c));
        let best = best_fixed(&boxes);
        assert!(overlap(best, boxes[0].corners) > 0.99, "{best:?}");
    }
}

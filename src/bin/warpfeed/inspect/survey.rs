//! What the heads of a set's images say.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use warpfeed::Error;
use warpfeed::sampler::{Sampler, Shuffle};
use warpfeed::source::{Bundle, Source, Unit};

use super::spread::Spread;
use crate::images::{Check, Found, Look, error_json, line, place, sweep};

/// Of sets with more images, a part is looked at.
const ALL: u64 = 4000;
const PART: u64 = 2000;
/// An image that takes longer is left to itself.
const PATIENCE: Duration = Duration::from_secs(30);
/// So many bad samples are named.
const NAMED: usize = 5;

/// What one image's head says.
struct Seen {
    format: &'static str,
    misnamed: Option<String>,
    size: [u32; 2],
    turned: bool,
    bytes: u64,
    class: Option<i64>,
    boxes: Vec<u64>,
}

/// What was found in some or all images.
#[derive(Default)]
pub(super) struct Survey {
    samples: u64,
    looked: u64,
    formats: BTreeMap<&'static str, u64>,
    sizes: BTreeMap<[u32; 2], u64>,
    turned: u64,
    sides: Vec<u64>,
    bytes: Vec<u64>,
    /// Boxes of each image, and the square roots of their areas in pixels.
    boxes: Vec<u64>,
    box_sizes: Vec<u64>,
    /// Images of each class, where the images have classes.
    pub(super) classes: BTreeMap<i64, u64>,
    misnamed: u64,
    first_misnamed: Option<(u64, String)>,
    bad: BTreeMap<u64, Error>,
}

impl Survey {
    /// # Errors
    /// Where no thread can be started.
    pub(super) fn of(found: &Found) -> anyhow::Result<Self> {
        let samples = found.set.len().unwrap_or(0);
        let looked = if samples <= ALL { samples } else { PART };
        let order = Shuffle::new(samples, 0);
        let index_of = move |number| if looked == samples { number } else { order.index(0, number) };
        let set = found.set.clone();
        let check: Check<Bundle, Seen> = Arc::new(move |bundle, number| {
            let look = Look::at(&*set, index_of(number), bundle)?;
            Ok(Seen::of(&look))
        });
        let workers = std::thread::available_parallelism().map_or(1, usize::from);
        let mut survey = Self { samples, looked, ..Self::default() };
        sweep(
            looked,
            (workers, PATIENCE),
            check,
            |number, outcome| {
                let index = index_of(number);
                match outcome {
                    Ok(seen) => survey.add(index, seen),
                    Err(error) => _ = survey.bad.insert(index, error.at(place(&*found.set, index))),
                }
            },
            |_| true,
        )?;
        Ok(survey)
    }

    fn add(&mut self, index: u64, seen: Seen) {
        *self.formats.entry(seen.format).or_default() += 1;
        *self.sizes.entry(seen.size).or_default() += 1;
        self.turned += u64::from(seen.turned);
        self.sides.push(u64::from(seen.size[0].max(seen.size[1])));
        self.bytes.push(seen.bytes);
        self.boxes.push(seen.boxes.len() as u64);
        self.box_sizes.extend(seen.boxes);
        if let Some(class) = seen.class {
            *self.classes.entry(class).or_default() += 1;
        }
        if let Some(text) = seen.misnamed {
            self.misnamed += 1;
            if self.first_misnamed.as_ref().is_none_or(|(first, _)| index < *first) {
                self.first_misnamed = Some((index, text));
            }
        }
    }

    /// Says so where it is not all that was looked at.
    pub(super) fn part(&self) -> String {
        match self.looked == self.samples {
            true => String::new(),
            false => format!(" (of {} images that were drawn from {})", self.looked, self.samples),
        }
    }

    /// The sizes that most images have.
    fn usual(&self) -> Vec<([u32; 2], u64)> {
        let mut all: Vec<_> = self.sizes.iter().map(|(size, n)| (*size, *n)).collect();
        all.sort_by_key(|(_, n)| std::cmp::Reverse(*n));
        all.truncate(3);
        all
    }

    pub(super) fn json(&self) -> Value {
        let spread = |values: &[u64], base| Spread::of(values.to_vec(), base).map(|spread| spread.json());
        let usual = |(size, n): &([u32; 2], u64)| json!({ "width": size[0], "height": size[1], "count": n });
        let misnamed = self.first_misnamed.as_ref();
        json!({
            "samples": self.samples,
            "looked_at": self.looked,
            "bad": self.bad.len(),
            "first_bad": self.bad.values().take(NAMED).map(error_json).collect::<Vec<_>>(),
            "formats": self.formats,
            "misnamed": self.misnamed,
            "first_misnamed": misnamed.map(|(index, is)| json!({ "index": index, "is": is })),
            "turned_by_exif": self.turned,
            "usual_sizes": self.usual().iter().map(usual).collect::<Vec<_>>(),
            "longer_side": spread(&self.sides, 2),
            "file_bytes": spread(&self.bytes, 4),
            "boxes_per_image": spread(&self.boxes, 2),
            "box_size": spread(&self.box_sizes, 2),
        })
    }

    /// Ends with a newline.
    pub(super) fn text(&self, boxes: bool) -> String {
        let mut out = String::new();
        let part = self.part();
        let formats = self.formats.iter().map(|(name, n)| format!("{n} {name}")).collect::<Vec<_>>();
        let _ = writeln!(out, "\nformats by content{part}: {}", formats.join(", "));
        if let Some((index, is)) = &self.first_misnamed {
            let _ = writeln!(
                out,
                "  called otherwise: {}; the first, index {index}, is {}",
                self.misnamed,
                line(is)
            );
        }
        if self.turned > 0 {
            let _ = writeln!(out, "  turned by their EXIF orientation: {}", self.turned);
        }
        if !self.bad.is_empty() {
            let _ = writeln!(out, "\nbad by their heads alone{part}: {}", self.bad.len());
            for error in self.bad.values().take(NAMED) {
                let _ = writeln!(out, "  {:?}: {}", error.kind(), line(&error.to_string()));
            }
            let _ = writeln!(out, "  `warpfeed verify` decodes all images and names all that are bad");
        }
        if let Some(spread) = Spread::of(self.sides.clone(), 2) {
            let usual = self.usual().into_iter().map(|([w, h], n)| format!("{n} of {w} × {h}"));
            let [least, median, most] = [spread.least, spread.median, spread.most];
            let _ = writeln!(out, "\nlonger side in pixels{part}: {least} to {most}, median {median}");
            let _ = writeln!(
                out,
                "  different sizes: {}; most often {}",
                self.sizes.len(),
                usual.collect::<Vec<_>>().join(", ")
            );
            out += &spread.text(|v| v.to_string());
        }
        if let Some(spread) = Spread::of(self.bytes.clone(), 4) {
            let [least, median, most] = [spread.least, spread.median, spread.most].map(bytes);
            let _ = writeln!(out, "\nfile size{part}: {least} to {most}, median {median}");
            out += &spread.text(|v| if v % 2 == 1 { bytes(v + 1) } else { bytes(v) });
        }
        if boxes {
            if let Some(spread) = Spread::of(self.boxes.clone(), 2) {
                let _ = writeln!(out, "\nboxes of an image{part}:");
                out += &spread.text(|v| v.to_string());
            }
            if let Some(spread) = Spread::of(self.box_sizes.clone(), 2) {
                let _ =
                    writeln!(out, "\nbox size, the square root of the area in pixels of the image{part}:");
                out += &spread.text(|v| v.to_string());
            }
        }
        out
    }
}

impl Seen {
    fn of(look: &Look<'_>) -> Self {
        let head = &look.head;
        let [width, height] = match look.picture.unit {
            Unit::Fractions => [head.width as f32, head.height as f32],
            Unit::Pixels => [1.0; 2],
        };
        let size = |[left, top, right, bottom]: [f32; 4]| {
            ((right - left) * width * (bottom - top) * height).max(0.0).sqrt().round() as u64
        };
        Self {
            format: head.format.name(),
            misnamed: look.misnamed.map(|extension| format!("a {} called .{extension}", head.format.name())),
            size: [head.width, head.height],
            turned: head.orientation != 1,
            bytes: look.picture.bytes.len() as u64,
            class: look.picture.class,
            boxes: look.picture.boxes.iter().map(|label| size(label.corners)).collect(),
        }
    }
}

fn bytes(n: u64) -> String {
    match n {
        0..1024 => format!("{n} B"),
        1024..1_048_576 => format!("{:.0} KiB", n as f64 / 1024.0),
        _ => format!("{:.1} MiB", n as f64 / 1_048_576.0),
    }
}

//! Classes of cut-out objects: real photographs where they are installed, else shapes that are drawn.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use warpfeed::SampleRng;

use super::cutout::{Cutout, SHAPES};

/// Where Debian's package `tuxpaint-stamps-default` puts its stamps.
pub(crate) const STAMPS: &str = "/usr/share/tuxpaint/stamps";

/// The kinds of which the package has over a dozen photographs, and the folders that hold them.
const KINDS: [(&str, &[&str]); 6] = [
    ("birds", &["animals/birds"]),
    (
        "coins",
        &["symbols/money/canadian", "symbols/money/euro", "symbols/money/japanese", "symbols/money/us"],
    ),
    ("flowers", &["plants/flowers"]),
    ("fruit", &["food/fruit"]),
    ("mammals", &["animals/mammals", "animals/marsupials"]),
    ("vegetables", &["food/vegetables"]),
];
/// Folders among them that hold no photographs of it, and a drawing.
const LEFT_OUT: [&str; 5] = ["cartoon", "toys", "plastic", "00_symbols", "hedgehog.png"];

/// Objects of one kind.
#[derive(Debug, Clone)]
pub(crate) struct Class {
    pub(crate) name: String,
    pub(crate) objects: Vec<Cutout>,
}

/// What the examples train on unless `--data` says otherwise.
pub(crate) struct Objects {
    pub(crate) classes: Vec<Class>,
    /// Whether they are drawn.
    pub(crate) made: bool,
}

impl Objects {
    /// The photographs under `stamps`, or `each` drawings a class where there is no such folder.
    pub(crate) fn find(stamps: &Path, each: usize, seed: u64) -> Result<Self> {
        if stamps.is_dir() {
            let classes = KINDS.iter().map(|&(name, folders)| Class::photographed(name, stamps, folders));
            Ok(Self { classes: classes.collect::<Result<_>>()?, made: false })
        } else {
            let classes = (0..SHAPES.len()).map(|shape| Class::drawn(shape, each, seed));
            Ok(Self { classes: classes.collect(), made: true })
        }
    }

    pub(crate) fn names(&self) -> Vec<String> {
        self.classes.iter().map(|c| c.name.clone()).collect()
    }

    /// Two disjoint parts: the first holds `fraction` of each class's objects, drawn by `seed`.
    pub(crate) fn split(self, fraction: f64, seed: u64) -> [Vec<Class>; 2] {
        let mut rng = SampleRng::named(seed, "split");
        let halves = self.classes.into_iter().map(|Class { name, mut objects }| {
            for k in (1..objects.len()).rev() {
                objects.swap(k, rng.below(k as u64 + 1) as usize);
            }
            let rest = objects.split_off((objects.len() as f64 * fraction).round() as usize);
            (Class { name: name.clone(), objects }, Class { name, objects: rest })
        });
        let (first, second) = halves.unzip();
        [first, second]
    }

    /// What there is, in words.
    pub(crate) fn told(&self) -> String {
        let counts: Vec<_> = self.classes.iter().map(|c| format!("{} {}", c.objects.len(), c.name)).collect();
        let counts = counts.join(", ");
        if self.made {
            format!(
                "no photographs at hand (`apt-get install tuxpaint-stamps-default` brings some): drawn, {counts}"
            )
        } else {
            format!("photographs of tuxpaint-stamps-default: {counts}")
        }
    }
}

impl Class {
    fn photographed(name: &str, stamps: &Path, folders: &[&str]) -> Result<Self> {
        let mut files = Vec::new();
        for folder in folders {
            find_photographs(&stamps.join(folder), &mut files)?;
        }
        files.sort();
        let objects = files.iter().map(|file| Cutout::read(file)).collect::<Result<_>>()?;
        Ok(Self { name: name.into(), objects })
    }

    fn drawn(shape: usize, each: usize, seed: u64) -> Self {
        let name = SHAPES[shape];
        let mut rng = SampleRng::named(seed, name);
        Self { name: name.into(), objects: (0..each).map(|_| Cutout::drawn(shape, &mut rng)).collect() }
    }
}

/// The PNG files in a folder and in those below it; a stamp is drawn as SVG, or left out by its name.
fn find_photographs(folder: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    for entry in std::fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        if LEFT_OUT.iter().any(|name| path.ends_with(name)) {
        } else if path.is_dir() {
            find_photographs(&path, files)?;
        } else if path.extension().is_some_and(|e| e == "png") {
            files.push(path);
        }
    }
    Ok(())
}

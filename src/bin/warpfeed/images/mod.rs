//! Sets of images: what a path is, and how a network sees its samples.

mod found;
mod look;
mod splits;
mod sweep;

use clap::ValueEnum;
pub(crate) use found::{Found, FoundAll, error_json, path_json};
pub(crate) use look::{Look, place};
pub(crate) use sweep::{Check, sweep};
use warpfeed::decode::Image;
use warpfeed::source::Labels;

/// `text` for a terminal: control characters, those in names of files and classes, are escaped.
pub(crate) fn line(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() { out.extend(c.escape_default()) } else { out.push(c) }
    }
    out
}

/// As [`line`], of a text of several lines.
pub(crate) fn lines(text: &str) -> String {
    text.split('\n').map(line).collect::<Vec<_>>().join("\n")
}

/// `1 image`, `2 images`.
pub(crate) fn counted(n: u64, noun: &str) -> String {
    format!("{n} {noun}{}", if n == 1 { "" } else { "s" })
}

/// How samples become rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Recipe {
    /// A random resized crop of 224 × 224 and a flip, as for training on ImageNet
    Imagenet,
    /// A letterbox of 640 × 640 with its boxes, as YOLO has it
    Yolo,
}

impl Recipe {
    /// What is usual for samples with such labels.
    pub(crate) fn of(labels: Labels) -> Self {
        match labels {
            Labels::Boxes { .. } => Self::Yolo,
            _ => Self::Imagenet,
        }
    }

    pub(crate) fn decoder(self) -> Image {
        match self {
            Self::Imagenet => Image::rgb8(224, 224).random_resized_crop(Image::SCALE, Image::RATIO).flip(0.5),
            Self::Yolo => Image::rgb8(640, 640).letterbox(),
        }
    }

    /// Samples of a batch.
    pub(crate) fn batch_size(self) -> u64 {
        match self {
            Self::Imagenet => 256,
            Self::Yolo => 16,
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Imagenet => "imagenet",
            Self::Yolo => "yolo",
        }
    }
}

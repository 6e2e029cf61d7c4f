//! What must hold of the parsers whatever they are given: called by fuzz targets and by the tests.

#![cfg_attr(not(fuzzing), allow(unreachable_pub, reason = "public for fuzz targets alone"))]

use super::{coco, data_yaml, yolo};
use crate::source::LabelBox;

fn is_sound(b: &LabelBox, within: f32) -> bool {
    let [left, top, right, bottom] = b.corners;
    b.corners.iter().all(|x| (0.0..=within).contains(x)) && right > left && bottom > top
}

/// A label file. The first byte chooses the rules.
pub fn yolo(bytes: &[u8]) {
    let (&choice, text) = bytes.split_first().unwrap_or((&0, &[]));
    let rules = yolo::Rules {
        classes: (choice & 1 == 1).then_some(u32::from(choice >> 2)),
        keypoints: if choice & 2 == 2 { usize::from(choice >> 2) } else { 0 },
    };
    let labels = yolo::parse(text, &rules);
    assert!(labels.boxes.iter().all(|b| is_sound(b, 1.0)), "{:?}", labels.boxes);
    assert!(labels.boxes.iter().all(|b| rules.classes.is_none_or(|n| b.class < n)));
    assert_eq!(labels.rows, labels.boxes.len() as u64 + labels.counts.dropped(), "every row is counted");
    assert_eq!(labels.bad.len() as u64, labels.counts.bad_rows.min(yolo::KEPT as u64));
}

/// A file of annotations.
pub fn coco(bytes: &[u8]) {
    let Ok(coco) = coco::parse(bytes, false) else { return };
    let images = coco.names.len();
    assert_eq!((coco.firsts.len(), coco.labelled.len()), (images + 1, images));
    assert!(coco.firsts.is_sorted() && coco.firsts.last() == Some(&(coco.boxes.len() as u64)));
    assert!(coco.boxes.iter().all(|b| is_sound(b, f32::MAX)), "{:?}", coco.boxes);
    assert!(coco.boxes.iter().all(|b| (b.class as usize) < coco.category_ids.len()));
    assert!(coco.bad_images.iter().all(|(image, _)| *image < images));
}

/// A `data.yaml`.
pub fn data_yaml(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Ok(data) = data_yaml::parse(text) {
        assert!(data.names.is_empty() || data.classes == u32::try_from(data.names.len()).ok());
    }
}

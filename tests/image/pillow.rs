//! Each fit against Pillow and torchvision: `tests/data/pillow.py` made the expected rows.

use std::path::Path;

use serde_json::Value;
use warpfeed::decode::Image;
use warpfeed::source;

use super::{MINUTE, Pixels, deliver};
use crate::support::within;

fn file(name: &Value) -> Vec<u8> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/pillow");
    std::fs::read(folder.join(name.as_str().unwrap())).unwrap()
}

fn pixels(name: &Value) -> Pixels {
    let mut reader = png::Decoder::new(std::io::Cursor::new(file(name))).read_info().unwrap();
    let mut rgb = vec![0; reader.output_buffer_size().unwrap()];
    let info = reader.next_frame(&mut rgb).unwrap();
    assert_eq!((info.color_type, info.bit_depth), (png::ColorType::Rgb, png::BitDepth::Eight));
    Pixels { width: info.width as usize, height: info.height as usize, rgb }
}

fn number(case: &Value, name: &str) -> usize {
    case[name].as_u64().unwrap() as usize
}

#[test]
fn rows_are_within_2_of_pillow_and_within_a_fifth_in_the_mean() {
    within(MINUTE, || {
        let text = include_str!("../data/pillow/cases.json");
        let all: Value = serde_json::from_str(text).unwrap();
        let mut differences = std::collections::BTreeMap::<&str, Vec<u8>>::new();
        let mut drawn = Vec::new();
        for case in all["cases"].as_array().unwrap() {
            let (input, expected) = (file(&case["input"]), pixels(&case["expected"]));
            let image = Image::rgb8(expected.height, expected.width);
            let (kind, mut copies) = (case["kind"].as_str().unwrap(), 1);
            let image = match kind {
                "stretch" => image.stretch(),
                "letterbox" => image.letterbox(),
                "resize_then_center_crop" => image.resize_then_center_crop(number(case, "short") as u32),
                "random_resized_crop" => {
                    copies = number(case, "index") + 1;
                    image.random_resized_crop(Image::SCALE, Image::RATIO)
                }
                other => panic!("{other}"),
            };
            let rows = deliver(source::from_vec(vec![input; copies]), image, 0);
            let row = rows.last().unwrap();
            if kind == "random_resized_crop" {
                // The draws are pinned: another crop would change every user's augmentation.
                let crop: Vec<u64> = row.geometry[2..6].iter().map(|&v| v as u64).collect();
                let expected: Vec<u64> =
                    case["crop"].as_array().unwrap().iter().map(|v| v.as_u64().unwrap()).collect();
                drawn.push(crop.clone());
                assert_eq!(crop, expected, "drawn so far, for pillow.py: {drawn:?}");
            }
            assert_eq!(row.image.len(), expected.rgb.len());
            let of_case: Vec<u8> = row.image.iter().zip(&expected.rgb).map(|(a, b)| a.abs_diff(*b)).collect();
            let worst = of_case.iter().max().unwrap();
            assert!(*worst <= 2, "{case} differs by {worst}");
            differences.entry(kind).or_default().extend(of_case);
        }
        let kinds: Vec<&str> = differences.keys().copied().collect();
        assert_eq!(kinds, ["letterbox", "random_resized_crop", "resize_then_center_crop", "stretch"]);
        for (kind, all) in differences {
            let mean = all.iter().map(|&v| f64::from(v)).sum::<f64>() / all.len() as f64;
            println!("{kind}: at most {}, {mean:.4} in the mean", all.iter().max().unwrap());
            assert!(mean < 0.2, "{kind}: {mean} in the mean");
        }
    });
}

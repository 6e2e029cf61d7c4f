use std::path::{Path, PathBuf};

use proptest::prelude::*;

use super::yolo::Rules;
use super::*;
use crate::source::contract::holds_contract;

fn parse(text: &str, rules: Rules) -> yolo::Labels {
    yolo::parse(text.as_bytes(), &rules)
}

/// The rows of a text of which each has to be right, as class, center and size.
fn rows(text: &str) -> Vec<(u32, [f32; 4])> {
    let labels = parse(text, Rules::default());
    assert_eq!(labels.bad, [], "{text:?}");
    let centered = |b: &LabelBox| {
        let [l, t, r, b_] = b.corners;
        let close = |x: f32| (x * 1e5).round() / 1e5;
        (b.class, [(l + r) / 2.0, (t + b_) / 2.0, r - l, b_ - t].map(close))
    };
    labels.boxes.iter().map(centered).collect()
}

/// What is said about the one row of a text.
fn refused(text: &str, rules: Rules) -> String {
    let labels = parse(text, rules);
    assert_eq!((labels.boxes.len(), labels.rows, labels.counts.bad_rows), (0, 1, 1), "{text:?}");
    assert_eq!(labels.bad.len(), 1);
    labels.bad.into_iter().next().unwrap().text
}

#[test]
fn rows_are_read_however_they_are_set() {
    let one = (3, [0.5, 0.25, 0.2, 0.4]);
    for text in [
        "3 0.5 0.25 0.2 0.4",
        "  3\t0.5\t0.25 \t 0.2 0.4\t\r\n",
        "3.0 .5 2.5e-1 +0.2 4E-1\n",
        "3,0.5,0.25,0.2,0.4",
        "3 ,0.5 , 0.25,\t0.2 , 0.4 ",
        "\r\r\n3 0.5 0.25 0.2 0.4\r",
        "3 0.4 0.05 0.6 0.05 0.6 0.45 0.4 0.45", // a polygon
    ] {
        assert_eq!(rows(text), [one], "{text:?}");
    }
    assert_eq!(
        rows("0 0.5 0.5 0.2 0.4\r1 0.5 0.5 0.2 0.4\r2 0.5 0.5 0.2 0.4").len(),
        3,
        "lone \\r end lines"
    );
    let last = [0.5, 0.25, 0.2, 0.4];
    assert_eq!(rows("4294967295 0.5 0.25 0.2 0.4\n-0 0.5 0.25 0.2 0.4"), [(u32::MAX, last), (0, last)]);
}

#[test]
fn what_a_row_may_not_be() {
    let plain = Rules::default();
    for (text, says) in [
        ("1", "this one 1"),
        ("1 0.5 0.5 0.2", "this one 4"),
        ("1 0.5 0.5 0.2 0.4 0.9", "this one 6"),
        ("1 0.1 0.1 0.2 0.2 0.3 0.1 0.4", "this one 8"),
        ("1 0.5 0.5 0.2 x", "\"x\" is not a number"),
        ("1 0.5 0.5 0.2 0.4 # big", "\"#\" is not a number"),
        ("1 0.5 0.5 0.2 -nan", "\"-nan\" is not a"),
        ("1 0.5 0.5 0.2 infinity", "not a finite number"),
        ("nan 0.5 0.5 0.2 0.4", "not a whole number"),
        ("inf 0.5 0.5 0.2 0.4", "not a whole number"),
        ("-1 0.5 0.5 0.2 0.4", "negative"),
        ("4294967296 0.5 0.5 0.2 0.4", "too large"),
        ("0x1 0.5 0.5 0.2 0.4", "\"0x1\", not a number"),
        ("1 1.002 0.5 0.2 0.4", "center's x is 1.002: not a fraction"),
        ("1 0.5 -0.002 0.2 0.4", "center's y is -0.002"),
        ("1 0.5 0.5 1.002 0.4", "width is 1.002"),
        ("1 0.5 0.5 0.2 -0.0005", "height is -0.0005: negative"),
        ("1 0.5 240 0.2 0.4", "(pixels?)"),
        ("1 0.1 0.1 0.2 0.2 0.3 1.5", "y of a point of the polygon is 1.5"),
        // Commas for points, a value left out.
        ("1 0,5 0,5 0,2 0,4", "separated by commas and some by spaces"),
        ("1,0.5,,0.2,0.4", "missing before a comma"),
        (",1,0.5,0.5,0.2,0.4", "missing before a comma"),
        ("1,0.5,0.5,0.2,0.4,", "missing behind the last comma"),
        ("1;0.5;0.5;0.2;0.4", "not a number"),
        (",", "missing"),
    ] {
        let text_of = refused(text, plain);
        assert!(text_of.contains(says), "{text:?}: {text_of}");
    }
    let eighty = Rules { classes: Some(80), ..plain };
    assert_eq!(refused("80 .5 .5 .2 .4", eighty), "class 80, but there are 80 classes, 0 to 79");
    assert_eq!(
        refused("0 .5 .5 .2 .4", Rules { classes: Some(0), ..plain }),
        "class 0, but there are no classes"
    );
    let long = refused(&format!("{} .5 .5 .2 .4", "é".repeat(1000)), plain);
    assert_eq!(long, format!("the class is \"{}\"…, not a number", "é".repeat(32)));
    let wide = "0 .5 .5 .2 .4\n".encode_utf16().flat_map(u16::to_le_bytes);
    let wide: Vec<u8> = [0xff, 0xfe].into_iter().chain(wide).collect();
    let labels = yolo::parse(&wide, &plain);
    assert!(labels.boxes.is_empty() && labels.bad[0].text.contains("UTF-16"), "{:?}", labels.bad);
    assert_eq!((labels.rows, labels.counts.bad_rows), (1, 1), "no empty file");
}

#[test]
fn keypoints_follow_a_box_and_are_no_polygon() {
    let pose = Rules { classes: None, keypoints: 6 };
    let labels = parse("2 0.5 0.5 0.2 0.4 0.1 0.1 2 9.9 0 0\n", pose);
    assert_eq!((labels.boxes[0].class, labels.counts.polygons, labels.bad.len()), (2, 0, 0));
    assert!((labels.boxes[0].corners[0] - 0.4).abs() < 1e-6);
    assert!(refused("2 0.5 0.5 0.2 0.4", pose).contains("11 (class, box and keypoints) columns, this one 5"));
    assert!(refused("2 0.5 0.5 0.2 0.4 0 0 0 0 0 0 0", pose).contains("this one 12"));
}

#[test]
fn bad_rows_keep_their_lines_and_ten_their_text() {
    let labels = parse("\n0 .5 .5 .2 .4\r\n\r\nx\r0 .5 .5 .2 .4\n\ny", Rules::default());
    assert_eq!(labels.bad.iter().map(|bad| bad.line).collect::<Vec<_>>(), [Some(4), Some(7)]);
    let labels = parse(&"x\n".repeat(25), Rules::default());
    assert_eq!((labels.counts.bad_rows, labels.bad.len(), labels.bad[9].line), (25, 10, Some(10)));
}

#[test]
fn the_last_folder_images_is_labels() {
    for (images, labels) in [
        ("/d/images", Some(("/d/labels", "/d/labels"))),
        ("/d/images/train/x", Some(("/d/labels", "/d/labels/train/x"))),
        ("/images/d/images/train", Some(("/images/d/labels", "/images/d/labels/train"))),
        ("images/train", Some(("labels", "labels/train"))),
        ("/d/my_images/train", None),
        ("/d/imagesets/images.old", None),
        ("/", None),
    ] {
        let found = listing::labels_of(Path::new(images));
        assert_eq!(found, labels.map(|(top, all)| (PathBuf::from(top), PathBuf::from(all))), "{images}");
    }
}

#[test]
fn a_data_yaml_is_read_as_tools_write_it() {
    let coco8 = "# COCO8\n---\npath: ../datasets/coco8 # root\ntrain: images/train\nval: images/val\ntest: # none\n\n\
        names:\n  0: person\n  1: 'no'\n  2: no\n  3: 4\ndownload: https://example.org/coco8.zip\n";
    let data = data_yaml::parse(coco8).unwrap();
    assert_eq!((data.path.as_deref(), data.classes), (Some("../datasets/coco8"), Some(4)));
    assert_eq!(data.names, ["person", "no", "no", "4"]);
    let splits = [("train", vec!["images/train".to_string()]), ("val", vec!["images/val".to_string()])];
    assert_eq!(data.splits, splits);
    let roboflow = "\u{feff}train: ../train/images\nvalidation: [a, b]\nnc: 2\nnames: ['a', \"b\"]\nkpt_shape: [17, 3]\n";
    let data = data_yaml::parse(roboflow).unwrap();
    assert_eq!((data.splits[1].0, data.splits[1].1.join(" ")), ("val", "a b".to_string()));
    assert_eq!((data.classes, data.keypoints), (Some(2), 51));
    assert_eq!(data_yaml::parse("nc: 80\n").unwrap().classes, Some(80));
}

#[test]
fn what_a_data_yaml_may_not_be() {
    let bomb = (0..40).fold("a0: &a0 [x, x]\n".to_string(), |text, i| {
        format!("{text}a{n}: &a{n} [*a{i}, *a{i}]\n", n = i + 1)
    });
    let (flow, block) = ("[".repeat(50_000), format!("names: {}x", "\n".to_string() + &"- ".repeat(50_000)));
    for (text, line, says) in [
        ("", None, "no mapping"),
        ("- a\n- b\n", None, "no mapping"),
        ("path: a\ntrain: b: c\n", Some(2), "no YAML"),
        ("names: [a, b\n", Some(2), "no YAML"),
        ("nc: 1\nnc: 2\n", Some(2), "no YAML"),
        ("path: [a]\n", None, "`path` is no path"),
        ("train: {a: b}\n", None, "`train` is neither"),
        ("train: [a, [b]]\n", None, "`train` is neither"),
        ("nc: many\n", None, "`nc` is no number"),
        ("nc: -1\n", None, "`nc` is no number"),
        ("nc: 2\nnames: [a]\n", None, "`nc` is 2, but there are 1 `names`"),
        ("names: cat\n", None, "`names` is neither"),
        ("names: [a, [b]]\n", None, "entry 1 is no name"),
        ("names: {0: a, 2: b}\n", None, "2 entries but the class 2"),
        ("names: {0: a, '0': b}\n", None, "class 0 twice"),
        ("names: {a: b}\n", None, "a key is no class number"),
        ("names: {0: [a]}\n", None, "the name of class 0 is none"),
        ("kpt_shape: [17]\n", None, "`kpt_shape`"),
        ("kpt_shape: [9223372036854775807, 3]\n", None, "`kpt_shape`"),
        (&bomb, None, ""),
        (&flow, None, ""),
        (&block, None, ""),
    ] {
        let (found, text_of) = data_yaml::parse(text).unwrap_err();
        assert!(text_of.contains(says), "{text:.60}: {text_of}");
        assert!(line.is_none() || found == line, "{text:.60}: line {found:?}, {text_of}");
    }
}

#[test]
fn a_set_keeps_the_contract_of_sources() {
    let dir = tempfile::tempdir().unwrap();
    let names: Vec<String> = (0..9).map(|i| format!("{i}.{}", ["jpg", "PNG", "webp"][i % 3])).collect();
    let mut expected = Vec::new();
    for (i, name) in names.iter().enumerate() {
        let bytes = name.repeat(i * 100);
        std::fs::write(dir.path().join(name), &bytes).unwrap();
        let row = |k: usize| format!("{k} 0.5 0.5 0.5 0.5\n");
        std::fs::write(dir.path().join(format!("{i}.txt")), (0..i % 4).map(row).collect::<String>()).unwrap();
        let mut bundle = Bundle::default();
        bundle.restart(name);
        bundle.add(name.split_once('.').unwrap().1, bytes.len()).copy_from_slice(bytes.as_bytes());
        let one = |class| LabelBox { class, corners: [0.25, 0.25, 0.75, 0.75] };
        bundle.set_boxes(&(0..i as u32 % 4).map(one).collect::<Vec<_>>(), Unit::Fractions, None);
        expected.push(bundle);
    }
    let set = Detection::yolo(dir.path()).unwrap();
    holds_contract(&set, &expected.iter().collect::<Vec<_>>());
    assert_eq!(set.labels(), Labels::Boxes { most: 3 });
    let mut scratch = Bundle::default();
    let picture = set.picture(set.read(4, &mut scratch).unwrap()).unwrap();
    assert_eq!((picture.bytes, picture.boxes.len()), (names[4].repeat(400).as_bytes(), 0));
}

/// Text that looks like rows, with what breaks parsers in it.
fn odd_rows() -> impl Strategy<Value = String> {
    let field = prop_oneof![
        6 => (0u32..90).prop_map(|n| n.to_string()),
        12 => (0u32..1050).prop_map(|n| format!("0.{n:03}")),
        3 => proptest::sample::select(vec![
            "nan", "inf", "-inf", "1e400", "-1e400", "1e-400", "1.0005", "-0.0005", "-0", "1", "x", "", ",", "1e38", "\u{feff}", "é",
        ])
        .prop_map(str::to_string),
    ];
    let row =
        (proptest::collection::vec(field, 0..12), proptest::sample::select(vec![" ", "\t", ",", ", ", "  "]));
    let row = row.prop_map(|(fields, separator)| fields.join(separator));
    (proptest::collection::vec(row, 0..8), proptest::sample::select(vec!["\n", "\r\n", "\r", "\n\n"]))
        .prop_map(|(rows, end)| rows.join(end))
}

/// Changes of some bytes of a text.
fn mutated(text: &'static str) -> impl Strategy<Value = Vec<u8>> {
    let change = (0..text.len(), 0u8..4, any::<u8>());
    proptest::collection::vec(change, 1..6).prop_map(move |changes| {
        let mut bytes = text.as_bytes().to_vec();
        for (at, how, byte) in changes {
            let at = at.min(bytes.len());
            match how {
                0 => bytes.insert(at, byte),
                1 if at < bytes.len() => bytes[at] = byte,
                2 if at < bytes.len() => drop(bytes.remove(at)),
                _ => bytes.truncate(at + usize::from(byte)),
            }
        }
        bytes
    })
}

const YOLO: &str =
    "\u{feff}3 0.5 0.5 0.2 0.4\r\n1 0.2 0.2 0.6 0.2 0.4 0.8\n\n4.0,0.25,0.75,0.1,0.2\n0 1 1 .2 .4\n";
const COCO: &str = r#"{"images":[{"id":1,"file_name":"a.jpg","width":64,"height":32},{"id":2,"file_name":"b.jpg"}],
"annotations":[{"id":1,"image_id":1,"category_id":5,"bbox":[-5,-5,20.5,20],"segmentation":[[1,2,3]],"iscrowd":0},
{"id":2,"image_id":2,"category_id":7,"bbox":[1e3,1,2,0],"iscrowd":1},{"id":3,"image_id":2,"category_id":5,"bbox":[3,4,5,6]}],
"categories":[{"id":7,"name":"x"},{"id":5,"name":"y"}]}"#;
const YAML: &str = "path: ../x\ntrain: &t images/train\nval: [*t, b]\nnc: 3\nnames:\n  0: a\n  1: \"b\"\n  2: {c: d}\nkpt_shape: [2, 3]\n";

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 8 } else { 2000 }, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_a_label_file_holds_no_box_is_unsound(choice: u8, text in odd_rows()) {
        fuzzing::yolo(&[&[choice], text.as_bytes()].concat());
    }

    #[test]
    fn random_bytes_panic_no_parser(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        fuzzing::yolo(&bytes);
        fuzzing::coco(&bytes);
        fuzzing::data_yaml(String::from_utf8_lossy(&bytes).as_bytes());
    }

    #[test]
    fn mutations_of_good_files_panic_no_parser(a in mutated(YOLO), b in mutated(COCO), c in mutated(YAML)) {
        fuzzing::yolo(&[&[0], a.as_slice()].concat());
        fuzzing::coco(&b);
        fuzzing::data_yaml(String::from_utf8_lossy(&c).as_bytes());
    }

    /// Against the arithmetic of the format, in the plainest way.
    #[test]
    fn boxes_are_those_of_the_text(all in proptest::collection::vec((0u32..80, 0u32..=1000, 0u32..=1000, 1u32..=1000, 1u32..=1000), 0..40)) {
        let text: String = all.iter().map(|(class, x, y, w, h)| {
            let [x, y, w, h] = [x, y, w, h].map(|n| f64::from(*n) / 1000.0);
            format!("{class} {x} {y} {w} {h}\n")
        }).collect();
        let mut expected: Vec<LabelBox> = Vec::new();
        for &(class, x, y, w, h) in &all {
            let [x, y, w, h] = [x, y, w, h].map(|n| f64::from(n) / 1000.0);
            let corners = [x - w / 2.0, y - h / 2.0, x + w / 2.0, y + h / 2.0].map(|v| v.clamp(0.0, 1.0) as f32);
            let b = LabelBox { class, corners };
            if !expected.contains(&b) {
                expected.push(b);
            }
        }
        let labels = parse(&text, Rules::default());
        prop_assert_eq!(labels.counts.duplicates, (all.len() - expected.len()) as u64);
        prop_assert_eq!(labels.boxes, expected);
    }
}

/// A good file is good: else the mutations above would test little.
#[test]
fn the_files_that_are_mutated_are_good() {
    assert_eq!(parse(YOLO, Rules::default()).boxes.len(), 4);
    let coco = coco::parse(COCO.as_bytes(), false).unwrap();
    assert_eq!((coco.boxes.len(), coco.category_ids), (2, vec![5, 7]));
    assert!(data_yaml::parse(&YAML.replace("{c: d}", "c")).is_ok());
}

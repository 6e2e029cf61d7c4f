//! Images that made trouble elsewhere. The number in a test's name is the row of the list in `docs/FAILURES.md`; what may
//! come of each file is in `cases/expectations.json`: any one listed outcome is right, silence never is.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test stops at the first surprise")]

use std::path::{Path, PathBuf};
use std::time::Instant;

use serde_json::Value;
use warpfeed::decode::{Image, OnTruncated, Orientation, codec};
use warpfeed::source::{ImageFolder, from_vec};
use warpfeed::{ErrorKind, Loader, OnError};

#[path = "support/watch.rs"]
mod watch;
use watch::{LONG, alone, device_and_stream, within};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases")
}

fn bytes(name: &str) -> Vec<u8> {
    std::fs::read(folder().join(name)).unwrap()
}

fn expectations() -> Value {
    serde_json::from_slice(&bytes("expectations.json")).unwrap()
}

/// What a user chooses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Options {
    lenient: bool,
    turned: bool,
}

const ALL: [Options; 4] = [
    Options { lenient: false, turned: false },
    Options { lenient: false, turned: true },
    Options { lenient: true, turned: false },
    Options { lenient: true, turned: true },
];

impl Options {
    /// Whether an entry with this condition is about them.
    fn fit(self, when: Option<&str>) -> bool {
        match when {
            None => true,
            Some("exif=ignore") => !self.turned,
            Some("exif=apply") => self.turned,
            Some("policy=lenient") => self.lenient,
            Some("policy=strict (default)") => !self.lenient,
            // Neither is offered.
            Some("policy=strict, if documented" | "target=u16") => false,
            Some(other) => panic!("unknown condition {other:?}"),
        }
    }
}

struct Delivered {
    shape: [usize; 3],
    pixels: Vec<u8>,
    partial: bool,
}

/// The file through a loader, in its own size.
fn deliver(bytes: &[u8], options: Options) -> Result<Delivered, warpfeed::Error> {
    let size = codec::head(bytes, codec::Limits::default()).map_or((8, 8), |head| {
        let turned = options.turned && head.orientation > 4;
        if turned { (head.width, head.height) } else { (head.height, head.width) }
    });
    let shape = [size.0 as usize, size.1 as usize, 3];
    let mut image = Image::rgb8(shape[0], shape[1]).stretch();
    if options.lenient {
        image = image.on_truncated(OnTruncated::Deliver);
    }
    image = image.orientation(if options.turned { Orientation::Applied } else { Orientation::Stored });
    let (device, stream) = device_and_stream();
    let loader = Loader::builder(from_vec(vec![bytes.to_vec()])).decode(image).batch_size(1).workers(1);
    let loader = loader.build(&device).unwrap();
    let batch = loader.epoch(&stream).unwrap().next().unwrap()?;
    batch.synchronize().unwrap();
    let pixels = batch.host::<u8>("image").unwrap().to_vec();
    let partial = options.lenient && batch.host::<bool>("partial").unwrap()[0];
    Ok(Delivered { shape, pixels, partial })
}

/// Why an outcome is not what an entry of the expectations says.
fn mismatch(entry: &Value, outcome: &Result<Delivered, warpfeed::Error>) -> Option<String> {
    let list = |value: &Value| -> Vec<f64> {
        value.as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect()
    };
    let (status, outcome) = (entry["status"].as_str().unwrap(), outcome.as_ref());
    match (status, outcome) {
        ("error", Err(e)) => {
            let kinds = entry["kinds"].as_array().unwrap().iter().map(|kind| match kind.as_str().unwrap() {
                "Empty" => ErrorKind::Empty,
                "Truncated" => ErrorKind::Truncated,
                "Corrupt" | "ChecksumMismatch" => ErrorKind::Corrupt,
                "UnsupportedFormat" | "UnsupportedFeature" => ErrorKind::Unsupported,
                "LimitExceeded" => ErrorKind::LimitExceeded,
                other => panic!("unknown kind {other:?}"),
            });
            let texts = entry["text_has"].as_array().into_iter().flatten().map(|t| t.as_str().unwrap());
            let text = e.to_string().to_lowercase();
            let right = kinds.into_iter().any(|kind| kind == e.kind())
                && texts.into_iter().all(|t| text.contains(&t.to_lowercase()))
                && e.place().index == Some(0);
            (!right).then(|| format!("{:?}: {e}", e.kind()))
        }
        ("ok", Ok(seen)) => {
            assert_eq!(entry["target"], "rgb8_hwc");
            if list(&entry["shape"]) != seen.shape.map(|n| n as f64) {
                return Some(format!("the shape is {:?}", seen.shape));
            }
            if seen.partial != (entry["flag"] == "partial") {
                return Some(format!("partial is {}", seen.partial));
            }
            if !entry["channel_mean"].is_null() {
                let count = (seen.shape[0] * seen.shape[1]) as f64;
                for (channel, expected) in list(&entry["channel_mean"]).into_iter().enumerate() {
                    let sum: f64 = seen.pixels.iter().skip(channel).step_by(3).map(|v| f64::from(*v)).sum();
                    // The expectations have three digits.
                    if (sum / count - expected).abs() > entry["mean_tol"].as_f64().unwrap() + 0.0005 {
                        return Some(format!("the mean of channel {channel} is {}", sum / count));
                    }
                }
            }
            entry["probes"].as_array().into_iter().flatten().find_map(|probe| {
                let [y, x] = ["y", "x"].map(|k| probe[k].as_u64().unwrap() as usize);
                let pixel = &seen.pixels[(y * seen.shape[1] + x) * 3..][..3];
                let far = pixel.iter().zip(list(&probe["rgb"])).map(|(a, b)| (f64::from(*a) - b).abs());
                let tolerance = probe["tol"].as_f64().unwrap();
                (far.fold(0.0, f64::max) > tolerance).then(|| format!("at {y},{x} there is {pixel:?}"))
            })
        }
        (_, Err(e)) => Some(format!("an error: {e}")),
        (_, Ok(_)) => Some("no error".to_string()),
    }
}

/// Every file of a row, under all options.
fn row(number: u64) {
    within(LONG, move || {
        let all = expectations();
        let files = all["files"].as_object().unwrap().iter().filter(|(name, case)| {
            (name.starts_with("jpeg/") || name.starts_with("png/")) && case["case"] == number
        });
        let files: Vec<_> = files.collect();
        assert!(!files.is_empty());
        for (name, case) in files {
            let bytes = bytes(name);
            assert_eq!(case["bytes"], bytes.len(), "{name}");
            for options in ALL {
                let entries = case["expect"].as_array().unwrap();
                let fitting = entries.iter().filter(|e| options.fit(e["when"].as_str()));
                let start = Instant::now();
                let outcome = deliver(&bytes, options);
                let took = start.elapsed().as_millis();
                let problems: Vec<_> = fitting
                    .map(|entry| {
                        let limit = entry["max_ms"].as_u64().unwrap_or(1000);
                        let late = (took > limit.into()).then(|| format!("{took} ms, of {limit}"));
                        mismatch(entry, &outcome).or(late)
                    })
                    .collect();
                assert!(problems.iter().any(Option::is_none), "{name}, {options:?}: {problems:?}");
            }
        }
    });
}

/// Bytes that this process had in memory at most.
fn peak() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().strip_suffix(" kB").unwrap().parse::<usize>().unwrap() << 10
}

/// As [`row`], in a process whose memory grows by less than 64 MiB meanwhile.
fn row_in_bounds(test: &str, number: u64) {
    alone(test, || {
        // What loaders, threads and the expectations take comes before.
        row(114);
        let before = peak();
        row(number);
        let grown = peak() - before;
        assert!(grown < 64 << 20, "memory grew by {grown} bytes");
    });
}

#[test]
fn row_090_ycck_is_not_inverted() {
    row(90);
}

#[test]
fn row_091_cmyk_is_not_inverted() {
    row(91);
}

#[test]
fn row_093_gray_has_three_channels_and_stacks_with_colour() {
    row(93);
    within(LONG, || {
        let source = from_vec(vec![bytes("jpeg/gray.jpg"), bytes("jpeg/no_extension")]);
        let (device, stream) = device_and_stream();
        let loader = Loader::builder(source).decode(Image::rgb8(32, 64).stretch()).batch_size(2).workers(2);
        let loader = loader.build(&device).unwrap();
        let batch = loader.epoch(&stream).unwrap().next().unwrap().unwrap();
        batch.synchronize().unwrap();
        let pixels = batch.host::<u8>("image").unwrap();
        let (gray, colour) = pixels.split_at(32 * 64 * 3);
        assert!(gray.chunks_exact(3).all(|p| p[0] == p[1] && p[1] == p[2]));
        assert!(colour.chunks_exact(3).any(|p| p[0] != p[1]));
    });
}

#[test]
fn row_094_a_png_named_jpeg_is_a_png() {
    row(94);
}

#[test]
fn row_096_the_bytes_decide_what_a_file_is() {
    row(96);
}

#[test]
fn row_097_a_bmp_among_jpegs_is_a_bmp() {
    row(97);
}

#[test]
fn row_098_the_orientation_is_applied_where_it_is_asked_for() {
    row(98);
}

#[test]
fn row_101_what_is_truncated_is_an_error_or_said_to_be_partial() {
    row(101);
    within(LONG, || {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("trunc_half.jpg");
        std::fs::write(&path, bytes("jpeg/trunc_half.jpg")).unwrap();
        let (device, stream) = device_and_stream();
        let source = ImageFolder::options().flat(true).open(dir.path()).unwrap();
        let loader = Loader::builder(source).decode(Image::rgb8(64, 64)).batch_size(1).workers(1);
        let loader = loader.build(&device).unwrap();
        let e = loader.epoch(&stream).unwrap().next().unwrap().unwrap_err();
        assert_eq!((e.kind(), e.place().path.as_deref()), (ErrorKind::Truncated, Some(path.as_path())));
    });
}

#[test]
fn row_102_a_missing_end_marker_alone_is_no_truncation() {
    row(102);
}

#[test]
fn row_103_a_cut_header_ends_soon() {
    row(103);
}

#[test]
fn row_104_progressive_with_restarts_and_subsampling_has_its_colours() {
    row(104);
}

#[test]
fn row_106_arithmetic_coding_is_named() {
    row(106);
}

#[test]
fn row_107_what_follows_the_end_marker_does_not_matter() {
    row(107);
}

#[test]
fn row_109_twelve_bits_are_named() {
    row(109);
}

#[test]
fn row_111_a_file_without_a_frame_header_is_an_error() {
    row(111);
}

#[test]
fn row_113_empty_files_are_said_to_be_empty_and_their_neighbours_come() {
    row(113);
    within(LONG, || {
        let good = || bytes("jpeg/no_extension");
        let source = from_vec(vec![good(), bytes("jpeg/zero.jpg"), bytes("jpeg/zeros_1k.jpg"), good()]);
        let (device, stream) = device_and_stream();
        let loader = Loader::builder(source).decode(Image::rgb8(32, 64).stretch()).batch_size(4).workers(2);
        let loader = loader.on_error(OnError::Skip { limit: 2 }).build(&device).unwrap();
        let batch = loader.epoch(&stream).unwrap().next().unwrap().unwrap();
        batch.synchronize().unwrap();
        assert_eq!((batch.indices(), batch.valid()), (&[0, 1, 2, 3][..], &[true, false, false, true][..]));
        let pixels = batch.host::<u8>("image").unwrap();
        let rows: Vec<&[u8]> = pixels.chunks_exact(32 * 64 * 3).collect();
        assert!(rows[0] == rows[3] && rows[0].iter().any(|v| *v > 200));
    });
}

#[test]
fn row_114_a_page_of_text_is_shown() {
    row(114);
    let e = deliver(&bytes("jpeg/access_denied.jpg"), ALL[0]).err().unwrap().to_string();
    assert!(e.contains("XML text") && e.contains("<?xml version"), "{e}");
}

#[test]
fn row_115_sixteen_bits_are_scaled_not_clipped() {
    row(115);
}

#[test]
fn row_117_palettes_with_alpha_are_three_channels() {
    row(117);
}

#[test]
fn row_119_what_alpha_hides_comes_to_light() {
    row(119);
}

#[test]
fn row_121_a_cut_png_is_an_error() {
    row(121);
}

#[test]
fn row_122_a_wrong_checksum_of_the_pixels_is_an_error() {
    row(122);
}

#[test]
fn row_123_a_wrong_checksum_of_a_text_does_not_matter() {
    row(123);
}

#[test]
fn row_124_a_huge_image_is_refused_before_memory_is_taken() {
    row_in_bounds("row_124_a_huge_image_is_refused_before_memory_is_taken", 124);
}

#[test]
fn row_125_an_endless_height_is_refused_at_once() {
    row_in_bounds("row_125_an_endless_height_is_refused_at_once", 125);
}

#[test]
fn row_127_an_interlaced_image_is_one_image() {
    row(127);
}

#[test]
fn row_129_gray_with_alpha_and_one_bit_are_three_channels() {
    row(129);
}

#[test]
fn every_image_of_the_cases_is_in_a_row() {
    let tests = include_str!("image_rows.rs");
    for (name, case) in expectations()["files"].as_object().unwrap() {
        if name.starts_with("jpeg/") || name.starts_with("png/") {
            assert!(tests.contains(&format!("fn row_{:03}_", case["case"].as_u64().unwrap())), "{name}");
        }
    }
}

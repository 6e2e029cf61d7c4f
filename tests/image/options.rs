//! Fields, labels and options.

use warpfeed::decode::codec::{self, Codec, Color, Wish};
use warpfeed::decode::{Decode, Geometry, Image, OnTruncated, Orientation};
use warpfeed::source::{self, Labels, Picture, PictureRecord};
use warpfeed::{ErrorKind, Loader};

use super::{MINUTE, Pixels, close, deliver, one};
use crate::support::{device_and_stream, within};

fn names(image: &Image) -> Vec<String> {
    let source = source::from_vec(vec![(Vec::new(), 0i64)]);
    image.fields(&source).unwrap().iter().map(ToString::to_string).collect()
}

#[test]
fn the_fields_are_what_was_asked_for() {
    let image = Image::rgb8(5, 7);
    assert_eq!(names(&image), ["image: u8[5, 7, 3]", "label: i64[]", "geometry: f32[11]"]);
    let image = Image::gray8(5, 7).without_geometry().keys().on_truncated(OnTruncated::Deliver);
    assert_eq!(
        names(&image),
        ["image: u8[5, 7, 1]", "label: i64[]", "partial: bool[]", "key: text on the host"]
    );
    let plain = source::from_vec(vec![Vec::<u8>::new()]);
    assert_eq!(Image::rgb8(1, 1).fields(&plain).unwrap().len(), 2);
}

#[test]
fn what_makes_no_sense_is_refused_when_the_loader_is_built() {
    within(MINUTE, || {
        let (device, _) = device_and_stream();
        for (image, word) in [
            (Image::rgb8(0, 4), "height"),
            (Image::rgb8(4, 0), "width"),
            (Image::rgb8(4, 1 << 21), "width"),
            (Image::rgb8(4, 4).resize_then_center_crop(0), "short side"),
            (Image::rgb8(4, 4).random_resized_crop((0.9, 0.1), Image::RATIO), "scale"),
            (Image::rgb8(4, 4).random_resized_crop(Image::SCALE, (2.0, 1.0)), "ratio"),
            (Image::rgb8(4, 4).flip(1.5), "flip"),
            (Image::rgb8(4, 4).vertical_flip(f64::NAN), "vertical_flip"),
            (Image::rgb8(4, 4).scale_up(false), "letterbox"),
            (Image::rgb8(4, 4).min_visibility(-0.5), "min_visibility"),
            (Image::rgb8(4, 4).min_box_size(f32::INFINITY), "min_box_size"),
        ] {
            let source = source::from_vec(vec![Pixels::new(3, 3).bmp()]);
            let error = Loader::builder(source).decode(image).build(&device).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
            assert!(error.message().contains(word), "{error}");
        }
    });
}

#[test]
fn labels_and_keys_come_beside_their_image() {
    within(MINUTE, || {
        let images: Vec<_> = (0..9).map(|k| (Pixels::new(8 + k, 6).bmp(), 100 - k as i64)).collect();
        for workers in [1, 4] {
            let rows = deliver(source::from_vec(images.clone()), Image::rgb8(6, 6).keys(), workers);
            for (k, row) in rows.iter().enumerate() {
                assert_eq!(row.label, Some(100 - k as i64));
                assert_eq!(row.key.as_deref(), Some(k.to_string().as_str()));
                assert_eq!(row.geometry[0], (8 + k) as f32);
            }
        }
    });
}

#[test]
fn gray_is_the_luminance() {
    within(MINUTE, || {
        let (mut pixels, mut luminance) = (Pixels::new(30, 20), Vec::new());
        for pixel in pixels.rgb.as_chunks_mut::<3>().0 {
            // A colour of equal channels, so that any weights give it.
            *pixel = [pixel[2]; 3];
            luminance.push(pixel[2]);
        }
        let row = one(&pixels, Image::gray8(20, 30));
        assert_eq!(row.image, luminance);
        let resized = pixels.resized(11, 13);
        let row = one(&pixels, Image::gray8(13, 11).stretch().flip(1.0));
        let expected = resized.flipped().rgb.iter().step_by(3).copied().collect();
        close(&row.image, &Pixels { rgb: expected, ..resized }, 2, "gray");
    });
}

#[test]
fn an_image_of_the_rows_size_comes_unchanged() {
    within(MINUTE, || {
        let pixels = Pixels::new(33, 21);
        for fit in [
            Image::rgb8(21, 33),
            Image::rgb8(21, 33).stretch(),
            Image::rgb8(21, 33).letterbox(),
            Image::rgb8(21, 33).random_crop(),
            Image::rgb8(21, 33).resize_then_center_crop(21),
        ] {
            assert_eq!(one(&pixels, fit.clone()).image, pixels.rgb);
            assert_eq!(one(&pixels, fit.flip(1.0)).image, pixels.flipped().rgb);
        }
        // In a larger row, at an odd place, between the fill.
        let row = one(&pixels, Image::rgb8(30, 40).letterbox().scale_up(false).flip(1.0));
        let expected = pixels.flipped().on(40, 30, 114, [4, 4]);
        assert!(row.image == expected.rgb, "{:?}", row.geometry);
        let geometry = Geometry::from_row(&row.geometry).unwrap();
        assert_eq!((geometry.target(), geometry.flip()), ([4, 4, 33, 21], [true, false]));
    });
}

#[test]
fn sizes_that_no_photograph_has_do_not_panic() {
    within(MINUTE, || {
        for (width, height) in [(1, 1), (1, 2000), (2000, 1), (2, 2), (500, 3)] {
            for (w, h) in [(1, 1), (1, 40), (40, 1), (64, 64)] {
                let image = || Image::rgb8(h, w).flip(0.5).scaled_decoding(true);
                for fit in [
                    image(),
                    image().stretch(),
                    image().letterbox(),
                    image().letterbox().scale_up(false),
                    image().random_crop(),
                    image().random_resized_crop(Image::SCALE, Image::RATIO),
                    image().resize_then_center_crop(1),
                    image().resize_then_center_crop(300),
                ] {
                    let pixels = Pixels { width, height, rgb: vec![200; width * height * 3] };
                    let row = one(&pixels, fit.fill(200));
                    assert!(row.image.iter().all(|&v| v == 200), "{width}x{height} {:?}", row.geometry);
                    Geometry::from_row(&row.geometry).unwrap();
                }
            }
        }
    });
}

#[test]
fn a_file_that_is_no_image_or_too_large_is_an_error_with_its_place() {
    within(MINUTE, || {
        let (device, stream) = device_and_stream();
        let image = Image::rgb8(4, 4).limits(1 << 20, 100);
        for (bytes, kinds) in [
            (b"<?xml version=\"1.0\"?>".to_vec(), [ErrorKind::Unsupported; 2]),
            (Vec::new(), [ErrorKind::Empty, ErrorKind::Unsupported]),
        ] {
            let records = vec![Pixels::new(5, 5).bmp(), bytes];
            let loader = Loader::builder(source::from_vec(records))
                .decode(image.clone())
                .batch_size(2)
                .workers(1)
                .build(&device)
                .unwrap();
            let error = loader.epoch(&stream).unwrap().next().unwrap().unwrap_err();
            assert!(kinds.contains(&error.kind()), "{error}");
            assert_eq!(error.place().index, Some(1), "{error}");
        }
    });
}

/// A record whose source promises a class that it does not have.
struct Unclassed;

impl PictureRecord for Unclassed {
    const LABELS: Labels = Labels::Class;

    fn picture(&self) -> warpfeed::Result<Picture<'_>> {
        // The smallest image: a GIF of one pixel.
        const BYTES: &[u8] = b"GIF89a\x01\x00\x01\x00\x80\x00\x00\x00\x00\x00\xff\xff\xff,\x00\x00\x00\x00\x01\x00\x01\x00\x00\x02\x02D\x01\x00;";
        Ok(Picture { bytes: BYTES, ..Picture::default() })
    }
}

#[test]
fn a_class_that_is_missing_is_an_error() {
    within(MINUTE, || {
        let (device, stream) = device_and_stream();
        let source = source::from_vec(vec![Unclassed]);
        let loader = Loader::builder(source)
            .decode(Image::rgb8(1, 1))
            .batch_size(1)
            .workers(1)
            .build(&device)
            .unwrap();
        let error = loader.epoch(&stream).unwrap().next().unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::MissingField, "{error}");
    });
}

fn case(name: &str) -> Vec<u8> {
    std::fs::read(std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases/jpeg").join(name))
        .unwrap()
}

/// The stored image has 64 × 32 pixels; its EXIF orientation, 6, says to turn it clockwise.
#[test]
fn an_orientation_turns_the_image_only_where_it_is_applied() {
    within(MINUTE, || {
        let source = || source::from_vec(vec![case("exif6.jpg")]);
        let stored = deliver(source(), Image::rgb8(32, 64), 0).remove(0);
        assert_eq!(stored.geometry[..2], [64.0, 32.0]);
        let applied = Image::rgb8(64, 32).orientation(Orientation::Applied);
        let upright = deliver(source(), applied, 0).remove(0);
        assert_eq!(upright.geometry[..2], [32.0, 64.0]);
        let pixel =
            |image: &[u8], width: usize, x: usize, y: usize| image[(y * width + x) * 3..][..3].to_vec();
        for y in 0..64 {
            for x in 0..32 {
                assert_eq!(pixel(&upright.image, 32, x, y), pixel(&stored.image, 64, y, 31 - x), "{x}, {y}");
            }
        }
    });
}

#[test]
fn a_file_that_ends_early_is_an_error_or_delivered_flagged_and_counted() {
    within(MINUTE, || {
        let (device, stream) = device_and_stream();
        let records = vec![case("gray.jpg"), case("trunc_half.jpg")];
        let build = |image: Image| {
            let source = source::from_vec(records.clone());
            Loader::builder(source).decode(image).batch_size(2).workers(1).epochs(1).build(&device).unwrap()
        };
        let strict = build(Image::rgb8(16, 16));
        let error = strict.epoch(&stream).unwrap().next().unwrap().unwrap_err();
        assert_eq!((error.kind(), error.place().index), (ErrorKind::Truncated, Some(1)), "{error}");

        let lenient = Image::rgb8(16, 16).on_truncated(OnTruncated::Deliver);
        let counts = lenient.counts();
        let lenient = build(lenient);
        let batch = lenient.epoch(&stream).unwrap().next().unwrap().unwrap();
        batch.synchronize().unwrap();
        assert_eq!(*batch.host::<bool>("partial").unwrap(), [false, true]);
        assert_eq!(counts.partial(), 1);
    });
}

/// 64 × 32 pixels in a letterbox of 32 × 32 are exactly the half.
#[test]
fn scaled_decoding_gives_the_codecs_half_and_the_same_geometry() {
    within(MINUTE, || {
        let bytes = case("exif6.jpg");
        let row = |image| deliver(source::from_vec(vec![bytes.clone()]), image, 0).remove(0);
        let full = row(Image::rgb8(32, 32).letterbox());
        let half = row(Image::rgb8(32, 32).letterbox().scaled_decoding(true));
        assert_eq!(half.geometry, full.geometry);
        let head = codec::head(&bytes, codec::Limits::default()).unwrap();
        let mut wish = Wish::new(&head, Color::Rgb8);
        wish.shrink = 2;
        let mut codec = Codec::default();
        let pixels = codec.decode(&bytes, &head, &wish).unwrap();
        if cfg!(feature = "turbojpeg") {
            assert_eq!((pixels.width, pixels.height), (32, 16));
            let expected = Pixels { width: 32, height: 16, rgb: pixels.bytes.to_vec() };
            assert!(half.image == expected.on(32, 32, 114, [0, 8]).rgb);
            assert!(half.image != full.image, "another filter");
        } else {
            assert_eq!(pixels.shrink, 1);
            assert!(half.image == full.image, "a codec that can't, doesn't");
        }
        let mean = |row: &[u8]| row.iter().map(|&v| f64::from(v)).sum::<f64>() / row.len() as f64;
        assert!((mean(&half.image) - mean(&full.image)).abs() < 2.0);
    });
}

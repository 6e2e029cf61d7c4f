//! The JSON file of a COCO detection set.

use std::collections::HashMap;
use std::fmt;
use std::io::BufRead;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::counts::{DetectionCounts, fit};
use super::yolo::{BadRow, KEPT, distinct};
use crate::error::{Error, ErrorKind, Place, Result};
use crate::source::LabelBox;

/// Coordinates beyond this, in pixels, are no coordinates.
const FAR: f64 = 1e9;

/// What the file says: images in its order, their boxes, the categories.
#[derive(Debug, Default)]
pub(super) struct Coco {
    /// The `file_name` of each image.
    pub(super) names: Vec<String>,
    /// Width and height of each image; 0 where the file does not say in whole pixels.
    pub(super) sizes: Vec<[u32; 2]>,
    /// The boxes of image `i` are `boxes[firsts[i]..firsts[i + 1]]`, in pixels, in the order of the annotations.
    pub(super) firsts: Vec<u64>,
    /// See `firsts`.
    pub(super) boxes: Vec<LabelBox>,
    /// Whether an annotation is of image `i`, whatever became of it.
    pub(super) labelled: Vec<bool>,
    /// The id of each class.
    pub(super) category_ids: Vec<i64>,
    /// The name of each class.
    pub(super) category_names: Vec<String>,
    /// The counters of rows alone.
    pub(super) counts: DetectionCounts,
    /// The first malformed annotations.
    pub(super) bad: Vec<BadRow>,
    /// Each image that has a malformed annotation, with its first.
    pub(super) bad_images: Vec<(usize, BadRow)>,
}

#[derive(Deserialize)]
struct File {
    images: Option<Vec<Image>>,
    #[serde(default)]
    annotations: Vec<Annotation>,
    #[serde(default)]
    categories: Vec<Category>,
}

#[derive(Deserialize)]
struct Image {
    id: Option<Id>,
    file_name: Option<String>,
    width: Option<Number>,
    height: Option<Number>,
}

#[derive(Deserialize)]
struct Category {
    id: Option<Id>,
    name: Option<String>,
}

#[derive(Deserialize)]
struct Annotation {
    id: Option<Id>,
    image_id: Option<Id>,
    category_id: Option<Id>,
    bbox: Option<Bbox>,
    #[serde(default)]
    iscrowd: Number,
}

/// A whole number, which some tools write as `"7"` or `7.0`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Id(i64);

impl<'de> Deserialize<'de> for Id {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct AnyId;
        impl Visitor<'_> for AnyId {
            type Value = Id;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an id, which is a whole number")
            }
            fn visit_i64<E: serde::de::Error>(self, id: i64) -> Result<Id, E> {
                Ok(Id(id))
            }
            fn visit_u64<E: serde::de::Error>(self, id: u64) -> Result<Id, E> {
                i64::try_from(id).map(Id).map_err(E::custom)
            }
            fn visit_f64<E: serde::de::Error>(self, id: f64) -> Result<Id, E> {
                // Up to 2⁵³ a float says which whole number is meant.
                let whole = id.fract() == 0.0 && id.abs() <= (1u64 << 53) as f64;
                if whole {
                    Ok(Id(id as i64))
                } else {
                    Err(E::custom(format!("the id {id} is no whole number")))
                }
            }
            fn visit_str<E: serde::de::Error>(self, id: &str) -> Result<Id, E> {
                id.parse().map(Id).map_err(|_| E::custom(format!("the id {id:?} is no whole number")))
            }
        }
        deserializer.deserialize_any(AnyId)
    }
}

/// A number; not a number where something else stands in its place.
#[derive(Clone, Copy, Default)]
struct Number(f64);

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Any;
        impl<'de> Visitor<'de> for Any {
            type Value = Number;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number")
            }
            fn visit_i64<E>(self, value: i64) -> Result<Number, E> {
                Ok(Number(value as f64))
            }
            fn visit_u64<E>(self, value: u64) -> Result<Number, E> {
                Ok(Number(value as f64))
            }
            fn visit_f64<E>(self, value: f64) -> Result<Number, E> {
                Ok(Number(value))
            }
            fn visit_bool<E>(self, value: bool) -> Result<Number, E> {
                Ok(Number(f64::from(u8::from(value))))
            }
            fn visit_str<E>(self, value: &str) -> Result<Number, E> {
                Ok(Number(value.parse().unwrap_or(f64::NAN)))
            }
            fn visit_unit<E>(self) -> Result<Number, E> {
                Ok(Number(f64::NAN))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Number, A::Error> {
                while seq.next_element::<IgnoredAny>()?.is_some() {}
                Ok(Number(f64::NAN))
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Number, A::Error> {
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                Ok(Number(f64::NAN))
            }
        }
        deserializer.deserialize_any(Any)
    }
}

/// The first four numbers of a list, and how many it has.
struct Bbox {
    values: [f64; 4],
    len: usize,
}

impl<'de> Deserialize<'de> for Bbox {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Four;
        impl<'de> Visitor<'de> for Four {
            type Value = Bbox;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of four numbers")
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Bbox, A::Error> {
                let mut bbox = Bbox { values: [f64::NAN; 4], len: 0 };
                while let Some(Number(value)) = seq.next_element()? {
                    if let Some(place) = bbox.values.get_mut(bbox.len) {
                        *place = value;
                    }
                    bbox.len += 1;
                }
                Ok(bbox)
            }
        }
        deserializer.deserialize_seq(Four)
    }
}

/// Reads the file. The classes are its categories in ascending order of their ids. Every box of the result lies within its image as far as the file
/// gives the image's size, has an area, and differs from the image's others. Regions of many objects (`iscrowd`) are dropped, unless `crowd`.
///
/// # Errors
/// Without a path: [`ErrorKind::Empty`], [`ErrorKind::Truncated`], [`ErrorKind::Corrupt`] where it is no JSON, with the line and the column;
/// [`ErrorKind::InvalidLabel`] where it is no COCO; [`ErrorKind::DuplicateKey`] where two images or two categories have the
/// same id, or two images the same name; [`ErrorKind::Io`].
pub(super) fn parse(mut reader: impl BufRead, crowd: bool) -> Result<Coco> {
    let unreadable = |e| Error::new(ErrorKind::Io, format!("the file can't be read: {e}")).caused_by(e);
    let start = reader.fill_buf().map_err(unreadable)?;
    if start.is_empty() {
        return Err(Error::new(ErrorKind::Empty, "the file is empty"));
    }
    if start.starts_with(b"\xef\xbb\xbf") {
        reader.consume(3);
    }
    let file: File = serde_json::from_reader(reader).map_err(refused)?;
    let Some(images) = file.images else {
        return Err(Error::new(
            ErrorKind::InvalidLabel,
            "there are no \"images\": this is no COCO detection file",
        ));
    };
    let mut coco = Coco::default();
    let mut index = Index::default();
    coco.take_categories(file.categories, &mut index)?;
    coco.take_images(images, &mut index)?;
    coco.take_annotations(file.annotations, crowd, &index);
    Ok(coco)
}

/// What the annotations refer to.
#[derive(Default)]
struct Index {
    /// The class of each category's id.
    classes: HashMap<i64, u32>,
    /// The number of each image's id.
    images: HashMap<i64, usize>,
    /// Width and height of each image; infinite where the file does not say.
    sizes: Vec<[f64; 2]>,
}

/// What serde says, sorted.
fn refused(error: serde_json::Error) -> Error {
    use serde_json::error::Category;
    let (kind, what) = match error.classify() {
        Category::Io => (ErrorKind::Io, "the file can't be read"),
        Category::Eof => (ErrorKind::Truncated, "the JSON ends early"),
        Category::Syntax => (ErrorKind::Corrupt, "this is no JSON"),
        Category::Data => (ErrorKind::InvalidLabel, "this is no COCO detection file"),
    };
    let line = (error.line() > 0).then_some(error.line() as u64);
    let text = format!("{what}: {error}");
    Error::new(kind, text).at(Place { line, ..Place::default() }).caused_by(error)
}

fn invalid(text: String) -> Error {
    Error::new(ErrorKind::InvalidLabel, text)
}

impl Coco {
    fn take_categories(&mut self, categories: Vec<Category>, index: &mut Index) -> Result<()> {
        let mut list = Vec::with_capacity(categories.len());
        for (number, category) in categories.into_iter().enumerate() {
            let Some(Id(id)) = category.id else {
                return Err(invalid(format!("categories[{number}] has no id")));
            };
            list.push((id, category.name.unwrap_or_else(|| id.to_string())));
        }
        list.sort_by_key(|(id, _)| *id);
        for (class, (id, name)) in (0..).zip(list) {
            if index.classes.insert(id, class).is_some() {
                return Err(Error::new(ErrorKind::DuplicateKey, format!("two categories have the id {id}")));
            }
            self.category_ids.push(id);
            self.category_names.push(name);
        }
        Ok(())
    }

    fn take_images(&mut self, images: Vec<Image>, index: &mut Index) -> Result<()> {
        for (number, image) in images.into_iter().enumerate() {
            let Some(Id(id)) = image.id else { return Err(invalid(format!("images[{number}] has no id"))) };
            let name = image.file_name.filter(|name| !name.is_empty());
            let Some(name) = name else { return Err(invalid(format!("image {id} has no file_name"))) };
            if let Some(before) = index.images.insert(id, number) {
                let text = format!("images[{before}] and images[{number}] have the same id, {id}");
                return Err(Error::new(ErrorKind::DuplicateKey, text));
            }
            let side = |side: Option<Number>| {
                side.map_or(f64::INFINITY, |Number(x)| if x > 0.0 { x } else { f64::INFINITY })
            };
            // Whole, and no larger than a `u32`.
            let pixels = |side: Option<Number>| {
                let side = side.map_or(0.0, |Number(x)| x);
                if side.fract() == 0.0 && (0.0..=f64::from(u32::MAX)).contains(&side) {
                    side as u32
                } else {
                    0
                }
            };
            self.sizes.push([pixels(image.width), pixels(image.height)]);
            index.sizes.push([side(image.width), side(image.height)]);
            self.names.push(name);
        }
        let mut seen = HashMap::with_capacity(self.names.len());
        for (number, name) in self.names.iter().enumerate() {
            if let Some(before) = seen.insert(name.as_str(), number) {
                let text = format!("images[{before}] and images[{number}] have the same file_name, {name:?}");
                return Err(Error::new(ErrorKind::DuplicateKey, text));
            }
        }
        Ok(())
    }

    fn take_annotations(&mut self, annotations: Vec<Annotation>, crowd: bool, index: &Index) {
        self.labelled = vec![false; self.names.len()];
        let mut found = Vec::with_capacity(annotations.len());
        for (number, annotation) in annotations.into_iter().enumerate() {
            let image = annotation.image_id.and_then(|id| index.images.get(&id.0).copied());
            if let Some(labelled) = image.and_then(|image| self.labelled.get_mut(image)) {
                *labelled = true;
            }
            match checked(&annotation, image, index) {
                Ok(_) if !crowd && annotation.iscrowd.0.abs() > 0.0 => self.counts.crowd += 1,
                Ok((image, size, class, corners)) => {
                    if let Some(corners) = fit(corners, size, &mut self.counts) {
                        found.push((image, LabelBox { class, corners }));
                    }
                }
                Err(what) => {
                    let id = annotation.id.map_or("without an id".to_string(), |Id(id)| id.to_string());
                    let bad = BadRow {
                        line: None,
                        text: format!("annotation {id} (annotations[{number}]): {what}"),
                    };
                    self.counts.bad_rows += 1;
                    if self.bad.len() < KEPT {
                        self.bad.push(bad.clone());
                    }
                    if let Some(image) = image {
                        self.bad_images.push((image, bad));
                    }
                }
            }
        }
        self.bad_images.sort_by_key(|(image, _)| *image);
        self.bad_images.dedup_by_key(|(image, _)| *image);
        found.sort_by_key(|(image, _)| *image);
        self.gather(&found);
    }

    /// Takes the boxes, sorted by their images.
    fn gather(&mut self, found: &[(usize, LabelBox)]) {
        let (mut rest, mut of_image) = (found, Vec::new());
        self.firsts.push(0);
        for image in 0..self.names.len() {
            let (these, others) = rest.split_at(rest.partition_point(|(of, _)| *of <= image));
            rest = others;
            of_image.clear();
            of_image.extend(these.iter().map(|(_, b)| *b));
            self.counts.duplicates += distinct(&mut of_image);
            self.boxes.extend_from_slice(&of_image);
            self.firsts.push(self.boxes.len() as u64);
        }
    }
}

/// Image, its size, class and corners of an annotation; or what is wrong with it.
fn checked(
    annotation: &Annotation,
    image: Option<usize>,
    index: &Index,
) -> Result<(usize, [f64; 2], u32, [f64; 4]), String> {
    let Some(Id(image_id)) = annotation.image_id else { return Err("it has no image_id".to_string()) };
    let size = image.and_then(|image| Some((image, *index.sizes.get(image)?)));
    let (image, size) = size.ok_or_else(|| format!("there is no image {image_id}"))?;
    let Some(Id(category)) = annotation.category_id else { return Err("it has no category_id".to_string()) };
    let class = *index.classes.get(&category).ok_or_else(|| format!("there is no category {category}"))?;
    let Some(bbox) = &annotation.bbox else { return Err("it has no bbox".to_string()) };
    if bbox.len != 4 {
        return Err(format!("a bbox has 4 numbers, this one {}", bbox.len));
    }
    let [x, y, width, height] = bbox.values;
    for (value, name) in [(x, "x"), (y, "y"), (width, "width"), (height, "height")] {
        if !(-FAR..=FAR).contains(&value) {
            return Err(format!("the {name} of its bbox is no number of pixels: {value}"));
        }
    }
    for (side, name) in [(width, "width"), (height, "height")] {
        if side < 0.0 {
            return Err(format!("the {name} of its bbox is {side}: negative"));
        }
    }
    Ok((image, size, class, [x, y, x + width, y + height]))
}

//! The rows of a YOLO label file.

use std::collections::HashSet;

use super::counts::{DetectionCounts, ROUNDING, fit};
use crate::source::LabelBox;

/// What the rows of a set may hold.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Rules {
    /// How many classes there are, where that is known.
    pub(super) classes: Option<u32>,
    /// How many numbers, those of keypoints, follow the box in every row. With any there are no polygons.
    pub(super) keypoints: usize,
}

/// A malformed row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct BadRow {
    /// From 1; `None` for an annotation of a JSON file, which the text names.
    pub(super) line: Option<u64>,
    /// What is wrong with it.
    pub(super) text: String,
}

/// What a label file holds.
#[derive(Debug, Default)]
pub(super) struct Labels {
    /// Its boxes, in the order of the rows.
    pub(super) boxes: Vec<LabelBox>,
    /// Rows that are not blank.
    pub(super) rows: u64,
    /// The counters of rows alone.
    pub(super) counts: DetectionCounts,
    /// The first malformed rows, [`KEPT`] at most.
    pub(super) bad: Vec<BadRow>,
}

/// So many malformed rows of a file are kept with their text; the others are counted.
pub(super) const KEPT: usize = 10;

impl Labels {
    fn refuse(&mut self, line: u64, text: String) {
        self.counts.bad_rows += 1;
        if self.bad.len() < KEPT {
            self.bad.push(BadRow { line: Some(line), text });
        }
    }
}

/// Parses a label file: a row a box, `class cx cy w h` in fractions of the image, or a row a polygon, `class x y x y x y …`.
/// Every box of the result lies within the image, has an area and differs from the others.
pub(super) fn parse(text: &[u8], rules: &Rules) -> Labels {
    let mut labels = Labels::default();
    if text.starts_with(&[0xff, 0xfe]) || text.starts_with(&[0xfe, 0xff]) {
        labels.rows = 1;
        labels.refuse(1, "the file is UTF-16 text; label files are ASCII".to_string());
        return labels;
    }
    let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
    let mut numbers = Vec::new();
    for (line, bytes) in (1..).zip(lines(text)) {
        let row = match row(bytes, rules, &mut numbers) {
            Ok(None) => continue,
            Ok(Some(row)) => row,
            Err(text) => {
                labels.rows += 1;
                labels.refuse(line, text);
                continue;
            }
        };
        labels.rows += 1;
        if let Some(corners) = fit(row.corners, [1.0, 1.0], &mut labels.counts) {
            labels.counts.polygons += u64::from(row.polygon);
            labels.boxes.push(LabelBox { class: row.class, corners });
        }
    }
    labels.counts.duplicates += distinct(&mut labels.boxes);
    labels
}

/// Removes boxes that are there already, and says how many.
pub(super) fn distinct(boxes: &mut Vec<LabelBox>) -> u64 {
    let before = boxes.len();
    let mut seen = HashSet::with_capacity(before);
    boxes.retain(|b| seen.insert((b.class, b.corners.map(f32::to_bits))));
    (before - boxes.len()) as u64
}

/// The lines of a text, which end in `\n`, `\r\n` or `\r`.
fn lines(mut text: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        if text.is_empty() {
            return None;
        }
        let end = text.iter().position(|b| matches!(b, b'\n' | b'\r')).unwrap_or(text.len());
        let (line, rest) = text.split_at(end);
        text = rest.strip_prefix(b"\r\n").or_else(|| rest.get(1..)).unwrap_or_default();
        Some(line)
    })
}

struct Row {
    class: u32,
    /// Left, top, right, bottom.
    corners: [f64; 4],
    polygon: bool,
}

/// One row; nothing for a blank line. `numbers` is memory to be reused.
fn row(line: &[u8], rules: &Rules, numbers: &mut Vec<f64>) -> Result<Option<Row>, String> {
    let mut fields = Fields { rest: line, fields: 0, commas: 0, comma: false };
    let Some(first) = fields.next()? else { return Ok(None) };
    let class = class(first, rules.classes)?;
    numbers.clear();
    while let Some(field) = fields.next()? {
        numbers.push(number(field)?);
    }
    if fields.commas != 0 && fields.commas != numbers.len() {
        return Err("some values are separated by commas and some by spaces alone".to_string());
    }
    let (corners, polygon) = match numbers.as_slice() {
        all if rules.keypoints > 0 => {
            let columns = 5 + rules.keypoints;
            let [cx, cy, w, h, ..] = *all else { return Err(columns_of(all.len(), rules)) };
            if all.len() + 1 != columns {
                return Err(columns_of(all.len(), rules));
            }
            (centered([cx, cy, w, h])?, false)
        }
        &[cx, cy, w, h] => (centered([cx, cy, w, h])?, false),
        points if points.len() >= 6 && points.len().is_multiple_of(2) => (around(points)?, true),
        all => return Err(columns_of(all.len(), rules)),
    };
    Ok(Some(Row { class, corners, polygon }))
}

fn columns_of(numbers: usize, rules: &Rules) -> String {
    let columns = numbers + 1;
    let wanted = match rules.keypoints {
        0 => "5 (class and box) or 7, 9, 11 and so on (class and polygon)".to_string(),
        n => format!("{} (class, box and keypoints)", 5 + n),
    };
    format!("a row has {wanted} columns, this one {columns}")
}

/// The corners of a box given by its center and its size.
fn centered(values: [f64; 4]) -> Result<[f64; 4], String> {
    for (value, name) in values.into_iter().zip(["center's x", "center's y", "width", "height"]) {
        within(value, name)?;
    }
    let [cx, cy, w, h] = values;
    for (size, name) in [(w, "width"), (h, "height")] {
        if size < 0.0 {
            return Err(format!("the {name} is {size}: negative"));
        }
    }
    Ok([cx - w / 2.0, cy - h / 2.0, cx + w / 2.0, cy + h / 2.0])
}

/// The bounding box of a polygon.
fn around(points: &[f64]) -> Result<[f64; 4], String> {
    let mut corners = [f64::MAX, f64::MAX, f64::MIN, f64::MIN];
    for point in points.chunks_exact(2) {
        let &[x, y] = point else { continue };
        within(x, "x of a point of the polygon")?;
        within(y, "y of a point of the polygon")?;
        corners = [corners[0].min(x), corners[1].min(y), corners[2].max(x), corners[3].max(y)];
    }
    Ok(corners)
}

fn within(value: f64, name: &str) -> Result<(), String> {
    // Not a number is not within either.
    if (-ROUNDING..=1.0 + ROUNDING).contains(&value) {
        return Ok(());
    }
    let hint = if value.is_finite() && value > 2.0 { " (pixels?)" } else { "" };
    Err(format!("the {name} is {value}{hint}: not a fraction of the image, 0 to 1"))
}

fn class(field: &[u8], classes: Option<u32>) -> Result<u32, String> {
    let text = std::str::from_utf8(field).ok();
    let value: f64 = text
        .and_then(|t| t.parse().ok())
        .ok_or_else(|| format!("the class is {}, not a number", shown(field)))?;
    if !value.is_finite() || value.fract() != 0.0 {
        return Err(format!("the class is {value}, not a whole number"));
    }
    if value < 0.0 {
        return Err(format!("the class is {value}: negative"));
    }
    match classes {
        Some(n) if value >= f64::from(n) => match n {
            0 => Err(format!("class {value}, but there are no classes")),
            n => Err(format!("class {value}, but there are {n} classes, 0 to {}", n - 1)),
        },
        _ if value > f64::from(u32::MAX) => Err(format!("class {value} is too large a number")),
        _ => Ok(value as u32),
    }
}

fn number(field: &[u8]) -> Result<f64, String> {
    let value = std::str::from_utf8(field).ok().and_then(|text| text.parse::<f64>().ok());
    let value = value.ok_or_else(|| format!("{} is not a number", shown(field)))?;
    if value.is_finite() { Ok(value) } else { Err(format!("{} is not a finite number", shown(field))) }
}

/// A field in a message: quoted, and not long.
fn shown(field: &[u8]) -> String {
    let text = String::from_utf8_lossy(field);
    match text.char_indices().nth(32) {
        Some((end, _)) => format!("{:?}…", &text[..end]),
        None => format!("{text:?}"),
    }
}

/// The fields of a line, which blanks or single commas separate.
struct Fields<'a> {
    rest: &'a [u8],
    /// Fields and commas so far.
    fields: usize,
    commas: usize,
    /// Whether the last thing that was seen is a comma.
    comma: bool,
}

impl<'a> Fields<'a> {
    fn next(&mut self) -> Result<Option<&'a [u8]>, String> {
        while let [first, rest @ ..] = self.rest {
            match first {
                b' ' | b'\t' | b'\x0b' | b'\x0c' => {}
                b',' if self.comma || self.fields == 0 => {
                    return Err("a value is missing before a comma".to_string());
                }
                b',' => {
                    self.comma = true;
                    self.commas += 1;
                }
                _ => {
                    let end =
                        self.rest.iter().position(|b| matches!(b, b' ' | b'\t' | b'\x0b' | b'\x0c' | b','));
                    let (field, rest) = self.rest.split_at(end.unwrap_or(self.rest.len()));
                    self.rest = rest;
                    self.fields += 1;
                    self.comma = false;
                    return Ok(Some(field));
                }
            }
            self.rest = rest;
        }
        if self.comma { Err("a value is missing behind the last comma".to_string()) } else { Ok(None) }
    }
}

//! The `data.yaml` that describes a YOLO set.

use saphyr::{Scalar, Yaml, YamlLoader};
use saphyr_parser::{Event, Parser, ScanError, SpannedEventReceiver};

/// Lists within lists, so deep at most: the parser's tree is dropped recursively.
const DEPTH: usize = 64;

/// What a `data.yaml` says.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct DataYaml {
    /// The folder that the splits are relative to; itself relative to the file's.
    pub(super) path: Option<String>,
    /// Each split with its folders and lists of images: `train`, `val`, `test`.
    pub(super) splits: Vec<(&'static str, Vec<String>)>,
    /// The names of the classes; none where the file gives their number alone.
    pub(super) names: Vec<String>,
    /// How many classes there are, if the file says.
    pub(super) classes: Option<u32>,
    /// How many numbers of keypoints each row has (`kpt_shape`).
    pub(super) keypoints: usize,
}

/// What is wrong with a `data.yaml`, and the line from 1, where it is one line.
pub(super) type Refused = (Option<u64>, String);

/// Parses a `data.yaml`.
///
/// # Errors
/// Where it is no YAML, or its `names`, `nc`, `path` and splits are not what they should be.
pub(super) fn parse(text: &str) -> Result<DataYaml, Refused> {
    let root = load(text.strip_prefix('\u{feff}').unwrap_or(text))?;
    let mut data = DataYaml::default();
    let refuse = |text: String| Err((None, text));
    let Some(root) = root.filter(Yaml::is_mapping) else {
        return refuse("this is no mapping of keys to values".to_string());
    };
    let get = |key: &str| root.as_mapping_get(key).filter(|value| !value.is_null());
    data.path = match get("path").map(|value| (value, value.as_str())) {
        None => None,
        Some((_, Some(path))) => Some(path.to_string()),
        Some(_) => return refuse("`path` is no path".to_string()),
    };
    for (split, keys) in [("train", ["train", ""]), ("val", ["val", "validation"]), ("test", ["test", ""])] {
        let Some(value) = keys.into_iter().find_map(get) else { continue };
        let paths = match value {
            Yaml::Sequence(list) => list.iter().map(|item| item.as_str().map(str::to_string)).collect(),
            one => one.as_str().map(|path| vec![path.to_string()]),
        };
        let Some(paths) = paths else {
            return refuse(format!("`{split}` is neither a path nor a list of paths"));
        };
        data.splits.push((split, paths));
    }
    if let Some(names) = get("names") {
        data.names = class_names(names).map_err(|text| (None, text))?;
        data.classes = u32::try_from(data.names.len()).ok();
    }
    if let Some(nc) = get("nc") {
        let Some(nc) = nc.as_integer().and_then(|nc| u32::try_from(nc).ok()) else {
            return refuse("`nc` is no number of classes".to_string());
        };
        if data.classes.is_some_and(|names| names != nc) {
            return refuse(format!("`nc` is {nc}, but there are {} `names`", data.names.len()));
        }
        data.classes = Some(nc);
    }
    if let Some(shape) = get("kpt_shape") {
        let shape: Option<Vec<usize>> = shape
            .as_vec()
            .and_then(|list| list.iter().map(|n| usize::try_from(n.as_integer()?).ok()).collect());
        let numbers = match shape.as_deref() {
            Some(&[points, numbers @ (2 | 3)]) => points.checked_mul(numbers),
            _ => None,
        };
        let numbers = numbers.filter(|n| (1..=100_000).contains(n));
        let Some(numbers) = numbers else {
            return refuse("`kpt_shape` is not [number of points, 2 or 3]".to_string());
        };
        data.keypoints = numbers;
    }
    Ok(data)
}

fn class_names(names: &Yaml<'_>) -> Result<Vec<String>, String> {
    if let Yaml::Sequence(list) = names {
        let name =
            |(n, item): (usize, &Yaml<'_>)| text_of(item).ok_or(format!("`names`: entry {n} is no name"));
        return list.iter().enumerate().map(name).collect();
    }
    let Yaml::Mapping(map) = names else {
        return Err("`names` is neither a list of names nor a mapping of numbers to names".to_string());
    };
    let mut all = vec![None; map.len()];
    for (key, value) in map {
        let number = text_of(key).and_then(|key| key.parse::<usize>().ok());
        let number = number.ok_or("`names`: a key is no class number".to_string())?;
        let last = all.len() - 1;
        let Some(place) = all.get_mut(number) else {
            return Err(format!(
                "`names` has {} entries but the class {number}: they go from 0 to {last}",
                last + 1
            ));
        };
        if place.is_some() {
            return Err(format!("`names` has the class {number} twice"));
        }
        *place = Some(text_of(value).ok_or(format!("`names`: the name of class {number} is none"))?);
    }
    Ok(all.into_iter().flatten().collect())
}

/// A name, which may look like a number or a truth value.
fn text_of(value: &Yaml<'_>) -> Option<String> {
    match value {
        Yaml::Value(Scalar::String(text)) => Some(text.to_string()),
        Yaml::Value(Scalar::Integer(n)) => Some(n.to_string()),
        Yaml::Value(Scalar::FloatingPoint(x)) => Some(x.to_string()),
        Yaml::Value(Scalar::Boolean(b)) => Some(b.to_string()),
        _ => None,
    }
}

/// The first document.
fn load(text: &str) -> Result<Option<Yaml<'_>>, Refused> {
    let refused = |e: &ScanError| {
        let line = e.marker().line() as u64;
        (Some(line), format!("this is no YAML: {}, column {}", e.info(), e.marker().col() + 1))
    };
    let mut loader = YamlLoader::default();
    let mut depth = 0usize;
    for event in Parser::new_from_str(text) {
        let (event, span) = event.map_err(|e| refused(&e))?;
        match event {
            Event::SequenceStart(..) | Event::MappingStart(..) => depth += 1,
            Event::SequenceEnd | Event::MappingEnd => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > DEPTH {
            let line = Some(span.start.line() as u64);
            return Err((line, format!("lists are nested more than {DEPTH} deep")));
        }
        loader.on_event(event, span);
        if let Some(e) = loader.error() {
            return Err(refused(e));
        }
    }
    Ok(loader.into_documents().into_iter().next())
}

//! What a path is: which kind of set, and where its parts are.

use std::path::{Path, PathBuf};

use super::data_yaml::{self, DataYaml};
use super::listing::{self, Listing, is_image, listed};
use crate::error::{Error, ErrorKind, Place, Result};

/// A set as it lies on the disk.
#[derive(Debug)]
pub(super) enum Layout {
    Yolo(Yolo),
    Coco {
        annotations: PathBuf,
        /// Folders in which the images may be, the likeliest first.
        folders: Vec<PathBuf>,
    },
}

/// Images with a label file each.
#[derive(Debug)]
pub(super) struct Yolo {
    /// What was found, in words.
    pub(super) found: String,
    /// What the paths of the images are relative to.
    pub(super) root: PathBuf,
    /// Folders of images, and text files that list images.
    pub(super) images: Vec<PathBuf>,
    /// Says how many classes there are and what else the rows hold.
    pub(super) data: DataYaml,
}

/// A larger `data.yaml` or `classes.txt` is refused: it is something else.
const TEXT: u64 = 16 << 20;
const SPLITS: [&str; 4] = ["train", "val", "valid", "test"];

fn error(kind: ErrorKind, path: &Path, text: impl Into<String>) -> Error {
    Error::new(kind, text).at(Place { path: Some(path.to_path_buf()), ..Place::default() })
}

fn read(path: &Path) -> Result<String> {
    let bytes = listing::read(path, TEXT)?;
    String::from_utf8(bytes).map_err(|_| error(ErrorKind::Corrupt, path, "the file is not UTF-8 text"))
}

fn exists(path: PathBuf) -> Option<PathBuf> {
    path.exists().then_some(path)
}

fn has_extension(path: &Path, wanted: &[&str]) -> bool {
    let extension = path.extension().and_then(|e| e.to_str()).unwrap_or_default();
    wanted.iter().any(|w| w.eq_ignore_ascii_case(extension))
}

/// Says what `path` is.
///
/// # Errors
/// [`ErrorKind::Io`]; [`ErrorKind::Unsupported`] where it is nothing known, with what was looked for;
/// [`ErrorKind::InvalidArgument`] for a split that the set doesn't have; [`ErrorKind::Corrupt`] for a `data.yaml`
/// that makes no sense.
pub(super) fn recognise(path: &Path, split: Option<&str>) -> Result<Layout> {
    let meta =
        std::fs::metadata(path).map_err(|e| Error::io(path, "the detection set can't be opened", e))?;
    if meta.is_dir() {
        return folder(path, split);
    }
    if has_extension(path, &["yaml", "yml"]) {
        return yaml(path, split).map(Layout::Yolo);
    }
    if has_extension(path, &["json"]) {
        return Ok(Layout::Coco { folders: image_folders(path), annotations: path.to_path_buf() });
    }
    if has_extension(path, &["txt"]) {
        let root = path.parent().unwrap_or(path).to_path_buf();
        let found = format!("the images that {} lists, with YOLO labels", path.display());
        return Ok(Layout::Yolo(Yolo {
            found,
            root,
            images: vec![path.to_path_buf()],
            data: DataYaml::default(),
        }));
    }
    let text = "this is no detection set: neither a folder, a data.yaml, a list of images (.txt) nor COCO annotations (.json)";
    Err(error(ErrorKind::Unsupported, path, text))
}

/// A split of a `data.yaml`.
fn yaml(path: &Path, split: Option<&str>) -> Result<Yolo> {
    let data = data_yaml::parse(&read(path)?).map_err(|(line, text)| {
        error(ErrorKind::Corrupt, path, text).at(Place { line, ..Place::default() })
    })?;
    let split = split.unwrap_or("train");
    let Some((_, listed)) = data.splits.iter().find(|(name, _)| *name == split) else {
        let there: Vec<&str> = data.splits.iter().map(|(name, _)| *name).collect();
        let text = format!("there is no split `{split}`; there are: {}", there.join(", "));
        return Err(error(ErrorKind::InvalidArgument, path, text));
    };
    let here = path.parent().unwrap_or(path);
    // The folder named by `path` where it is; a set that was moved lies around its data.yaml.
    let named = data.path.as_ref().map(|named| here.join(named));
    let gone = named.as_ref().filter(|named| !named.exists()).map(|named| named.display().to_string());
    if let Some(gone) = &gone {
        let path = path.display();
        tracing::warn!(
            "the `path` of {path}, {gone}, is not there: the images are looked for beside the file"
        );
    }
    let bases: Vec<PathBuf> = named.into_iter().chain([here.to_path_buf()]).collect();
    let mut images = Vec::with_capacity(listed.len());
    for entry in listed {
        // Some tools write `../train/images` for what lies beside the data.yaml.
        let inner = entry.strip_prefix("../");
        let places = bases.iter().map(|base| base.join(entry));
        let places =
            places.chain(inner.into_iter().flat_map(|inner| bases.iter().map(move |base| base.join(inner))));
        let places: Vec<PathBuf> = places.collect();
        let Some(place) = places.iter().find(|place| place.exists()) else {
            let tried: Vec<String> = places.iter().map(|place| place.display().to_string()).collect();
            let text = format!("the images of `{split}` are not there; looked for {}", tried.join(", "));
            return Err(error(ErrorKind::Io, path, text));
        };
        images.push(place.clone());
    }
    let root = bases.iter().find(|base| base.is_dir()).cloned().unwrap_or_else(|| here.to_path_buf());
    let shown: Vec<String> = images.iter().map(|path| path.display().to_string()).collect();
    let gone = gone.map(|gone| format!(" (its `path`, {gone}, is not there)")).unwrap_or_default();
    let found = format!("split {split} of {}{gone}: {} with YOLO labels", path.display(), shown.join(", "));
    Ok(Yolo { found, root, images, data })
}

/// Images in one folder, with the names of the classes where a `classes.txt` has them.
fn images_in(set: &Path, images: PathBuf) -> Result<Layout> {
    let found = format!("{} with YOLO labels", images.display());
    let mut data = DataYaml::default();
    if let Some(list) = [set.join("classes.txt"), set.join("labels/classes.txt")].into_iter().find_map(exists)
    {
        data.names = read(&list)?.lines().map(|l| l.trim().to_string()).filter(|l| !l.is_empty()).collect();
        data.classes = u32::try_from(data.names.len()).ok();
    }
    Ok(Layout::Yolo(Yolo { found, root: images.clone(), images: vec![images], data }))
}

fn folder(path: &Path, split: Option<&str>) -> Result<Layout> {
    for name in ["data.yaml", "data.yml", "dataset.yaml"] {
        if let Some(file) = exists(path.join(name)) {
            return yaml(&file, split).map(Layout::Yolo);
        }
    }
    let wanted = split.unwrap_or("train");
    let no_split = |there: &[&str]| {
        let text = format!("there is no split `{wanted}`; there are: {}", there.join(", "));
        error(ErrorKind::InvalidArgument, path, text)
    };
    let images = path.join("images");
    if !path.join("labels").is_dir()
        && let Some(annotations) = annotations_in(path, wanted)?
    {
        let mut folders = image_folders(&annotations);
        folders.insert(0, path.join(wanted));
        return Ok(Layout::Coco { annotations, folders });
    }
    if images.is_dir() {
        let there: Vec<&str> = SPLITS.into_iter().filter(|name| images.join(name).is_dir()).collect();
        if there.contains(&wanted) {
            return images_in(path, images.join(wanted));
        }
        return if split.is_some() { Err(no_split(&there)) } else { images_in(path, images) };
    }
    let there: Vec<&str> =
        SPLITS.into_iter().filter(|name| path.join(name).join("images").is_dir()).collect();
    if there.contains(&wanted) {
        return images_in(path, path.join(wanted).join("images"));
    }
    if !there.is_empty() {
        return Err(no_split(&there));
    }
    if let Ok(Listing { images, texts, .. }) = Listing::of(path)
        && !images.is_empty()
        && !texts.is_empty()
    {
        return images_in(path, path.to_path_buf());
    }
    let text = "the folder holds no detection set; looked for data.yaml, images/ with labels/, train/images/, images with .txt files \
        beside them, annotations/instances_*.json and _annotations.coco.json";
    Err(error(ErrorKind::Unsupported, path, text))
}

/// COCO's annotations of a split, where a folder has them.
fn annotations_in(path: &Path, split: &str) -> Result<Option<PathBuf>> {
    let exported = [path.join(split).join("_annotations.coco.json"), path.join("_annotations.coco.json")];
    if let Some(file) = exported.into_iter().find_map(exists) {
        return Ok(Some(file));
    }
    let folder = path.join("annotations");
    let Ok(entries) = std::fs::read_dir(&folder) else { return Ok(None) };
    let start = format!("instances_{split}");
    let named = |file: &PathBuf| {
        let name = file.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        name.starts_with(&start) && has_extension(file, &["json"])
    };
    let mut files: Vec<PathBuf> =
        entries.filter_map(|entry| Some(entry.ok()?.path())).filter(named).collect();
    files.sort();
    match files.as_slice() {
        [_, _, ..] => {
            let text = format!("several files of annotations begin with {start}: open one of them");
            Err(error(ErrorKind::InvalidArgument, &folder, text))
        }
        _ => Ok(files.pop()),
    }
}

/// Where the images of a file of annotations may be.
fn image_folders(annotations: &Path) -> Vec<PathBuf> {
    let here = annotations.parent().unwrap_or(annotations);
    let above = here.parent().unwrap_or(here);
    let stem = annotations.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
    let split = stem.rsplit('_').next().unwrap_or(stem);
    let mut folders = vec![here.to_path_buf()];
    for base in [here, above] {
        for inner in [split, "images", "data"] {
            folders.push(base.join(inner));
        }
        folders.push(base.join("images").join(split));
    }
    folders.push(above.to_path_buf());
    folders
}

/// The images of a set: what their paths are relative to, the paths, and the label files that are no image's.
#[derive(Debug, Default)]
pub(super) struct Images {
    pub(super) paths: Vec<PathBuf>,
    pub(super) orphans: Vec<PathBuf>,
    pub(super) others: u64,
}

impl Yolo {
    /// Lists the images, relative to `root` as far as they are below it.
    ///
    /// # Errors
    /// [`ErrorKind::Io`]; [`ErrorKind::Empty`] where there is none.
    pub(super) fn list(&self) -> Result<Images> {
        let mut all = Images::default();
        for images in &self.images {
            if images.is_dir() {
                self.walk(images, &mut all)?;
            } else if is_image(images) {
                all.paths.push(images.clone());
            } else {
                let (paths, others) = listed(images, &self.root)?;
                all.paths.extend(paths);
                all.others += others;
            }
        }
        if all.paths.is_empty() {
            let first = self.images.first().unwrap_or(&self.root);
            return Err(error(ErrorKind::Empty, first, "there are no images"));
        }
        for path in &mut all.paths {
            if let Ok(relative) = path.strip_prefix(&self.root) {
                *path = relative.to_path_buf();
            }
        }
        Ok(all)
    }

    fn walk(&self, folder: &Path, all: &mut Images) -> Result<()> {
        let listing = Listing::of(folder)?;
        let labels = listing::label_folder(folder);
        let beside = labels == folder;
        all.others += listing.others;
        if beside {
            all.orphans.extend(listing.orphans(&listing.texts).into_iter().map(|text| labels.join(text)));
        } else {
            all.others += listing.texts.len() as u64; // beside the images, where no label is looked for
            let texts = if labels.is_dir() { Listing::of(&labels)?.texts } else { Vec::new() };
            all.orphans.extend(listing.orphans(&texts).into_iter().map(|text| labels.join(text)));
        }
        all.paths.extend(listing.images.iter().map(|image| folder.join(image)));
        Ok(())
    }
}

//! `warpfeed inspect`: what a data set is, and how a network will see it.

mod sheet;
mod spread;
mod survey;

use std::fmt::Write as _;
use std::io::{self, Write};
use std::path::PathBuf;

use anyhow::anyhow;
use clap::value_parser;
use serde_json::{Value, json};
use warpfeed::source::{Dataset, Pictures};
use warpfeed::{Device, Field, FieldKind, Loader};

use crate::images::{Found, Recipe, counted, error_json, line, path_json};
use spread::bars;
use survey::Survey;

/// Of more classes, so many of the largest and of the smallest are shown.
const CLASSES: usize = 8;
/// And so many of the flaws.
const FLAWS: usize = 5;

/// Says what a data set is: its samples and fields, the balance of its classes, the sizes of its images, files and boxes, and what was left out.
///
/// PATH is a folder of class folders or of images, tar shards (a file, a folder of them, a pattern), or a detection set. Of images the heads are
/// read, of large sets those of a part; `warpfeed verify` decodes them all. Nothing is written but what --sheet asks for.
///
/// The exit status is 0, or 2 where nothing could be read or the sheet not be written.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The data set
    path: PathBuf,
    /// Looks at this split of a detection set [default: train]
    #[arg(long, value_name = "NAME")]
    split: Option<String>,
    /// Writes a contact sheet to this PNG file: a shuffled batch as the network will see it, with its boxes; what is no image is hatched.
    /// Nothing but a PNG outside of the data is overwritten
    #[arg(long, value_name = "FILE.png")]
    sheet: Option<PathBuf>,
    /// Samples on the sheet [default: 16, or 9 with the recipe yolo]
    #[arg(long, value_name = "N", requires = "sheet", value_parser = value_parser!(u64).range(1..=1024))]
    size: Option<u64>,
    /// Which samples, and how they are augmented
    #[arg(long, value_name = "S", requires = "sheet", default_value = "0")]
    seed: u64,
    /// How images become rows [default: yolo where there are boxes, else imagenet]
    #[arg(long, value_enum)]
    recipe: Option<Recipe>,
    /// Prints one JSON document
    #[arg(long)]
    json: bool,
}

/// Surveys, writes the sheet if one is asked for, and prints what was found.
///
/// # Errors
/// A path at which nothing can be read, a sheet that can't be written, a stdout that is closed.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let open = Found::open(&args.path, args.split.as_deref());
    let found = open.map_err(|e| anyhow!(line(&e.to_string())))?;
    if let Some(path) = &args.sheet {
        sheet::check(path, &args.path, &found)?;
    }
    let recipe = args.recipe.unwrap_or_else(|| Recipe::of(found.set.labels()));
    let survey = Survey::of(&found)?;
    let loader = Loader::builder(found.set.clone()).decode(recipe.decoder()).workers(0);
    let fields: Vec<Field> = loader.build(&Device::cpu())?.spec().fields().cloned().collect();
    let balance = balance(&found, &survey);
    if let Some(path) = &args.sheet {
        let size = args.size.map_or(if recipe == Recipe::Yolo { 9 } else { 16 }, |n| n as usize);
        sheet::write(path, &found, recipe, size, args.seed)?;
    }
    if args.json {
        let mut json = survey.json();
        path_json(&mut json, "path", &args.path);
        json["other_splits"] = json!(found.others);
        json["found"] = found.set.to_string().into();
        json["set"] = found.facts();
        json["flaws"] = found.flaws.iter().map(error_json).collect();
        json["recipe"] = recipe.name().into();
        json["fields"] = fields.iter().map(field_json).collect();
        let class = |(name, n): &(String, u64)| json!({ "class": name, "count": n });
        json["classes"] = balance.iter().map(class).collect();
        json["sheet"] = Value::Null;
        if let Some(path) = &args.sheet {
            path_json(&mut json, "sheet", path);
        }
        writeln!(io::stdout(), "{json}")?;
    } else {
        writeln!(io::stdout(), "{}", text(args, &found, &survey, (recipe, &fields), &balance))?;
    }
    Ok(())
}

fn field_json(field: &Field) -> Value {
    let (shape, kind) = match field.kind() {
        FieldKind::Fixed { shape } => (Some(json!(shape)), "fixed"),
        FieldKind::Ragged { max_row } => (Some(json!([max_row])), "ragged"),
        _ => (None, "text"),
    };
    json!({ "name": field.name(), "dtype": field.dtype().name(), "shape": shape, "kind": kind })
}

/// The classes with the number of their images, or of their boxes, in the order of the classes.
fn balance(found: &Found, survey: &Survey) -> Vec<(String, u64)> {
    let names = found.class_names();
    let name = |class: usize| names.get(class).cloned().unwrap_or_else(|| class.to_string());
    match &*found.set {
        Dataset::Folder(folder) => {
            folder.class_counts().iter().enumerate().map(|(class, n)| (name(class), *n)).collect()
        }
        Dataset::Detection(set) => {
            let counts = &set.counts().per_class;
            let known = set.classes().unwrap_or(0);
            let last = counts.keys().next_back().map_or(known, |last| known.max(last + 1));
            (0..last).map(|class| (name(class as usize), counts.get(&class).copied().unwrap_or(0))).collect()
        }
        _ => survey.classes.iter().map(|(class, n)| (class.to_string(), *n)).collect(),
    }
}

fn text(
    args: &Args,
    found: &Found,
    survey: &Survey,
    (recipe, fields): (Recipe, &[Field]),
    balance: &[(String, u64)],
) -> String {
    let mut out = format!("{}\n", found.text());
    if !found.others.is_empty() {
        let names = line(&found.others.join(", "));
        let _ = writeln!(out, "not looked at: {names} (`--split NAME` takes another split)");
    }
    for flaw in found.flaws.iter().take(FLAWS) {
        let _ = writeln!(out, "{:?}: {}", flaw.kind(), line(&flaw.to_string()));
    }
    if found.flaws.len() > FLAWS {
        let more = counted((found.flaws.len() - FLAWS) as u64, "more flaw");
        let _ = writeln!(out, "and {more}: `warpfeed verify` names all");
    }
    if let Some(advice) = &found.advice {
        let _ = writeln!(out, "a loader takes it as it is only if you {advice}");
    }
    let _ = writeln!(out, "\na sample as a loader gives it (recipe {}):", recipe.name());
    for field in fields {
        let _ = match (field.name(), field.kind()) {
            ("boxes", FieldKind::Ragged { max_row }) => {
                let most = max_row / 5;
                writeln!(
                    out,
                    "  {field}: 5 numbers a box (class, center x and y, width, height), boxes of an image: {most} at most"
                )
            }
            _ => writeln!(out, "  {field}"),
        };
    }
    let boxes = matches!(&*found.set, Dataset::Detection(_));
    if !balance.is_empty() {
        let of_all = matches!(&*found.set, Dataset::Folder(_) | Dataset::Detection(_));
        let part = if of_all { String::new() } else { survey.part() };
        let what = if boxes { "boxes" } else { "images" };
        let mut sorted: Vec<&(String, u64)> = balance.iter().collect();
        sorted.sort_by_key(|(_, n)| std::cmp::Reverse(*n));
        let _ = writeln!(out, "\n{what} of each class ({}){part}:", balance.len());
        let shown = |(name, n): &&(String, u64)| (line(name).chars().take(24).collect::<String>(), *n);
        if sorted.len() <= 2 * CLASSES + 1 {
            out += &bars(&sorted.iter().map(shown).collect::<Vec<_>>(), None);
        } else {
            let most = sorted.first().map(|(_, n)| *n);
            let (first, rest) = sorted.split_at(CLASSES);
            let (between, last) = rest.split_at(rest.len() - CLASSES);
            out += &bars(&first.iter().map(shown).collect::<Vec<_>>(), most);
            let _ = writeln!(out, "  … {} more classes …", between.len());
            out += &bars(&last.iter().map(shown).collect::<Vec<_>>(), most);
        }
    }
    out += &survey.text(boxes);
    if let Some(path) = &args.sheet {
        let _ = write!(out, "\ncontact sheet: {}\n", line(&path.to_string_lossy()));
    }
    out.truncate(out.trim_end().len());
    out
}

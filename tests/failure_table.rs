//! `docs/FAILURES.md` against the sources: what it names exists, and what exists it names.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test stops at the first surprise")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The rows that need tests by now: all but those of text, tables and arrays.
const ROWS: [u16; 114] = [
    1, 2, 4, 5, 7, 9, 11, 12, 13, 14, 15, 16, 18, 19, 21, 22, 23, 24, 25, 27, 28, 29, 31, 32, 34, 36, 38, 39,
    40, 41, 42, 44, 46, 47, 49, 51, 52, 53, 54, 56, 58, 59, 60, 61, 63, 64, 65, 67, 69, 70, 71, 73, 75, 77,
    79, 80, 82, 83, 84, 86, 87, 88, 89, 90, 91, 93, 94, 96, 97, 98, 101, 102, 103, 104, 106, 107, 109, 111,
    113, 114, 115, 117, 119, 121, 122, 123, 124, 125, 127, 129, 130, 131, 134, 135, 136, 137, 139, 141, 142,
    143, 144, 146, 148, 168, 169, 170, 172, 174, 176, 177, 178, 181, 182, 184,
];
const ISSUES: [&str; 1] = ["text, tables, arrays"];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The table's last column, by row.
fn table(page: &str) -> BTreeMap<u16, String> {
    let mut rows = BTreeMap::new();
    for line in page.lines().filter_map(|l| l.strip_prefix("| ")?.strip_suffix(" |")) {
        let cells: Vec<&str> = line.split(" | ").collect();
        let Ok(row) = cells[0].parse() else { continue };
        assert_eq!(cells.len(), 4, "row {row}");
        assert!(rows.last_key_value().is_none_or(|(last, _)| *last < row), "row {row} is out of order");
        rows.insert(row, cells[3].to_string());
    }
    rows
}

/// What is wrong with an entry.
fn problem(row: u16, entry: &str, read: &impl Fn(&str) -> Option<String>) -> Option<String> {
    if let Some(issue) = entry.strip_prefix("issue: ") {
        if !ISSUES.contains(&issue) {
            return Some(format!("row {row}: there is no issue {issue:?}"));
        }
        return ROWS.contains(&row).then(|| format!("row {row} has no test"));
    }
    entry.split(", ").find_map(|test| {
        let named = test.strip_prefix('`').and_then(|t| t.strip_suffix('`')).and_then(|t| t.split_once("::"));
        let Some((path, name)) = named else { return Some(format!("row {row}: {test} is no file::test")) };
        let Some(source) = read(path) else { return Some(format!("row {row}: there is no file {path}")) };
        let there = source.contains(&format!("fn {name}("));
        (!there).then(|| format!("row {row}: {path} has no test {name}"))
    })
}

/// The rows that the names of a source's tests begin with.
fn rows_of_tests(source: &str) -> Vec<(u16, String)> {
    let names = source.lines().filter_map(|l| l.trim_start().strip_prefix("fn ")?.split('(').next());
    let row = |name: &str| name.strip_prefix("row_")?.split('_').next()?.parse().ok();
    names.filter_map(|name| Some((row(name)?, name.to_string()))).collect()
}

fn sources() -> Vec<(String, String)> {
    fn walk(folder: &Path, out: &mut Vec<PathBuf>) {
        for path in std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()) {
            if path.is_dir() { walk(&path, out) } else { out.push(path) }
        }
    }
    let mut files = Vec::new();
    ["src", "tests"].iter().for_each(|folder| walk(&root().join(folder), &mut files));
    let rust = files.into_iter().filter(|f| f.extension().is_some_and(|e| e == "rs"));
    let relative = |f: &Path| f.strip_prefix(root()).unwrap().to_str().unwrap().to_string();
    rust.map(|f| (relative(&f), std::fs::read_to_string(f).unwrap())).collect()
}

#[test]
fn every_row_is_held_by_tests_that_exist_or_by_an_issue() {
    let read = |path: &str| (path == "a.rs").then(|| "fn row_01_a() {}".to_string());
    for bad in
        ["`a.rs::row_01_b`", "`b.rs::row_01_a`", "row_01_a", "issue: text, tables, arrays", "issue: later"]
    {
        assert!(problem(1, bad, &read).is_some(), "{bad}");
    }
    for (row, good) in [(1, "`a.rs::row_01_a`"), (152, "issue: text, tables, arrays")] {
        assert_eq!(problem(row, good, &read), None);
    }

    let table = table(&std::fs::read_to_string(root().join("docs/FAILURES.md")).unwrap());
    let missing: Vec<_> = ROWS.iter().filter(|row| !table.contains_key(row)).collect();
    assert!(missing.is_empty(), "rows without an entry: {missing:?}");
    let read = |path: &str| std::fs::read_to_string(root().join(path)).ok();
    let problems: Vec<_> = table.iter().filter_map(|(row, entry)| problem(*row, entry, &read)).collect();
    assert!(problems.is_empty(), "{problems:#?}");
}

#[test]
fn every_test_of_a_row_is_in_the_table() {
    let page = "| row | report | x | held by |\n|---|---|---|---|\n| 7 | a | b | `t.rs::row_07_x` |\n";
    assert_eq!(table(page).get(&7).unwrap(), "`t.rs::row_07_x`");
    let source = "    fn row_07_x() {\nfn row_08_y() {\nfn rows(&self) {\nlet row_09_z = 1;";
    assert_eq!(rows_of_tests(source), [(7, "row_07_x".to_string()), (8, "row_08_y".to_string())]);

    let table = table(&std::fs::read_to_string(root().join("docs/FAILURES.md")).unwrap());
    let missing: Vec<_> = sources()
        .into_iter()
        .flat_map(|(path, source)| {
            rows_of_tests(&source).into_iter().map(move |(row, name)| (path.clone(), row, name))
        })
        .filter(|(path, row, name)| !table.get(row).is_some_and(|e| e.contains(&format!("`{path}::{name}`"))))
        .collect();
    assert!(missing.is_empty(), "not in docs/FAILURES.md: {missing:#?}");
}

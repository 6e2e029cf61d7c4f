//! The repository's house rules that no lint holds. Each check is first run on a bad example.

#![allow(clippy::panic, clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::path::{Path, PathBuf};
use std::process::Command;

const TOP_LEVEL: [&str; 16] = [
    ".ci",
    ".gitignore",
    "Cargo.lock",
    "Cargo.toml",
    "LICENSE-APACHE",
    "LICENSE-MIT",
    "README.md",
    "benches",
    "clippy.toml",
    "docs",
    "examples",
    "include",
    "kernels",
    "rustfmt.toml",
    "src",
    "tests",
];
const MAX_LINES: usize = 500;
const MAX_LIB_LINES: usize = 60;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The files under the folders of sources, relative to the root.
fn files() -> Vec<PathBuf> {
    fn walk(folder: &Path, out: &mut Vec<PathBuf>) {
        let Ok(entries) = std::fs::read_dir(folder) else { return };
        for path in entries.map(|e| e.unwrap().path()) {
            match path.file_name().and_then(|n| n.to_str()) {
                Some("target") => {}
                _ if path.is_dir() => walk(&path, out),
                _ => out.push(path.strip_prefix(root()).unwrap().to_path_buf()),
            }
        }
    }
    let mut out = Vec::new();
    for folder in ["src", "kernels", "examples", "tests", "benches", "docs", "include"] {
        walk(&root().join(folder), &mut out);
    }
    assert!(out.len() > 5, "the sources were not found: {out:?}");
    out
}

fn rust_sources() -> impl Iterator<Item = (PathBuf, String)> {
    let rust = files().into_iter().filter(|f| f.extension().is_some_and(|e| e == "rs"));
    rust.map(|f| (f.clone(), std::fs::read_to_string(root().join(f)).unwrap()))
}

/// A part of the path that says nothing about what is inside.
fn vague(path: &Path) -> Option<String> {
    let vague = |stem: &str| {
        let mut words = stem.split(['_', '-', '.']);
        words.any(|w| matches!(w, "util" | "utils" | "helper" | "helpers" | "common"))
    };
    path.iter().map(|p| p.to_string_lossy().to_lowercase()).find(|p| vague(p))
}

/// How many lines stand before the file's section of tests.
fn lines_before_tests(source: &str) -> usize {
    let lines: Vec<&str> = source.lines().collect();
    let section = lines.windows(2).position(|pair| {
        let cfg = pair[0].starts_with("#[cfg(") && pair[0].contains("test");
        cfg && pair[1].starts_with("mod ")
    });
    section.unwrap_or(lines.len())
}

fn code_lines(source: &str) -> usize {
    source.lines().map(str::trim).filter(|l| !l.is_empty() && !l.starts_with("//")).count()
}

/// The lines of attributes that leave a test out and do not say why.
fn ignored_without_reason(source: &str) -> Vec<usize> {
    let bad = |line: &str| {
        let line = line.trim();
        let ignore = line.strip_prefix("#[").and_then(|l| {
            let at = if l.starts_with("cfg_attr") {
                l.rfind("ignore")
            } else {
                l.starts_with("ignore").then_some(0)
            };
            at.map(|at| &l[at + "ignore".len()..])
        });
        ignore.is_some_and(|rest| {
            let reason = rest.trim_start().strip_prefix('=').map(str::trim_start);
            reason.is_none_or(|r| r.starts_with("\"\"") || !r.starts_with('"'))
        })
    };
    source.lines().enumerate().filter(|(_, l)| bad(l)).map(|(n, _)| n + 1).collect()
}

#[test]
fn a_file_is_named_for_what_is_inside() {
    for bad in ["src/utils.rs", "tests/common/mod.rs", "src/loader/test_helpers.rs"] {
        assert!(vague(Path::new(bad)).is_some(), "{bad}");
    }
    assert_eq!(vague(Path::new("src/utility.rs")), None);
    let found: Vec<_> = files().into_iter().filter(|f| vague(f).is_some()).collect();
    assert!(found.is_empty(), "name the noun in it: {found:?}");
}

#[test]
fn files_are_short() {
    let long = "x\n".repeat(MAX_LINES + 1);
    assert_eq!(lines_before_tests(&long), MAX_LINES + 1);
    assert_eq!(lines_before_tests(&format!("x\n\n#[cfg(test)]\nmod tests {{\n{long}}}")), 2);
    let found: Vec<_> = rust_sources()
        .filter(|(path, _)| path.starts_with("src"))
        .map(|(path, source)| (path, lines_before_tests(&source)))
        .filter(|(_, lines)| *lines > MAX_LINES)
        .collect();
    assert!(found.is_empty(), "over {MAX_LINES} lines before the tests: {found:?}");
}

#[test]
fn the_crate_root_only_declares() {
    assert_eq!(code_lines("//! docs\n\nmod a;\n    // why\npub use a::B;\n"), 2);
    let source = std::fs::read_to_string(root().join("src/lib.rs")).unwrap();
    let lines = code_lines(&source);
    assert!(lines < MAX_LIB_LINES, "src/lib.rs has {lines} lines of code: {MAX_LIB_LINES} are too many");
}

#[test]
fn an_ignored_test_says_why() {
    let bad = "    #[ignore]\n#[ignore = \"\"]\n#[cfg_attr(miri, ignore)]\n#[cfg_attr(miri, ignore = \"slow\")]\n#[ignore = \"needs a GPU\"]\n";
    assert_eq!(ignored_without_reason(bad), [1, 2, 3]);
    let found: Vec<_> = rust_sources()
        .flat_map(|(path, source)| {
            ignored_without_reason(&source).into_iter().map(move |n| (path.clone(), n))
        })
        .collect();
    assert!(found.is_empty(), "say why: #[ignore = \"…\"]: {found:?}");
}

#[test]
fn the_top_level_holds_only_what_belongs_there() {
    // What is committed counts: a file of a user's beside it is no one's business.
    let listing = Command::new("git").args(["ls-files", "-z"]).current_dir(root()).output();
    let listing = match listing {
        Ok(out) if out.status.success() && !out.stdout.is_empty() => out.stdout,
        _ => {
            println!("skipped: this is no git checkout");
            return;
        }
    };
    let listing = String::from_utf8(listing).unwrap();
    let unknown = |files: &str| -> Vec<String> {
        let tops = files.split_terminator('\0').filter_map(|f| f.split('/').next());
        let mut found: Vec<_> = tops.filter(|t| !TOP_LEVEL.contains(t)).map(Into::into).collect();
        found.dedup();
        found
    };
    assert_eq!(unknown("src/lib.rs\0notes.txt\0scripts/a\0"), ["notes.txt", "scripts"]);
    assert!(unknown(&listing).is_empty(), "at the top level: {:?}", unknown(&listing));
    assert!(listing.split('\0').any(|f| f == "Cargo.lock"), "Cargo.lock is committed");
}

//! A module imports only from lower ranks: `loader` alone sees the whole, a source knows nothing of
//! devices, the pool nothing of sources. A new module must be given a rank here.

#![allow(clippy::panic, clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::path::{Path, PathBuf};

const RANKS: [&[&str]; 7] = [
    &["error", "sync", "copy"],
    &["spec", "metrics", "random", "trace"],
    &["row", "sampler", "source", "device"],
    &["checkpoint", "decode", "pool", "transform", "tune"],
    &["loader"],
    &["ffi"],
    &["fuzzing", "lib", "bin"],
];

fn rank(module: &str) -> Option<usize> {
    RANKS.iter().position(|modules| modules.contains(&module))
}

/// An identifier, `::`, or one other character, with its line from 1.
#[derive(Debug)]
struct Token<'a> {
    text: &'a str,
    line: usize,
}

/// The tokens of Rust source, without comments, strings, characters and lifetimes.
fn tokens(source: &str) -> Vec<Token<'_>> {
    let bytes = source.as_bytes();
    let ident = |b: u8| b == b'_' || b.is_ascii_alphanumeric() || b >= 0x80;
    let (mut out, mut i, mut line) = (Vec::new(), 0, 1);
    while i < bytes.len() {
        let rest = &source[i..];
        let end = if rest.starts_with("//") {
            i + rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            i + block_comment(rest)
        } else if let Some(n) = string(rest) {
            i + n
        } else if bytes[i] == b'\'' {
            i + character(rest)
        } else {
            let end = if rest.starts_with("::") {
                i + 2
            } else if ident(bytes[i]) {
                let raw = if rest.starts_with("r#") { 2 } else { 0 };
                i + raw + rest.bytes().skip(raw).take_while(|&b| ident(b)).count()
            } else {
                i + 1
            };
            if !bytes[i].is_ascii_whitespace() {
                let text = source[i..end].trim_start_matches("r#");
                out.push(Token { text, line });
            }
            end
        };
        line += source[i..end].matches('\n').count();
        i = end;
    }
    out
}

/// The length of the block comment, nested ones included, that starts `rest`.
fn block_comment(rest: &str) -> usize {
    let (mut depth, mut i) = (0, 0);
    while i < rest.len() {
        let two = rest.as_bytes().get(i..i + 2);
        match two {
            Some(b"/*") => depth += 1,
            Some(b"*/") => depth -= 1,
            _ => {
                i += 1;
                continue;
            }
        }
        i += 2;
        if depth == 0 {
            break;
        }
    }
    i
}

/// The length of the string literal (plain, byte, C, raw) that starts `rest`.
fn string(rest: &str) -> Option<usize> {
    let prefix = ["br", "cr", "r", "b", "c", ""].into_iter().find(|p| {
        rest.strip_prefix(p).is_some_and(|r| {
            r.starts_with('"') || p.ends_with('r') && r.trim_start_matches('#').starts_with('"')
        })
    })?;
    let hashes = rest[prefix.len()..].bytes().take_while(|&b| b == b'#').count();
    let start = prefix.len() + hashes + 1;
    if prefix.ends_with('r') {
        let close = format!("\"{}", "#".repeat(hashes));
        return Some(rest[start..].find(&close).map_or(rest.len(), |n| start + n + close.len()));
    }
    let mut escaped = false;
    for (n, b) in rest.bytes().enumerate().skip(start) {
        match b {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => return Some(n + 1),
            _ => {}
        }
    }
    Some(rest.len())
}

/// The length of the character literal or of the lifetime's tick that starts `rest`.
fn character(rest: &str) -> usize {
    let mut chars = rest.char_indices().skip(1);
    match chars.next() {
        Some((_, '\\')) => 3 + rest.get(3..).and_then(|r| r.find('\'')).unwrap_or(0),
        Some(_) => chars.next().filter(|&(_, c)| c == '\'').map_or(1, |(n, _)| n + 1),
        None => 1,
    }
}

/// Whether an attribute's tokens, between `[` and `]`, leave the item to tests alone.
fn tests_only(attribute: &[Token<'_>]) -> bool {
    let has = |text| attribute.iter().any(|t| t.text == text);
    attribute.first().is_some_and(|t| t.text == "cfg") && has("test") && !has("not") && !has("any")
}

/// The index behind the bracket that closes the one at `open`.
fn closing(tokens: &[Token<'_>], open: usize) -> usize {
    let mut depth = 0usize;
    for (i, token) in tokens.iter().enumerate().skip(open) {
        match token.text {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" | "}" => depth = depth.saturating_sub(1),
            _ => continue,
        }
        if depth == 0 {
            return i + 1;
        }
    }
    tokens.len()
}

/// The index behind the item at `i`: behind its `;` or its block.
fn item_end(tokens: &[Token<'_>], mut i: usize) -> usize {
    while i < tokens.len() {
        match tokens[i].text {
            ";" => return i + 1,
            "{" => {
                let end = closing(tokens, i);
                let semicolon = tokens.get(end).is_some_and(|t| t.text == ";");
                return end + usize::from(semicolon);
            }
            "(" | "[" => i = closing(tokens, i),
            _ => i += 1,
        }
    }
    tokens.len()
}

/// The top-level module that a file under `src` belongs to.
fn module_of(path: &Path) -> String {
    let first = path.iter().next().unwrap_or_default().to_string_lossy();
    first.trim_end_matches(".rs").to_string()
}

/// How many modules lie between the crate's root and the inside of this file.
fn depth_of(path: &Path) -> usize {
    let names = path.iter().count();
    if path.ends_with("mod.rs") { names - 1 } else { names }
}

/// What `source`, the file at `path` under `src`, imports against the rule: one line each.
fn violations(path: &Path, source: &str) -> Vec<String> {
    let module = module_of(path);
    let Some(own) = rank(&module) else {
        return vec![format!("{}: module `{module}` has no rank: give it one", path.display())];
    };
    if module == "lib" || module == "bin" || path.ends_with("tests.rs") {
        return Vec::new(); // the top rank; what is in between is reached by no path from below
    }
    let tokens = tokens(source);
    let text = |i: usize| tokens.get(i).map_or("", |t: &Token<'_>| t.text);
    let mut out = Vec::new();
    let mut report = |i: usize, name: &str| {
        let line = tokens.get(i).map_or(0, |t| t.line);
        let why = match rank(name) {
            _ if name == module => return,
            Some(other) if other < own => return,
            Some(other) => format!("imports `{name}` (rank {other}) into `{module}` (rank {own})"),
            None => format!("`crate::{name}` is no module with a rank: name the module that defines it"),
        };
        out.push(format!("{}:{line}: {why}", path.display()));
    };
    // Inline modules that are open, by the index behind their end: `super` counts from the innermost.
    let mut inline: Vec<usize> = Vec::new();
    let mut i = 0;
    while i < tokens.len() {
        inline.retain(|&end| i < end);
        match text(i) {
            "#" if text(i + 1) == "[" => {
                let mut end = closing(&tokens, i + 1);
                if tests_only(&tokens[i + 2..end]) {
                    end = item_end(&tokens, end);
                }
                i = end;
            }
            "mod" if text(i + 2) == "{" => {
                inline.push(closing(&tokens, i + 2));
                i += 3;
            }
            "crate" if text(i + 1) == "::" => {
                named(&tokens, i + 2, &mut report);
                i += 2;
            }
            "crate" if text(i + 1) == "as" => {
                report(i, "crate");
                i += 2;
            }
            "super" => {
                let mut ups = 1;
                while text(i + 1) == "::" && text(i + 2) == "super" {
                    (ups, i) = (ups + 1, i + 2);
                }
                // A `super` that leaves the top-level module stands at the crate's root.
                if ups >= depth_of(path) + inline.len() && text(i + 1) == "::" {
                    named(&tokens, i + 2, &mut report);
                }
                i += 1;
            }
            _ => i += 1,
        }
    }
    out
}

/// Reports the first names of the path or group at `i`.
fn named(tokens: &[Token<'_>], i: usize, report: &mut impl FnMut(usize, &str)) {
    let Some(token) = tokens.get(i) else { return };
    if token.text != "{" {
        return report(i, token.text);
    }
    let end = closing(tokens, i);
    let mut j = i + 1;
    while j + 1 < end {
        report(j, tokens[j].text);
        while j + 1 < end && tokens[j].text != "," {
            j = if tokens[j].text == "{" { closing(tokens, j) } else { j + 1 };
        }
        j += 1;
    }
}

fn rust_files(folder: &Path, out: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            rust_files(&path, out);
        } else if path.extension().is_some_and(|e| e == "rs") {
            out.push(path);
        }
    }
}

#[test]
fn every_module_imports_from_lower_ranks_only() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    rust_files(&src, &mut files);
    assert!(files.len() > 5, "the sources were not found: {files:?}");
    let mut all = Vec::new();
    for file in files {
        let source = std::fs::read_to_string(&file).unwrap();
        all.extend(violations(file.strip_prefix(&src).unwrap(), &source));
    }
    assert!(all.is_empty(), "imports against the ranks:\n{}", all.join("\n"));
}

#[track_caller]
fn expect(path: &str, source: &str, found: &[&str]) {
    let all = violations(Path::new(path), source);
    assert_eq!(all.len(), found.len(), "{source}\n{all:?}");
    for (line, part) in all.iter().zip(found) {
        assert!(line.contains(part), "{line:?} does not say {part:?}");
    }
}

#[test]
fn the_check_reports_bad_imports() {
    expect("spec.rs", "use crate::loader::Loader;", &["spec.rs:1: imports `loader`"]);
    expect(
        "source/tar.rs",
        "use crate::error::Error;\nuse crate::device::Device;",
        &["tar.rs:2: imports `device`"],
    );
    expect("pool.rs", "use crate::{error::{Error, Result}, spec, tune::Knob, device};", &["`tune` (rank 3)"]);
    expect(
        "pool.rs",
        "use crate::{\n    spec,\n    loader::{batch::Batch},\n};",
        &["pool.rs:3: imports `loader`"],
    );
    expect(
        "row.rs",
        "fn f() -> crate::pool::Pool { let x = '\\''; super::decode::run() }",
        &["pool", "decode"],
    );
    expect("sync.rs", "impl From<crate::error::Error> for X {}", &["`error` (rank 0) into `sync` (rank 0)"]);
    expect("decode/mod.rs", "use super::loader;", &["loader"]);
    expect("decode/image.rs", "use super::super::{loader as l, error};", &["loader"]);
    expect("spec.rs", "mod sealed { use super::super::pool::P; } use super::row::R;", &["pool", "row"]);
    expect("spec.rs", "use crate::r#loader::L;", &["loader"]);
}

#[test]
fn the_check_reports_what_names_no_module() {
    expect("spec.rs", "use crate::Error;", &["`crate::Error` is no module with a rank"]);
    expect("spec.rs", "use crate::{Error, error::Kind};", &["crate::Error"]);
    expect("spec.rs", "use crate::*;", &["crate::*"]);
    expect("spec.rs", "use crate as root;", &["crate"]);
    expect("gadget.rs", "", &["module `gadget` has no rank"]);
    expect("gadget/mod.rs", "", &["module `gadget` has no rank"]);
}

#[test]
fn the_check_passes_what_is_allowed() {
    let allowed = r##"
        //! crate::loader and super::loader
        /* crate::loader /* crate::loader */ crate::loader */
        use crate::{error::{Error, Result as crate_result}, spec::Field};
        pub(crate) use crate::pool::slot; // the own module
        use self::slot::Slot;
        fn f<'a>(x: &'a str) { let s = ("\" crate::loader", r#"crate::"loader"#, b"crate::loader", '"'); }
        mod inner { use super::Slot; use super::super::spec::Field; }
        #[cfg(test)]
        #[path = "x.rs"]
        mod tests { use crate::loader::Loader; }
        #[cfg(all(test, loom))]
        use crate::{loader::Loader};
    "##;
    expect("pool.rs", allowed, &[]);
    expect("source/tar.rs", "use super::{Source, Records}; use super::super::error::Error;", &[]);
    expect("lib.rs", "pub use crate::loader::Loader;", &[]);
    expect("bin/warpfeed/main.rs", "use crate::check;", &[]);
    // Code behind a section of tests, and code that is not for tests alone, is still read.
    expect("pool.rs", "#[cfg(test)] mod tests { fn f() { x(); } } use crate::loader::L;", &["loader"]);
    expect("pool.rs", "#[cfg(not(test))] use crate::loader::L;", &["loader"]);
}

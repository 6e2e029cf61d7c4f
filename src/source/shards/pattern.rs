//! Brace patterns, as a shell and WebDataset's `braceexpand` read them, and which shards a path means.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::error::{Error, ErrorKind, Place, Result};

/// A pattern means so many shards at most. Fuzzing has fewer, to have more patterns.
const MOST: usize = if cfg!(fuzzing) { 1 << 12 } else { 1 << 20 };
/// Their names have so many bytes together at most.
const BYTES: usize = MOST << 7;
/// Braces within braces, so deep at most.
const DEEP: usize = 32;
/// What the name of a plain shard in a folder ends with.
const PLAIN: &str = ".tar";
/// What that of a compressed one ends with.
const PACKED: [&str; 5] = [".tar.gz", ".tgz", ".tar.zst", ".tar.zstd", ".tzst"];
/// The order of a range of letters, as `braceexpand` has it: without what lies between `Z` and `a`.
const LETTERS: &[u8; 52] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

/// The shards that `path` means: a file, the tars of a folder in the order of their names, or what a pattern expands to.
pub(super) fn shards(path: &Path) -> Result<Vec<PathBuf>> {
    if path.is_dir() {
        return in_folder(path);
    }
    let text = match path.to_str() {
        // What exists under this very name is no pattern.
        Some(text) if text.contains(['{', '}', '\\']) && path.symlink_metadata().is_err() => text,
        _ => return Ok(vec![path.to_path_buf()]),
    };
    Ok(expand(text)?.into_iter().map(PathBuf::from).collect())
}

/// Of these shards, where `path` is a folder, those that can be read by index: the plain ones, beside which compressed ones are left out, if there
/// are any. Then those that were left out.
pub(super) fn plain(path: &Path, shards: Vec<PathBuf>) -> (Vec<PathBuf>, Vec<PathBuf>) {
    let is_plain = |path: &PathBuf| path.as_os_str().as_bytes().ends_with(PLAIN.as_bytes());
    if !path.is_dir() || !shards.iter().any(is_plain) {
        return (shards, Vec::new());
    }
    shards.into_iter().partition(is_plain)
}

/// Refuses a list of which some don't exist.
pub(super) fn all_exist(paths: &[PathBuf]) -> Result<()> {
    let mut missing = paths.iter().filter(|path| path.symlink_metadata().is_err());
    let Some(first) = missing.next() else { return Ok(()) };
    let (missing, all) = (1 + missing.count(), paths.len());
    let text = match all {
        1 => "the shard does not exist".to_string(),
        _ => format!("{missing} of {all} shards do not exist ({} do), this one is the first", all - missing),
    };
    let wildcard = first.as_os_str().as_bytes().iter().any(|b| b"*?".contains(b));
    let hint = if wildcard {
        "; `*` and `?` are no part of a pattern here: name a folder, or give a list"
    } else {
        ""
    };
    Err(Error::new(ErrorKind::Io, text + hint).at(Place { path: Some(first.clone()), ..Place::default() }))
}

fn in_folder(folder: &Path) -> Result<Vec<PathBuf>> {
    let io = |e| Error::io(folder, "the folder can't be listed", e);
    let is_shard = |name: &OsStr| {
        let name = name.as_bytes();
        let ends = |ending: &str| name.ends_with(ending.as_bytes());
        !name.starts_with(b".") && (ends(PLAIN) || PACKED.into_iter().any(ends))
    };
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(io)? {
        let entry = entry.map_err(io)?;
        if is_shard(&entry.file_name()) {
            found.push(entry.path());
        }
    }
    if found.is_empty() {
        let endings = PACKED.join(", ");
        let text =
            format!("there is no shard in the folder: nothing in it ends in one of {PLAIN}, {endings}");
        let place = Place { path: Some(folder.to_path_buf()), ..Place::default() };
        return Err(Error::new(ErrorKind::Empty, text).at(place));
    }
    found.sort_unstable();
    Ok(found)
}

/// What a pattern expands to: `{000..147}` and `{z..a..2}` count (a number that begins with 0 sets the width),
/// `{a,b}` lists, in any number and depth; a backslash takes the meaning from the next character; braces that neither count nor
/// list stay.
pub(super) fn expand(pattern: &str) -> Result<Vec<String>> {
    sequence(pattern, pattern, 0)
}

fn refused(kind: ErrorKind, what: &str, pattern: &str) -> Error {
    Error::new(kind, format!("{what}: {pattern:?}"))
}

/// Where the brace at the start of `text` is closed.
fn closing(text: &str, pattern: &str) -> Result<usize> {
    let (mut depth, mut escaped) = (0u32, false);
    for (at, c) in text.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '{' => depth += 1,
            '}' if depth == 1 => return Ok(at),
            '}' => depth -= 1,
            _ => {}
        }
    }
    Err(refused(ErrorKind::InvalidArgument, "a brace of the pattern is not closed", pattern))
}

/// Every expansion of `text`, a part of `pattern`.
fn sequence(text: &str, pattern: &str, depth: usize) -> Result<Vec<String>> {
    if depth > DEEP {
        return Err(refused(ErrorKind::LimitExceeded, "braces lie too deep in the pattern", pattern));
    }
    let mut all = vec![String::new()];
    let mut bytes = 0usize; // of all of them
    let mut literal = String::new(); // follows each of them
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let (choices, used) = match c {
            '{' => {
                let end = closing(rest, pattern)?;
                (braces(&rest[1..end], pattern, depth)?, end + 1)
            }
            '}' => {
                let what = "a brace of the pattern is closed and was not opened";
                return Err(refused(ErrorKind::InvalidArgument, what, pattern));
            }
            '\\' => {
                let escaped = rest.chars().nth(1);
                (vec![escaped.unwrap_or(c).to_string()], 1 + escaped.map_or(0, char::len_utf8))
            }
            _ => {
                let end = rest.find(['{', '}', '\\']).unwrap_or(rest.len());
                (vec![rest[..end].to_string()], end)
            }
        };
        rest = &rest[used..];
        if all.len().saturating_mul(choices.len()) > MOST {
            return Err(too_many(pattern));
        }
        match choices.as_slice() {
            [choice] => literal.push_str(choice),
            _ => {
                // Each beginning comes once for each choice, and each choice once for each beginning.
                let starts = start_bytes(bytes, &literal, &all).saturating_mul(choices.len());
                bytes = starts.saturating_add(length(&choices).saturating_mul(all.len()));
                if bytes > BYTES {
                    return Err(too_long(pattern));
                }
                let end = |start: &String, choice: &String| format!("{start}{literal}{choice}");
                all = all.iter().flat_map(|start| choices.iter().map(move |c| end(start, c))).collect();
                literal.clear();
            }
        }
    }
    if start_bytes(bytes, &literal, &all) > BYTES {
        return Err(too_long(pattern));
    }
    all.iter_mut().for_each(|start| start.push_str(&literal));
    Ok(all)
}

/// Bytes of `all`, which have `bytes` so far, when each is followed by `literal`.
fn start_bytes(bytes: usize, literal: &str, all: &[String]) -> usize {
    literal.len().saturating_mul(all.len()).saturating_add(bytes)
}

fn too_many(pattern: &str) -> Error {
    refused(ErrorKind::LimitExceeded, &format!("a pattern means at most {MOST} shards"), pattern)
}

fn too_long(pattern: &str) -> Error {
    let shown: String = pattern.chars().take(200).collect();
    let what = format!("the names that a pattern means have at most {BYTES} bytes together");
    refused(ErrorKind::LimitExceeded, &what, &shown)
}

fn length(texts: &[String]) -> usize {
    texts.iter().map(String::len).sum()
}

/// What lies between two braces.
fn braces(inner: &str, pattern: &str, depth: usize) -> Result<Vec<String>> {
    if let Some(range) = range(inner, pattern)? {
        return Ok(range);
    }
    let (mut parts, mut start, mut level, mut escaped) = (Vec::new(), 0, 0u32, false);
    for (at, c) in inner.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '{' => level += 1,
            '}' => level = level.saturating_sub(1),
            ',' if level == 0 => {
                parts.push(&inner[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&inner[start..]);
    let (mut out, mut bytes) = (Vec::new(), 0usize);
    let listed = parts.len() > 1;
    for part in parts {
        let part = sequence(part, pattern, depth + 1)?;
        bytes = bytes.saturating_add(length(&part));
        if bytes > BYTES {
            return Err(too_long(pattern));
        }
        if out.len() + part.len() > MOST {
            return Err(too_many(pattern));
        }
        out.extend(part);
    }
    if !listed {
        out.iter_mut().for_each(|text| *text = format!("{{{text}}}"));
    }
    Ok(out)
}

/// `first..last` or `first..last..step`, of numbers or of letters.
fn range(inner: &str, pattern: &str) -> Result<Option<Vec<String>>> {
    let parts: Vec<&str> = inner.split("..").collect();
    let (first, last, step) = match parts[..] {
        [first, last] => (first, last, "1"),
        [first, last, step] => (first, last, step.strip_prefix('-').unwrap_or(step)),
        _ => return Ok(None),
    };
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let is_number = |text: &str| digits(text.strip_prefix('-').unwrap_or(text));
    if !digits(step) {
        return Ok(None);
    }
    let number = |text: &str| {
        let what = "a number of the pattern is too large";
        text.parse::<i64>().map_err(|_| refused(ErrorKind::InvalidArgument, what, pattern))
    };
    let letter = |text: &str| match text.as_bytes() {
        [b] => LETTERS.iter().position(|l| l == b).map(|at| at as i64),
        _ => None,
    };
    let (from, to, width) = if is_number(first) && is_number(last) {
        let padded = |text: &&str| {
            let digits = text.strip_prefix('-').unwrap_or(text);
            digits.len() > 1 && digits.starts_with('0')
        };
        let padded = [first, last].iter().any(padded);
        (number(first)?, number(last)?, if padded { first.len().max(last.len()) } else { 0 })
    } else {
        match (letter(first), letter(last)) {
            (Some(from), Some(to)) => (from, to, 0),
            _ => return Ok(None),
        }
    };
    let step = (number(step)?.unsigned_abs()).max(1);
    let count = from.abs_diff(to) / step + 1;
    if count > MOST as u64 {
        return Err(too_many(pattern));
    }
    let is_letter = !is_number(first);
    let value = |k: u64| {
        // No overflow: the value lies between `from` and `to`.
        let value = if to >= from {
            from.wrapping_add_unsigned(k * step)
        } else {
            from.wrapping_sub_unsigned(k * step)
        };
        match usize::try_from(value).ok().and_then(|at| LETTERS.get(at)) {
            Some(&letter) if is_letter => char::from(letter).to_string(),
            _ => format!("{value:0width$}"),
        }
    };
    Ok(Some((0..count).map(value).collect()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// What `braceexpand` 0.1.7 gives for the same patterns.
    #[test]
    fn patterns_expand_as_braceexpand_has_them() {
        let cases: [(&str, &[&str]); 24] = [
            ("train-{000..002}.tar", &["train-000.tar", "train-001.tar", "train-002.tar"]),
            ("{8..11}", &["8", "9", "10", "11"]),
            ("{07..10}", &["07", "08", "09", "10"]),
            ("{1..010..4}", &["001", "005", "009"]),
            ("{-2..1}", &["-2", "-1", "0", "1"]),
            ("{-01..1}", &["-01", "000", "001"]),
            ("{4..1}", &["4", "3", "2", "1"]),
            ("{0..10..-5}", &["0", "5", "10"]),
            ("{3..4..0}", &["3", "4"]),
            ("{a..g..3}", &["a", "d", "g"]),
            ("{Z..b}", &["Z", "a", "b"]),
            ("{b..Y}", &["b", "a", "Z", "Y"]),
            ("{a,b}{1,2}", &["a1", "a2", "b1", "b2"]),
            ("x{,.bak}", &["x", "x.bak"]),
            ("python{2.{5..6},3.{2,3}}", &["python2.5", "python2.6", "python3.2", "python3.3"]),
            ("{a}", &["{a}"]),
            ("{a{1,2}}", &["{a1}", "{a2}"]),
            ("{}", &["{}"]),
            ("{1..x}", &["{1..x}"]),
            ("{1..2..3..4}", &["{1..2..3..4}"]),
            (r"{1\{2,3}", &["1{2", "3"]),
            (r"a\\b", &[r"a\b"]),
            ("plain.tar", &["plain.tar"]),
            ("", &[""]),
        ];
        for (pattern, expected) in cases {
            assert_eq!(expand(pattern).unwrap(), expected, "{pattern:?}");
        }
    }

    #[test]
    fn what_is_no_pattern_or_far_too_many_is_refused() {
        let deep = "{".repeat(40) + &"}".repeat(40);
        let cases = [
            ("{1{2,3}", ErrorKind::InvalidArgument),
            ("a}b", ErrorKind::InvalidArgument),
            ("{1..99999999999999999999}", ErrorKind::InvalidArgument),
            ("{0..9223372036854775807}", ErrorKind::LimitExceeded),
            ("{-9223372036854775807..9223372036854775807}", ErrorKind::LimitExceeded),
            ("{0..9999}{0..9999}", ErrorKind::LimitExceeded),
            ("{{0..999999},{0..999999}}", ErrorKind::LimitExceeded),
            (&deep, ErrorKind::LimitExceeded),
        ];
        for (pattern, kind) in cases {
            let e = expand(pattern).unwrap_err();
            assert!(e.kind() == kind && e.message().contains(pattern), "{e}");
        }
    }

    #[test]
    fn names_that_would_fill_the_memory_are_refused() {
        let long = "x".repeat(2000);
        let once = format!("{{0..999999}}{long}");
        let listed = format!("{{{}}}", vec![format!("{{0..9999}}{long}"); 8].join(","));
        let in_pieces = format!("{{0..999999}}{}", r"\a\b".repeat(500));
        for pattern in [once, listed, in_pieces] {
            let begun = std::time::Instant::now();
            let e = expand(&pattern).unwrap_err();
            assert_eq!(e.kind(), ErrorKind::LimitExceeded, "{e}");
            assert!(e.message().contains("bytes together") && e.message().len() < 400, "{e}");
            assert!(begun.elapsed().as_secs() < 30, "{:?}", begun.elapsed());
        }
    }

    #[derive(Debug, Clone)]
    enum Node {
        Text(String),
        Range { from: u32, to: u32, width: usize },
        List(Vec<Vec<Node>>),
    }

    /// What a list of nodes is as a pattern, and all that it means, in order.
    fn both(nodes: &[Node]) -> (String, Vec<String>) {
        let (mut pattern, mut all) = (String::new(), vec![String::new()]);
        for node in nodes {
            let (text, choices) = match node {
                Node::Text(text) => (text.clone(), vec![text.clone()]),
                Node::Range { from, to, width } => {
                    // Padded by a leading zero of the longer end, or not at all.
                    let show = |n: u32| format!("{n:0width$}");
                    let numbers: Vec<u32> =
                        if from <= to { (*from..=*to).collect() } else { (*to..=*from).rev().collect() };
                    (format!("{{{}..{}}}", show(*from), show(*to)), numbers.into_iter().map(show).collect())
                }
                Node::List(items) => {
                    let items: Vec<(String, Vec<String>)> = items.iter().map(|item| both(item)).collect();
                    let text: Vec<&str> = items.iter().map(|(text, _)| text.as_str()).collect();
                    let choices = items.iter().flat_map(|(_, all)| all.clone()).collect();
                    (format!("{{{}}}", text.join(",")), choices)
                }
            };
            pattern += &text;
            all = all.iter().flat_map(|a| choices.iter().map(move |c| format!("{a}{c}"))).collect();
        }
        (pattern, all)
    }

    /// How many names a list of nodes means.
    fn count(nodes: &[Node]) -> u64 {
        let choices = |node: &Node| match node {
            Node::Text(_) => 1,
            Node::Range { from, to, .. } => u64::from(from.abs_diff(*to)) + 1,
            Node::List(items) => items.iter().map(|item| count(item)).fold(0, u64::saturating_add),
        };
        nodes.iter().map(choices).fold(1, u64::saturating_mul)
    }

    fn nodes() -> impl Strategy<Value = Vec<Node>> {
        let leaf = prop_oneof![
            "[a-z./_-]{0,5}".prop_map(Node::Text),
            // Of the width of the longest, or wider: 3 digits for 2-digit numbers.
            (0..100u32, 0..100u32, prop_oneof![Just(0), Just(3usize)])
                .prop_map(|(from, to, width)| Node::Range { from, to, width }),
        ];
        let node = leaf.prop_recursive(3, 8, 3, |inner| {
            let item = prop::collection::vec(inner, 0..3);
            prop::collection::vec(item, 2..4).prop_map(Node::List)
        });
        prop::collection::vec(node, 0..3)
    }

    proptest! {
        #[test]
        fn any_pattern_means_what_the_naive_model_says(nodes in nodes()) {
            prop_assume!(count(&nodes) < 20_000);
            let (pattern, all) = both(&nodes);
            prop_assert_eq!(expand(&pattern).unwrap(), all, "{}", pattern);
        }

        #[test]
        fn no_text_makes_it_panic(text in r"[{}.,\\a0-9é-]{0,24}") {
            let _ = expand(&text);
        }
    }

    #[test]
    fn a_folder_a_name_and_a_pattern() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let e = shards(folder.path()).unwrap_err();
        assert_eq!((e.kind(), e.place().path.as_deref()), (ErrorKind::Empty, Some(folder.path())));
        for name in ["b.tar", "a.tar.gz", "c.json", "._b.tar", "x{1,2}.tar"] {
            std::fs::write(path(name), b"").unwrap();
        }
        assert_eq!(shards(folder.path()).unwrap(), ["a.tar.gz", "b.tar", "x{1,2}.tar"].map(path));
        let all = shards(folder.path()).unwrap();
        let (by_index, left_out) = plain(folder.path(), all.clone());
        assert_eq!((by_index, left_out), (all[1..].to_vec(), all[..1].to_vec()));
        assert_eq!(plain(folder.path(), all[..1].to_vec()), (all[..1].to_vec(), Vec::new()), "none is plain");
        assert_eq!(plain(&path("{b,a}.tar"), all.clone()), (all, Vec::new()), "they were named");
        assert_eq!(shards(&path("x{1,2}.tar")).unwrap(), [path("x{1,2}.tar")], "what exists is no pattern");
        assert_eq!(shards(&path("y{1,2}.tar")).unwrap(), [path("y1.tar"), path("y2.tar")]);
        all_exist(&[path("b.tar")]).unwrap();
        let e = all_exist(&["b.tar", "y1.tar", "y2.tar"].map(path)).unwrap_err();
        assert_eq!((e.kind(), e.place().path.clone()), (ErrorKind::Io, Some(path("y1.tar"))));
        assert!(e.message().starts_with("2 of 3 shards do not exist (1 do)"), "{e}");
        assert!(all_exist(&[path("b*.tar")]).unwrap_err().message().contains("give a list"));
    }
}

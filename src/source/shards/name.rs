//! What the name of a member says: the sample it belongs to, and which part of the sample it is.

use std::borrow::Cow;

use super::report::Skipped;

/// Where the base name of a member is split into key and field.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum KeyRule {
    /// At its first dot, as WebDataset does.
    #[default]
    FirstDot,
    /// At its last dot.
    LastDot,
}

/// A member's name, read by the rule.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum MemberName<'a> {
    /// It belongs to the sample `key`, as its part `field`, in lower case.
    Part { key: &'a [u8], field: Cow<'a, str> },
    /// It belongs to no sample.
    Skipped(Skipped),
}

/// The name without leading `./`.
pub(super) fn without_dot(mut name: &[u8]) -> &[u8] {
    while let Some(rest) = name.strip_prefix(b"./") {
        name = rest;
    }
    name
}

impl KeyRule {
    /// Reads the name of a regular member.
    pub(super) fn read(self, name: &[u8]) -> MemberName<'_> {
        let name = without_dot(name);
        let base = name.iter().rposition(|&b| b == b'/').map_or(0, |slash| slash + 1);
        let (folders, file) = name.split_at(base);
        let top = name.split(|&b| b == b'/').next().unwrap_or_default();
        if top == b"__MACOSX" || file.starts_with(b"._") || file == b".DS_Store" {
            return MemberName::Skipped(Skipped::SideFile);
        }
        if top.len() >= 4 && top.starts_with(b"__") && top.ends_with(b"__") {
            return MemberName::Skipped(Skipped::Metadata);
        }
        let dot = match self {
            Self::FirstDot => file.iter().position(|&b| b == b'.'),
            Self::LastDot => file.iter().rposition(|&b| b == b'.'),
        };
        match dot {
            Some(dot) if dot > 0 && dot + 1 < file.len() => {
                let (key, field) = (&name[..folders.len() + dot], &file[dot + 1..]);
                MemberName::Part { key, field: lower(field) }
            }
            _ => MemberName::Skipped(Skipped::NoExtension),
        }
    }
}

fn lower(field: &[u8]) -> Cow<'_, str> {
    match std::str::from_utf8(field) {
        Ok(text) if text.bytes().all(|b| b.is_ascii() && !b.is_ascii_uppercase()) => Cow::Borrowed(text),
        _ => Cow::Owned(String::from_utf8_lossy(field).to_lowercase()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_split_as_webdataset_does_or_at_the_last_dot() {
        let cases = [
            ("0001.jpg", "0001", "jpg", "0001", "jpg"),
            ("a/b.c/0001.seg.PNG", "a/b.c/0001", "seg.png", "a/b.c/0001.seg", "png"),
            ("././0001.txt", "0001", "txt", "0001", "txt"),
            ("/abs/1.Cls", "/abs/1", "cls", "/abs/1", "cls"),
            ("Track 2.0 (x).mp3", "Track 2", "0 (x).mp3", "Track 2.0 (x)", "mp3"),
            ("ä.ÄÖ", "ä", "äö", "ä", "äö"),
            ("_/__x__.json", "_/__x__", "json", "_/__x__", "json"),
        ];
        for (name, key1, field1, key2, field2) in cases {
            for (rule, key, field) in [(KeyRule::FirstDot, key1, field1), (KeyRule::LastDot, key2, field2)] {
                let expected = MemberName::Part { key: key.as_bytes(), field: field.into() };
                assert_eq!(rule.read(name.as_bytes()), expected, "{name}");
            }
        }
        assert_eq!(
            KeyRule::FirstDot.read(b"\xff.\xfe"),
            MemberName::Part { key: b"\xff", field: "\u{fffd}".into() }
        );
    }

    #[test]
    fn what_belongs_to_no_sample_says_why() {
        let cases = [
            ("README", Skipped::NoExtension),
            ("a.b/README", Skipped::NoExtension),
            ("a/.hidden", Skipped::NoExtension),
            ("trailing.", Skipped::NoExtension),
            ("", Skipped::NoExtension),
            ("a/._0001.jpg", Skipped::SideFile),
            (".DS_Store", Skipped::SideFile),
            ("./__MACOSX/0001.jpg", Skipped::SideFile),
            ("__meta__", Skipped::Metadata),
            ("__meta__/0001.jpg", Skipped::Metadata),
        ];
        for (name, reason) in cases {
            assert_eq!(KeyRule::FirstDot.read(name.as_bytes()), MemberName::Skipped(reason), "{name}");
        }
    }
}

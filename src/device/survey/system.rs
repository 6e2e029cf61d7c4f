//! The files under `/proc` and `/sys` in which Linux describes itself.

use std::path::PathBuf;

/// A root that has `proc` and `sys`: the system's, or a tree of a test's.
#[derive(Debug)]
pub(super) struct System(PathBuf);

impl System {
    pub(super) fn new(root: impl Into<PathBuf>) -> Self {
        Self(root.into())
    }

    /// The file's text without the space around it. `path` is relative to the root.
    pub(super) fn text(&self, path: &str) -> Option<String> {
        let bytes = std::fs::read(self.0.join(path)).ok()?;
        Some(String::from_utf8_lossy(&bytes).trim().to_string())
    }

    pub(super) fn number(&self, path: &str) -> Option<u64> {
        self.text(path)?.parse().ok()
    }

    /// The names in a folder, in no order; none where there is no such folder.
    pub(super) fn names(&self, folder: &str) -> Vec<String> {
        let entries = std::fs::read_dir(self.0.join(folder)).into_iter().flatten().flatten();
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
    }
}

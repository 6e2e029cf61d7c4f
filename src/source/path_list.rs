//! Many paths in little memory.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// A list of paths: their bytes in one piece, and 8 bytes each for where they end.
#[derive(Debug, Clone, Default)]
pub(super) struct PathList {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl PathList {
    pub(super) fn push(&mut self, path: &Path) {
        self.bytes.extend_from_slice(path.as_os_str().as_bytes());
        self.ends.push(self.bytes.len());
    }

    /// Path number `at`; the empty path where there is none.
    pub(super) fn get(&self, at: usize) -> &Path {
        let start = at.checked_sub(1).and_then(|before| self.ends.get(before)).copied().unwrap_or(0);
        let bytes = self.ends.get(at).and_then(|&end| self.bytes.get(start..end)).unwrap_or_default();
        Path::new(OsStr::from_bytes(bytes))
    }

    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    /// Gives back the room that growing has left.
    pub(super) fn shrink(&mut self) {
        self.bytes.shrink_to_fit();
        self.ends.shrink_to_fit();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_come_back_as_they_went_in() {
        let mut list = PathList::default();
        let all =
            [Path::new("a"), Path::new(""), Path::new(OsStr::from_bytes(b"x/\xff.bin")), Path::new("b")];
        all.iter().for_each(|path| list.push(path));
        list.shrink();
        assert_eq!(list.ends.len(), 4);
        assert!((0..4).all(|i| list.get(i) == all[i]) && list.get(4) == Path::new(""));
    }

    #[test]
    fn row_44_two_million_paths_cost_eight_bytes_each_beside_their_text() {
        let mut list = PathList::default();
        let mut text = 0;
        for i in 0..2_000_000 {
            let path = format!("train/n{:08}/image_{i}.jpg", i % 1000);
            text += path.len();
            list.push(Path::new(&path));
        }
        list.shrink();
        assert!(list.bytes.capacity() + list.ends.capacity() * size_of::<usize>() <= text + 64 * 2_000_000);
        assert_eq!(list.get(1_999_999), Path::new("train/n00000999/image_1999999.jpg"));
    }
}

//! The command-line tool, and data for it to read.

#![allow(dead_code, clippy::unwrap_used, clippy::panic, reason = "for tests, none of which uses all of it")]

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant, SystemTime};

use serde_json::Value;
use tempfile::TempDir;

/// The longest that a run may take.
const LIMIT: Duration = Duration::from_secs(120);
/// Waits until it ends.
pub(crate) fn end_of(child: &mut Child) -> ExitStatus {
    let begun = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        if begun.elapsed() > LIMIT {
            child.kill().unwrap();
            panic!("it hangs");
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Runs the tool: its exit status, stdout and stderr.
pub(crate) fn warpfeed(words: &[&str]) -> (Option<i32>, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_warpfeed"));
    command.args(words).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let pipes = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
    fn text(mut pipe: impl Read + Send + 'static) -> std::thread::JoinHandle<String> {
        std::thread::spawn(move || {
            let mut text = String::new();
            pipe.read_to_string(&mut text).unwrap();
            text
        })
    }
    let (out, err) = (text(pipes.0), text(pipes.1));
    let status = end_of(&mut child);
    let (out, err) = (out.join().unwrap(), err.join().unwrap());
    assert!(!err.contains("panicked"), "{err}");
    (status.code(), out, err)
}

/// The only line of stdout.
pub(crate) fn json(words: &[&str]) -> Value {
    let (status, out, err) = warpfeed(words);
    assert_eq!(status, Some(0), "{words:?}: {err}");
    assert_eq!(out.lines().count(), 1, "{out}");
    serde_json::from_str(&out).unwrap()
}

pub(crate) fn case(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases").join(name)
}

/// A folder to read, whose files must stay as they are.
pub(crate) struct Data {
    pub(crate) folder: TempDir,
    begun: Option<BTreeMap<PathBuf, (Vec<u8>, SystemTime)>>,
}

impl Data {
    pub(crate) fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap(), begun: None }
    }

    pub(crate) fn path(&self) -> &str {
        self.folder.path().to_str().unwrap()
    }

    pub(crate) fn at(&self, name: &str) -> PathBuf {
        let path = self.folder.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        path
    }

    pub(crate) fn copy(&self, from: &str, to: &str) {
        std::fs::copy(case(from), self.at(to)).unwrap();
    }

    /// A gray PNG.
    pub(crate) fn gray(&self, name: &str, [width, height]: [u32; 2]) {
        let file = File::create(self.at(name)).unwrap();
        let mut encoder = png::Encoder::new(file, width, height);
        encoder.set_color(png::ColorType::Grayscale);
        let pixels = vec![100; width as usize * height as usize];
        encoder.write_header().unwrap().write_image_data(&pixels).unwrap();
    }

    fn files(&self) -> BTreeMap<PathBuf, (Vec<u8>, SystemTime)> {
        let (mut found, mut ahead) = (BTreeMap::new(), vec![self.folder.path().to_path_buf()]);
        while let Some(folder) = ahead.pop() {
            for entry in folder.read_dir().unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    ahead.push(path);
                } else {
                    let changed = path.metadata().unwrap().modified().unwrap();
                    found.insert(path.clone(), (std::fs::read(&path).unwrap(), changed));
                }
            }
        }
        found
    }

    /// What is there now must be there in the end, and nothing else.
    pub(crate) fn seal(mut self) -> Self {
        self.begun = Some(self.files());
        self
    }
}

impl Drop for Data {
    fn drop(&mut self) {
        if let (Some(begun), false) = (&self.begun, std::thread::panicking()) {
            assert!(*begun == self.files(), "the data was written to");
        }
    }
}

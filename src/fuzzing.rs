//! The parsers, each as a function of any bytes that panics where what must hold does not: what the fuzz targets of `tests/fuzz` call.
//! The tests call them with the targets' seeds.

#[cfg(feature = "image")]
pub use crate::decode::codec::fuzzing::{exif, jpeg, other, png};
#[cfg(feature = "image")]
pub use crate::source::detection_fuzzing::{coco, data_yaml, yolo};
#[cfg(feature = "tar")]
pub use crate::source::shards_fuzzing::{kept_index, pattern, tar};

#[cfg(all(feature = "image", feature = "tar", not(feature = "simulated")))] // simulated: of another package
#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    type Target = (&'static str, fn(&[u8]));

    const TARGETS: [Target; 10] = [
        ("coco", coco),
        ("data_yaml", data_yaml),
        ("exif", exif),
        ("jpeg", jpeg),
        ("kept_index", kept_index),
        ("other", other),
        ("pattern", pattern),
        ("png", png),
        ("tar", tar),
        ("yolo", yolo),
    ];
    /// Of one seed. Some patterns mean a million names.
    const LIMIT: Duration = Duration::from_secs(30);

    #[allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]
    fn files(folder: &Path) -> Vec<std::path::PathBuf> {
        let mut all: Vec<_> = std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()).collect();
        all.sort();
        all
    }

    #[test]
    #[cfg_attr(miri, ignore = "reads files, too many")]
    fn what_must_hold_holds_for_all_seeds() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz");
        let named = |part: &str| -> Vec<String> {
            let stem = |path: &std::path::PathBuf| path.file_stem().unwrap().to_string_lossy().into_owned();
            files(&folder.join(part)).iter().map(stem).collect()
        };
        let names = TARGETS.map(|(name, _)| name);
        assert_eq!(
            (named("targets"), named("seeds")),
            (names.map(Into::into).into(), names.map(Into::into).into())
        );
        for (name, target) in TARGETS {
            let seeds = files(&folder.join("seeds").join(name));
            assert!(seeds.len() > 1, "{name}");
            for seed in seeds {
                let bytes = std::fs::read(&seed).unwrap();
                assert!(bytes.len() <= 4096, "{} is too large to be found again", seed.display());
                let (done, wait) = mpsc::channel();
                let run = std::thread::spawn(move || {
                    target(&bytes);
                    let _ = done.send(());
                });
                match wait.recv_timeout(LIMIT) {
                    Err(mpsc::RecvTimeoutError::Timeout) => panic!("{} takes too long", seed.display()),
                    _ => assert!(run.join().is_ok(), "{}", seed.display()),
                }
            }
        }
    }
}

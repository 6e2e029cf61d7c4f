//! Tar shards that are read in sequence: what names their samples.

use std::path::{Path, PathBuf};

use serde_json::Value;
use warpfeed::decode::Image;
use warpfeed::source::{Pictures, ShardStream, SourceExt};
use warpfeed::{Loader, OnError};

use super::{MINUTE, Pixels};
use crate::support::{device_and_stream, within};

/// Samples `NAME/0` to `NAME/4`; the one that is `bad` has a jpg that is none.
fn shard(folder: &Path, name: &str, bad: usize) -> PathBuf {
    let mut builder = tar::Builder::new(Vec::new());
    for k in 0..5 {
        let bytes = if k == bad { b"no image".to_vec() } else { Pixels::new(6, 5 + k).bmp() };
        let mut header = tar::Header::new_gnu();
        header.set_size(bytes.len() as u64);
        header.set_mode(0o644);
        builder.append_data(&mut header, format!("{name}/{k}.jpg"), bytes.as_slice()).unwrap();
    }
    let path = folder.join(format!("{name}.tar"));
    std::fs::write(&path, builder.into_inner().unwrap()).unwrap();
    path
}

/// The keys of an epoch's good rows, and the lines of the quarantine.
fn deliver(source: impl Pictures, quarantine: &Path) -> (Vec<String>, Vec<Value>) {
    let (device, stream) = device_and_stream();
    let loader = Loader::builder(source)
        .decode(Image::rgb8(4, 4).keys())
        .batch_size(3)
        .workers(2)
        .epochs(1)
        .on_error(OnError::Skip { limit: 9 })
        .quarantine(quarantine)
        .build(&device)
        .unwrap();
    let mut keys = Vec::new();
    for batch in loader.epoch(&stream).unwrap() {
        let batch = batch.unwrap();
        batch.synchronize().unwrap();
        let texts = batch.text("key").unwrap();
        keys.extend(texts.zip(batch.valid()).filter(|(_, valid)| **valid).map(|(text, _)| text.to_string()));
    }
    let lines = std::fs::read_to_string(quarantine).unwrap();
    (keys, lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect())
}

#[test]
fn a_sample_of_a_stream_that_cannot_be_decoded_is_named_in_the_quarantine() {
    within(MINUTE, || {
        let folder = tempfile::tempdir().unwrap();
        let paths = [shard(folder.path(), "a", 2), shard(folder.path(), "b", 4)];
        let open = || ShardStream::open_all(&paths).unwrap();
        let expected = ["a/0", "a/1", "a/3", "a/4", "b/0", "b/1", "b/2", "b/3"];
        for shuffled in [false, true] {
            let quarantine = folder.path().join(format!("{shuffled}.jsonl"));
            let (mut keys, mut lines) = if shuffled {
                deliver(open().shuffle_buffer(4, 1).unwrap().take(100), &quarantine)
            } else {
                deliver(open(), &quarantine)
            };
            assert_eq!(keys != expected, shuffled, "{keys:?}");
            keys.sort();
            assert_eq!(keys, expected);
            lines.sort_by_key(|line| line["member"].to_string());
            assert_eq!(lines.len(), 2, "{lines:?}");
            for (line, (path, name, member)) in
                lines.iter().zip([(&paths[0], "a.tar", "a/2"), (&paths[1], "b.tar", "b/4")])
            {
                assert_eq!((&line["shard"], &line["member"]), (&name.into(), &member.into()), "{line}");
                assert_eq!(line["path"], path.to_str().unwrap(), "{line}");
                assert!(line["index"].is_u64() && line["stage"] == "decode", "{line}");
                assert_eq!(
                    (&line["outcome"], &line["error"]),
                    (&"failed".into(), &"Unsupported".into()),
                    "{line}"
                );
            }
            if !shuffled {
                assert_eq!((&lines[0]["index"], &lines[1]["index"]), (&2.into(), &9.into()));
            }
        }
    });
}

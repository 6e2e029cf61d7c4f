//! What happens when a sample fails.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

use crate::error::{Error, ErrorKind, Place, Result};
use crate::pool::{Fault, Outcome};
use crate::random::{SampleRng, key};
use crate::sync::lock;

/// The policy for a sample that fails: an error of its source or decoder, or a panic.
///
/// Batch boundaries and counts never move. Limits are per epoch; faults are counted in delivery order, so
/// the same fault trips the limit whatever the threads did.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum OnError {
    /// The batch becomes an error, and the epoch ends. The next `epoch()` tries that batch again.
    #[default]
    Fail,
    /// The row becomes a hole: zero bytes, `valid` 0. More than `limit` in an epoch are an error.
    Skip {
        /// The most failed samples of an epoch.
        limit: u64,
    },
    /// Another sample, drawn from (seed, epoch, position, attempt), takes the row. More than `limit` failed
    /// attempts in an epoch are an error. Indexed sources only.
    Replace {
        /// The most failed attempts of an epoch.
        limit: u64,
    },
    /// The same sample again, up to `times` more, the n-th after `backoff · 2ⁿ⁻¹`; then another policy.
    Retry {
        /// Attempts after the first.
        times: u32,
        /// The pause before the first of them. No worker sleeps meanwhile.
        backoff: Duration,
        /// What happens when all have failed.
        then: Box<OnError>,
    },
}

/// What to do about one failed attempt.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    GiveUp,
    Again(Duration),
    Replace(u64),
}

impl OnError {
    /// The verdict on attempt number `attempt` (from 0) at the sample of `position`.
    pub(crate) fn judge(&self, attempt: u32, [seed, epoch, position]: [u64; 3], len: u64) -> Verdict {
        match self {
            Self::Fail | Self::Skip { .. } => Verdict::GiveUp,
            Self::Replace { limit } if u64::from(attempt) > *limit || len == 0 => Verdict::GiveUp,
            Self::Replace { .. } => {
                let drawn =
                    SampleRng::from_key(key(&[seed, epoch, position, u64::from(attempt), 0x5265_706c]));
                Verdict::Replace({ drawn }.below(len))
            }
            Self::Retry { times, backoff, .. } if attempt < *times => {
                Verdict::Again(backoff.saturating_mul(1 << attempt.min(20)))
            }
            Self::Retry { times, then, .. } => then.judge(attempt - times, [seed, epoch, position], len),
        }
    }

    /// The most faults that an epoch may have; `None` where the first one ends it.
    fn limit(&self) -> Option<u64> {
        match self {
            Self::Fail => None,
            Self::Skip { limit } | Self::Replace { limit } => Some(*limit),
            Self::Retry { then, .. } => then.limit(),
        }
    }

    pub(crate) fn replaces(&self) -> bool {
        match self {
            Self::Replace { .. } => true,
            Self::Retry { then, .. } => then.replaces(),
            _ => false,
        }
    }
}

/// Counts and records faults as they are delivered.
#[derive(Debug)]
pub(crate) struct Tally {
    policy: OnError,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    epoch: u64,
    count: u64,
    quarantine: Option<(PathBuf, File)>,
}

impl Tally {
    /// # Errors
    /// [`ErrorKind::Io`] where the quarantine file can't be appended to.
    pub(crate) fn new(policy: OnError, quarantine: Option<&Path>) -> Result<Self> {
        let quarantine = match quarantine {
            None => None,
            Some(path) => {
                let file = File::options().create(true).append(true).open(path);
                Some((
                    path.to_path_buf(),
                    file.map_err(|e| Error::io(path, "can't open the quarantine file", e))?,
                ))
            }
        };
        Ok(Self { policy, inner: Mutex::new(Inner { quarantine, ..Inner::default() }) })
    }

    /// Takes the faults of a batch of `epoch` that is being delivered.
    ///
    /// # Errors
    /// The error that the policy makes of them. The count is then as before the batch.
    pub(crate) fn deliver(&self, epoch: u64, faults: &mut Vec<Fault>) -> Result<()> {
        if faults.is_empty() {
            return Ok(());
        }
        let mut inner = lock(&self.inner);
        if inner.epoch != epoch {
            (inner.epoch, inner.count) = (epoch, 0);
        }
        inner.record(faults)?;
        let limit = self.policy.limit();
        let mut count = inner.count;
        for fault in faults.drain(..) {
            count += u64::from(fault.outcome != Outcome::Retried);
            match (fault.outcome, limit) {
                (Outcome::Retried, _) => {}
                (_, None) => return Err(fault.error),
                (_, Some(limit)) if count > limit => {
                    let text = format!(
                        "{count} samples of epoch {epoch} failed, the limit is {limit}; the last one: {}",
                        fault.error.message()
                    );
                    let place = fault.error.place().clone();
                    return Err(Error::new(ErrorKind::TooManyFaults, text).at(place).caused_by(fault.error));
                }
                _ => {}
            }
        }
        inner.count = count;
        Ok(())
    }
}

impl Inner {
    /// Appends a line a fault to the quarantine file.
    fn record(&mut self, faults: &[Fault]) -> Result<()> {
        let Some((path, file)) = &mut self.quarantine else { return Ok(()) };
        let mut lines = String::new();
        for fault in faults {
            lines.push_str(&line(fault));
            lines.push('\n');
        }
        file.write_all(lines.as_bytes())
            .map_err(|e| Error::io(path.clone(), "can't write the quarantine file", e))
    }
}

/// A fault as one line of JSON.
fn line(fault: &Fault) -> String {
    let p: &Place = fault.error.place();
    serde_json::json!({
        "epoch": p.epoch,
        "batch": p.batch,
        "row": fault.row,
        "index": p.index,
        "path": p.path.as_ref().map(|p| p.to_string_lossy()),
        "shard": p.shard,
        "member": p.member,
        "line": p.line,
        "offset": p.offset,
        "stage": p.stage.map(|s| s.name()),
        "attempt": fault.attempt,
        "outcome": match fault.outcome {
            Outcome::Failed => "failed",
            Outcome::Retried => "retried",
            Outcome::Replaced => "replaced",
        },
        "error": format!("{:?}", fault.error.kind()),
        "message": fault.error.message(),
    })
    .to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(row: usize, outcome: Outcome) -> Fault {
        Fault { row, attempt: 0, outcome, error: Error::new(ErrorKind::Sample, format!("row {row}")) }
    }

    #[test]
    fn retries_end_in_the_policy_behind_them() {
        let then = Box::new(OnError::Replace { limit: 1 });
        let policy = OnError::Retry { times: 2, backoff: Duration::from_millis(3), then };
        let judge = |attempt| policy.judge(attempt, [1, 2, 3], 100);
        assert_eq!(judge(0), Verdict::Again(Duration::from_millis(3)));
        assert_eq!(judge(1), Verdict::Again(Duration::from_millis(6)));
        let Verdict::Replace(first) = judge(2) else { panic!() };
        let Verdict::Replace(second) = judge(3) else { panic!() };
        assert!(first < 100 && second < 100 && first != second);
        assert_eq!(judge(4), Verdict::GiveUp);
        assert!(policy.replaces());
        assert_eq!(OnError::Fail.judge(0, [0; 3], 5), Verdict::GiveUp);
    }

    #[test]
    fn the_limit_trips_in_delivery_order_and_starts_again_with_the_epoch() {
        let tally = Tally::new(OnError::Skip { limit: 2 }, None).unwrap();
        let two = || vec![fault(0, Outcome::Failed), fault(1, Outcome::Retried), fault(2, Outcome::Failed)];
        tally.deliver(0, &mut two()).unwrap();
        let e = tally.deliver(0, &mut vec![fault(5, Outcome::Failed)]).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::TooManyFaults);
        assert!(e.to_string().contains("row 5"), "{e}");
        tally.deliver(1, &mut two()).unwrap();
        let fail = Tally::new(OnError::Fail, None).unwrap();
        assert_eq!(fail.deliver(0, &mut two()).unwrap_err().message(), "row 0");
        fail.deliver(0, &mut vec![fault(1, Outcome::Retried)]).unwrap();
    }

    #[test]
    fn the_quarantine_has_a_line_of_json_a_fault() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("quarantine.jsonl");
        let tally = Tally::new(OnError::Skip { limit: 9 }, Some(&path)).unwrap();
        let place = Place { epoch: Some(3), path: Some("a.jpg".into()), ..Place::of_index(7) };
        let error = Error::new(ErrorKind::Truncated, "short").at(place);
        tally.deliver(3, &mut vec![Fault { row: 1, attempt: 0, outcome: Outcome::Failed, error }]).unwrap();
        let text = std::fs::read_to_string(path).unwrap();
        let json: serde_json::Value = serde_json::from_str(text.trim_end()).unwrap();
        assert_eq!((json["epoch"].as_u64(), json["index"].as_u64()), (Some(3), Some(7)));
        assert_eq!((json["path"].as_str(), json["error"].as_str()), (Some("a.jpg"), Some("Truncated")));
    }
}

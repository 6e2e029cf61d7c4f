//! All samples, several at a time, none of which can stop the others.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use warpfeed::{Error, ErrorKind};

/// How often it is looked whether a sample is stuck.
const LOOK: Duration = Duration::from_millis(100);

/// A check of samples by number, with a memory that each thread has for itself.
pub(crate) type Check<C, T> = Arc<dyn Fn(&mut C, u64) -> Result<T, Error> + Send + Sync>;

/// The outcome of one number.
type Outcome<T> = (u64, Result<T, Error>);

struct Shared<C, T> {
    len: u64,
    check: Check<C, T>,
    next: AtomicU64,
    stop: AtomicBool,
    /// What each thread is at, and since when; `None` where it has nothing, or was given up.
    at: Mutex<Vec<Option<(u64, Instant)>>>,
}

/// Checks the numbers below `len` on `workers` threads and tells `see` the outcome of each, in the order in which they come. A panic is an
/// error; so is a sample that takes longer than `patience`, whose thread is left to itself and replaced. `tick` is told how many are
/// done, at least ten times a second; it ends all by `false`.
///
/// # Errors
/// Where no thread can be started.
pub(crate) fn sweep<C: Default + 'static, T: Send + 'static>(
    len: u64,
    (workers, patience): (usize, Duration),
    check: Check<C, T>,
    mut see: impl FnMut(u64, Result<T, Error>),
    mut tick: impl FnMut(u64) -> bool,
) -> io::Result<()> {
    let at = Mutex::new(Vec::new());
    let shared = Arc::new(Shared { len, check, next: AtomicU64::new(0), stop: AtomicBool::new(false), at });
    let (give, take) = channel::<Outcome<T>>();
    let most = usize::try_from(len).unwrap_or(usize::MAX);
    for _ in 0..workers.clamp(1, most.max(1)) {
        start(&shared, &give)?;
    }
    let (mut done, mut looked) = (0, Instant::now());
    while done < len && tick(done) {
        match take.recv_timeout(LOOK) {
            Ok((number, outcome)) => {
                see(number, outcome);
                done += 1;
            }
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {}
        }
        if looked.elapsed() < LOOK {
            continue;
        }
        looked = Instant::now();
        for (number, since) in give_up(&shared, patience) {
            let text =
                format!("not done after {:.0} s: it was left to itself", since.elapsed().as_secs_f64());
            see(number, Err(Error::new(ErrorKind::Timeout, text)));
            done += 1;
            // Where there can be no other thread, those that are left go on.
            let _ = start(&shared, &give);
        }
    }
    tick(done);
    shared.stop.store(true, Relaxed);
    Ok(())
}

/// Takes what has been worked at for longer than `patience` from its threads.
fn give_up<C, T>(shared: &Shared<C, T>, patience: Duration) -> Vec<(u64, Instant)> {
    let mut at = shared.at.lock().unwrap_or_else(PoisonError::into_inner);
    let late = |at: &mut Option<(u64, Instant)>| at.take_if(|(_, since)| since.elapsed() > patience);
    at.iter_mut().filter_map(late).collect()
}

fn start<C: Default + 'static, T: Send + 'static>(
    shared: &Arc<Shared<C, T>>,
    give: &Sender<Outcome<T>>,
) -> io::Result<()> {
    let (shared, give) = (shared.clone(), give.clone());
    let own = {
        let mut at = shared.at.lock().unwrap_or_else(PoisonError::into_inner);
        at.push(None);
        at.len() - 1
    };
    let work = move || {
        let mut scratch = C::default();
        while !shared.stop.load(Relaxed) {
            let number = shared.next.fetch_add(1, Relaxed);
            if number >= shared.len {
                break;
            }
            let set = |to| {
                let mut at = shared.at.lock().unwrap_or_else(PoisonError::into_inner);
                at.get_mut(own).and_then(|at| std::mem::replace(at, to))
            };
            set(Some((number, Instant::now())));
            let checked = catch_unwind(AssertUnwindSafe(|| (shared.check)(&mut scratch, number)));
            let outcome = checked.unwrap_or_else(|payload| {
                scratch = C::default();
                Err(Error::from_panic(payload))
            });
            // It was given up meanwhile, and another thread works in the place of this one.
            if set(None).is_none() || give.send((number, outcome)).is_err() {
                break;
            }
        }
    };
    std::thread::Builder::new().name("warpfeed-sweep".to_string()).spawn(work).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_and_a_stuck_sample_stop_no_other() {
        let check: Check<u64, u64> = Arc::new(|sum, number| {
            *sum += 1;
            match number {
                3 => panic!("of sample 3"),
                5 | 6 => std::thread::sleep(Duration::from_secs(600)),
                7 => return Err(Error::new(ErrorKind::Corrupt, "bad")),
                _ => {}
            }
            Ok(number * 10)
        });
        let mut seen = std::collections::BTreeMap::new();
        let (begun, mut last) = (Instant::now(), 0);
        sweep(
            100,
            (2, Duration::from_secs(4)), // longer than a panic takes to be printed on a busy machine
            check,
            |number, outcome| assert!(seen.insert(number, outcome).is_none(), "{number} came twice"),
            |done| {
                last = done;
                begun.elapsed() < Duration::from_secs(60)
            },
        )
        .unwrap();
        assert_eq!((seen.len(), last), (100, 100));
        for (number, outcome) in seen {
            match (number, outcome) {
                (3, Err(e)) => {
                    assert!(e.kind() == ErrorKind::Panic && e.message().contains("of sample 3"), "{e}");
                }
                (5 | 6, Err(e)) => assert_eq!(e.kind(), ErrorKind::Timeout),
                (7, Err(e)) => assert_eq!(e.kind(), ErrorKind::Corrupt),
                (number, outcome) => assert_eq!(outcome.unwrap(), number * 10),
            }
        }
    }

    #[test]
    fn it_ends_when_it_is_told_to() {
        let check: Check<(), ()> = Arc::new(|(), _| {
            std::thread::sleep(Duration::from_millis(1));
            Ok(())
        });
        let mut seen = 0;
        sweep(u64::MAX, (2, LOOK), check, |_, _| seen += 1, |done| done < 10).unwrap();
        assert_eq!(seen, 10);
        let none: Check<(), ()> = Arc::new(|(), _| Ok(()));
        sweep(0, (2, LOOK), none, |_, _| unreachable!(), |_| true).unwrap();
    }
}

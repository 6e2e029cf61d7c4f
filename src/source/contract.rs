//! What every source promises, checked against a plain list of the expected records.

use std::fmt::Debug;
use std::sync::mpsc::channel;
use std::time::Duration;

use super::{Part, Records, Source};
use crate::error::ErrorKind;

/// Indices in an order that is neither sorted nor without repeats.
fn shuffled(n: u64) -> impl Iterator<Item = u64> {
    (0..2 * n).map(move |i| (i * 7 + 3) % n)
}

/// The contract of an indexed source that holds `expected`.
pub(crate) fn holds_contract<S>(source: &S, expected: &[&S::Record])
where
    S: Source,
    S::Record: PartialEq + Debug + Sync,
{
    let n = expected.len() as u64;
    assert_eq!(source.len(), Some(n));
    assert_eq!(source.is_empty(), n == 0);
    assert_eq!(source.fingerprint(), source.fingerprint());
    assert!(source.open(0).unwrap() && source.open(1).unwrap() && source.reopens());
    source.hint(&[]);
    source.hint(&[0, n, u64::MAX, n.wrapping_sub(1), 0]);
    source.hint(&shuffled(n).collect::<Vec<_>>());
    let mut scratch = S::Scratch::default();
    assert_eq!(source.pull(&mut scratch).unwrap_err().kind(), ErrorKind::NotResumable);
    for i in shuffled(n) {
        assert_eq!(source.read(i, &mut scratch).unwrap(), expected[i as usize], "record {i}");
        assert_eq!(source.describe(i).index, Some(i));
    }
    for i in [n, n + 1, u64::MAX] {
        let error =
            source.read(i, &mut scratch).err().unwrap_or_else(|| panic!("record {i} of {n} was read"));
        assert_eq!((error.kind(), error.place().index), (ErrorKind::InvalidArgument, Some(i)));
        assert_eq!(source.describe(i).index, Some(i));
    }
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let mut scratch = S::Scratch::default();
                for i in shuffled(n) {
                    assert_eq!(source.read(i, &mut scratch).unwrap(), expected[i as usize], "record {i}");
                }
            });
        }
    });
}

/// The contract of [`Records`], on top of [`holds_contract`].
pub(crate) fn holds_records_contract<S: Records>(source: &S, parts: &[Part], expected: &[&[u8]]) {
    holds_contract(source, expected);
    assert_eq!(source.parts(), parts);
    let n = expected.len() as u64;
    let mut buffers: Vec<Vec<u8>> = parts.iter().map(|p| vec![0xAA; p.range.len()]).collect();
    for i in shuffled(n) {
        let mut rows: Vec<&mut [u8]> = buffers.iter_mut().map(Vec::as_mut_slice).collect();
        source.read_into(i, &mut rows).unwrap();
        for (part, row) in parts.iter().zip(&rows) {
            assert_eq!(**row, expected[i as usize][part.range.clone()], "part {} of record {i}", part.field);
        }
    }
    let refused = |i: u64, rows: &mut [Vec<u8>]| {
        let mut rows: Vec<&mut [u8]> = rows.iter_mut().map(Vec::as_mut_slice).collect();
        let error = source.read_into(i, &mut rows).unwrap_err();
        assert_eq!((error.kind(), error.place().index), (ErrorKind::InvalidArgument, Some(i)), "{error}");
    };
    refused(n, &mut buffers);
    refused(u64::MAX, &mut buffers);
    if n > 0 {
        refused(0, &mut []);
        buffers[0].push(0);
        refused(0, &mut buffers);
        buffers[0].truncate(parts[0].range.len() - 1);
        refused(0, &mut buffers);
    }
}

/// Pulls until the end; an error is kept as its message.
pub(crate) fn pull_all<S>(source: &S) -> Vec<Result<<S::Record as ToOwned>::Owned, String>>
where
    S: Source,
    S::Record: ToOwned,
{
    let mut out = Vec::new();
    let mut scratch = S::Scratch::default();
    loop {
        match source.pull(&mut scratch) {
            Ok(true) => out.push(Ok(source.read(out.len() as u64, &mut scratch).unwrap().to_owned())),
            Ok(false) => return out,
            Err(e) => out.push(Err(e.message().to_string())),
        }
    }
}

/// The contract of a sequence that opens again and gives `expected` in that order.
pub(crate) fn holds_sequence_contract<S>(source: &S, expected: &[&S::Record])
where
    S: Source,
    S::Record: ToOwned + PartialEq + Debug,
{
    assert_eq!((source.len(), source.is_empty()), (None, false));
    assert_eq!(source.fingerprint(), source.fingerprint());
    source.hint(&[0, 1]);
    let nothing = source.read(0, &mut S::Scratch::default()).err().map(|e| (e.kind(), e.place().index));
    assert_eq!(nothing, Some((ErrorKind::InvalidArgument, Some(0))));
    for epoch in 0..3 {
        assert!(source.open(epoch).unwrap());
        if epoch == 1 {
            let _ = source.pull(&mut S::Scratch::default()); // left early: the next opening starts again
            assert!(source.open(epoch).unwrap());
        }
        let got: Vec<_> = pull_all(source).into_iter().map(Result::unwrap).collect();
        let got: Vec<&S::Record> = got.iter().map(std::borrow::Borrow::borrow).collect();
        assert_eq!(got, expected);
        assert!(!source.pull(&mut S::Scratch::default()).unwrap(), "the end is the end");
    }
}

/// Runs `f` on a thread; a hang is a failed test.
pub(crate) fn within<T: Send + 'static>(seconds: u64, f: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, result) = channel();
    let thread = std::thread::spawn(move || done.send(f()));
    match result.recv_timeout(Duration::from_secs(seconds)) {
        Ok(value) => value,
        Err(_) if thread.is_finished() => panic!("{:?}", thread.join().map(drop)),
        Err(e) => panic!("no result after {seconds} s: {e}"),
    }
}

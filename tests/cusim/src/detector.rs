//! Finds accesses that nothing puts in order: no event, no synchronise, no program order.
//!
//! Every stream has a vector clock. An operation is stamped when it is *given* to its stream, so what is found
//! depends on the calls and not on how long anything took. The host has **one** clock, shared by all its
//! threads: what one thread has seen done (by a synchronise, a successful query, a host function that ran), all
//! of them are taken to know. Ordering between host threads is therefore never reported.

use crate::clock::Clock;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, PartialOrd, Ord)]
pub enum Kind {
    Read,
    Write,
    /// Read and written in one: those of several launches need no order among them.
    Atomic,
}

impl Kind {
    /// Whether two accesses of the same memory need an order.
    fn clashes(self, other: Kind) -> bool {
        self == Kind::Write || self != other
    }

    fn verb(self) -> &'static str {
        match self {
            Kind::Read => "reads",
            Kind::Write => "writes",
            Kind::Atomic => "changes",
        }
    }
}

/// `rows` runs of `width` bytes, `pitch` bytes apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Span {
    pub lo: usize,
    pub width: usize,
    pub pitch: usize,
    pub rows: usize,
}

impl Span {
    pub fn bytes(lo: usize, n: usize) -> Span {
        Span { lo, width: n, pitch: n, rows: 1 }
    }

    pub fn rows(lo: usize, width: usize, pitch: usize, rows: usize) -> Span {
        if rows <= 1 || width == pitch {
            return Span::bytes(lo, width * rows);
        }
        Span { lo, width, pitch, rows }
    }

    /// One past the last byte.
    pub fn hi(&self) -> usize {
        if self.rows == 0 { self.lo } else { self.lo + (self.rows - 1) * self.pitch + self.width }
    }

    /// Whether a byte of this lies in `lo..hi`.
    pub fn meets_range(&self, lo: usize, hi: usize) -> bool {
        if lo >= hi || self.width == 0 || self.rows == 0 || self.hi() <= lo {
            return false;
        }
        // The first row that ends after `lo`.
        let row = if lo < self.lo + self.width { 0 } else { (lo - self.lo - self.width) / self.pitch + 1 };
        row < self.rows && self.lo + row * self.pitch < hi
    }

    pub fn meets(&self, other: &Span) -> bool {
        let (few, many) = if self.rows <= other.rows { (self, other) } else { (other, self) };
        (0..few.rows).any(|row| {
            let lo = few.lo + row * few.pitch;
            many.meets_range(lo, lo + few.width)
        })
    }

    fn covers(&self, other: &Span) -> bool {
        self == other || (self.rows == 1 && self.lo <= other.lo && other.hi() <= self.hi())
    }
}

/// A piece of memory and what an operation does to it.
#[derive(Clone, Debug)]
pub struct Touch {
    /// The allocation, by its number.
    pub object: u64,
    /// The allocation in words.
    pub named: Arc<str>,
    pub span: Span,
    pub kind: Kind,
}

impl Touch {
    pub fn conflicts(&self, other: &Touch) -> bool {
        self.kind.clashes(other.kind) && self.object == other.object && self.span.meets(&other.span)
    }
}

/// An operation that was given to a stream.
#[derive(Clone)]
pub struct Stamp {
    pub lane: usize,
    pub stamp: u64,
    pub call: Arc<str>,
    pub what: Arc<str>,
}

pub struct Access {
    pub span: Span,
    pub kind: Kind,
    pub by: Stamp,
}

/// One line of a report, counted instead of repeated.
#[derive(Default)]
pub struct Findings(BTreeMap<(String, String, u64), (String, u64)>);

impl Findings {
    pub fn add(&mut self, first: &str, second: &str, object: u64, text: impl FnOnce() -> String) {
        let key = (first.to_owned(), second.to_owned(), object);
        self.0.entry(key).or_insert_with(|| (text(), 0)).1 += 1;
    }

    /// Text and count of each.
    pub fn lines(&self) -> impl Iterator<Item = (&str, u64)> {
        self.0.values().map(|(text, count)| (text.as_str(), *count))
    }

    pub fn clear(&mut self) {
        self.0.clear();
    }
}

#[derive(Default)]
pub struct Detector {
    /// What the host has seen done.
    pub host: Clock,
    lanes: Vec<Clock>,
    /// Lanes of streams that were destroyed.
    retired: Vec<usize>,
    shadow: HashMap<u64, Vec<Access>>,
    pub races: Findings,
    pub host_races: Findings,
    pub checked: u64,
    operations: u64,
}

impl Detector {
    /// A lane for a new stream: that of a destroyed one where the host has seen all of its work done, so that clocks
    /// do not grow with every stream that ever was.
    pub fn add_lane(&mut self) -> usize {
        let seen = |&lane: &usize| self.host.get(lane) >= self.lanes[lane].get(lane);
        if let Some(k) = self.retired.iter().position(seen) {
            let lane = self.retired.swap_remove(k);
            self.lanes[lane] = self.host.clone();
            return lane;
        }
        self.lanes.push(self.host.clone());
        self.lanes.len() - 1
    }

    pub fn retire_lane(&mut self, lane: usize) {
        self.retired.push(lane);
    }

    pub fn lane(&self, lane: usize) -> &Clock {
        &self.lanes[lane]
    }

    /// `lane` waits for all that `clock` knows.
    pub fn join(&mut self, lane: usize, clock: &Clock) {
        self.lanes[lane].join(clock);
    }

    /// An operation given to `lane`: after all that was given to it before, and all that the host has seen.
    pub fn begin(&mut self, lane: usize, call: &str, detail: &str) -> (u64, Stamp) {
        let host = self.host.clone();
        self.lanes[lane].join(&host);
        let stamp = self.lanes[lane].tick(lane);
        self.operations += 1;
        let what = format!("#{} {call}{detail} on stream {lane}", self.operations);
        (self.operations, Stamp { lane, stamp, call: call.into(), what: what.into() })
    }

    /// `by` touches memory: reports what it is not ordered with, and remembers it.
    pub fn touch(&mut self, by: &Stamp, touch: &Touch) {
        self.checked += 1;
        let clock = &self.lanes[by.lane];
        let list = self.shadow.entry(touch.object).or_default();
        for old in list.iter().filter(|old| conflict(old, &touch.span, touch.kind, clock)) {
            self.races.add(&old.by.call, &by.call, touch.object, || {
                format!(
                    "RACE on {}: {} {} it, and nothing orders that after {}, which {} it",
                    touch.named,
                    by.what,
                    touch.kind.verb(),
                    old.by.what,
                    old.kind.verb()
                )
            });
        }
        // An older access is forgotten where the host knows it done, and where whatever is not ordered after it
        // is not ordered after the new one either and conflicts with that just the same.
        let host = &self.host;
        list.retain(|old| {
            let known = old.by.stamp <= host.get(old.by.lane);
            let implied = old.by.stamp <= clock.get(old.by.lane)
                && touch.span.covers(&old.span)
                && (touch.kind == Kind::Write || old.kind == touch.kind);
            !known && !implied
        });
        list.push(Access { span: touch.span, kind: touch.kind, by: by.clone() });
    }

    /// The host itself touches memory in `call`, knowing what it knows now.
    pub fn touch_from_host(&mut self, call: &str, touch: &Touch) {
        self.checked += 1;
        for old in self.shadow.get(&touch.object).into_iter().flatten() {
            if conflict(old, &touch.span, touch.kind, &self.host) {
                self.host_races.add(&old.by.call, call, touch.object, || {
                    format!(
                        "HOST RACE on {}: {call} {} it before {}, which {} it, was seen to be done",
                        touch.named,
                        touch.kind.verb(),
                        old.by.what,
                        old.kind.verb()
                    )
                });
            }
        }
    }

    /// Accesses of an allocation that the host has not seen done.
    pub fn in_flight(&self, object: u64) -> impl Iterator<Item = &Access> {
        let live = |old: &&Access| old.by.stamp > self.host.get(old.by.lane);
        self.shadow.get(&object).into_iter().flatten().filter(live)
    }

    /// Forgets what was found; what is ordered stays known.
    pub fn clear(&mut self) {
        self.races.clear();
        self.host_races.clear();
        self.checked = 0;
    }

    pub fn forget(&mut self, object: u64) {
        self.shadow.remove(&object);
    }
}

fn conflict(old: &Access, span: &Span, kind: Kind, known: &Clock) -> bool {
    kind.clashes(old.kind) && old.by.stamp > known.get(old.by.lane) && old.span.meets(span)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn atomic_changes_need_no_order_among_themselves() {
        use Kind::{Atomic, Read, Write};
        for (a, b, clash) in [
            (Read, Read, false),
            (Read, Write, true),
            (Write, Write, true),
            (Atomic, Atomic, false),
            (Atomic, Read, true),
            (Atomic, Write, true),
        ] {
            assert_eq!((a.clashes(b), b.clashes(a)), (clash, clash), "{a:?} {b:?}");
        }
    }

    #[test]
    fn rows_meet_only_where_bytes_do() {
        let left = Span::rows(0, 4, 16, 8); // columns 0..4
        let right = Span::rows(8, 4, 16, 8); // columns 8..12
        assert!(!left.meets(&right) && !right.meets(&left));
        assert!(left.meets(&Span::rows(3, 2, 16, 2)));
        assert!(left.meets(&Span::bytes(16 * 7 + 3, 100)));
        assert!(!left.meets(&Span::bytes(16 * 7 + 4, 100)));
        assert!(!left.meets(&Span::bytes(4, 12)));
        assert!(left.meets(&Span::bytes(4, 13)));
        assert_eq!(left.hi(), 16 * 7 + 4);
    }

    #[test]
    fn spans_agree_with_a_byte_map() {
        let spans: Vec<Span> = (0..4)
            .flat_map(|lo| {
                (1..4).flat_map(move |width| (1..4).map(move |rows| Span::rows(lo * 3, width, 5, rows)))
            })
            .collect();
        let map = |s: &Span| {
            let mut bytes = [false; 64];
            (0..s.rows).for_each(|r| bytes[s.lo + r * s.pitch..][..s.width].fill(true));
            bytes
        };
        for a in &spans {
            for b in &spans {
                let real = map(a).iter().zip(map(b)).any(|(x, y)| *x && y);
                assert_eq!(a.meets(b), real, "{a:?} {b:?}");
            }
        }
    }
}

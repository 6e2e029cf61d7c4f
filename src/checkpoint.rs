//! Where a run stands, small enough to put into any checkpoint.

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, ErrorKind, Result};

/// The version of the text format, and of all that a position's meaning rests on: the permutations, the keys
/// and the sharding rule.
const VERSION: u32 = 1;

/// The position *delivered*: what was prefetched does not count.
///
/// Plain and portable. As text ([`fmt::Display`], [`FromStr`]) it is
/// `warpfeed1:EPOCH:POSITION:FINGERPRINT`, under 100 bytes; after [`AsReady`](crate::Order::AsReady) delivery
/// `:MAP:BATCH:WORLD` follow. Positions are global: a state resumes under any number of
/// workers, slots and ranks and any batch size, except while a map is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct State {
    pub(crate) epoch: u64,
    pub(crate) position: u64,
    pub(crate) fingerprint: u64,
    pub(crate) ahead: Option<Ahead>,
}

/// Which batches past the position were delivered out of order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Ahead {
    /// Bit k: the k-th batch behind the position was delivered. Bit 0 is clear.
    pub(crate) map: u64,
    pub(crate) batch_size: u64,
    pub(crate) world: u64,
}

impl State {
    /// The epoch that the next sample belongs to, from 0.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The global position of the next sample within its epoch, over all ranks, from 0.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// What identifies source, sampler and seed.
    pub fn fingerprint(&self) -> u64 {
        self.fingerprint
    }

    /// Refuses a state that was saved over other data, in another order, or with a map under another split.
    pub(crate) fn check(&self, fingerprint: u64, batch_size: u64, world: u64) -> Result<()> {
        if self.fingerprint != fingerprint {
            let text = format!(
                "the saved state has fingerprint {:016x}, this loader {fingerprint:016x}: it was saved with another \
                 source, sampler or seed",
                self.fingerprint
            );
            return Err(Error::new(ErrorKind::StateMismatch, text));
        }
        match self.ahead {
            Some(a) if (a.batch_size, a.world) != (batch_size, world) => {
                let text = format!(
                    "a state saved after out-of-order delivery resumes only with the same split: it has batch size {} \
                     and world size {}, this loader {batch_size} and {world}",
                    a.batch_size, a.world
                );
                Err(Error::new(ErrorKind::StateMismatch, text))
            }
            _ => Ok(()),
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "warpfeed{VERSION}:{}:{}:{:016x}", self.epoch, self.position, self.fingerprint)?;
        match &self.ahead {
            None => Ok(()),
            Some(a) => write!(f, ":{:x}:{}:{}", a.map, a.batch_size, a.world),
        }
    }
}

impl FromStr for State {
    type Err = Error;

    /// # Errors
    /// [`ErrorKind::StateMismatch`] for another version, [`ErrorKind::InvalidArgument`] for anything else that is
    /// no state.
    fn from_str(text: &str) -> Result<Self> {
        let bad = || Error::new(ErrorKind::InvalidArgument, format!("{text:?} is no saved state"));
        let mut parts = text.trim().split(':');
        let version = parts.next().and_then(|s| s.strip_prefix("warpfeed")).ok_or_else(bad)?;
        if version != VERSION.to_string() {
            let text = format!("the saved state has format {version}, this build reads {VERSION}");
            return Err(Error::new(ErrorKind::StateMismatch, text));
        }
        let decimal = |part: Option<&str>| part.and_then(|s| s.parse::<u64>().ok()).ok_or_else(bad);
        let hex = |s: &str| u64::from_str_radix(s, 16).map_err(|_| bad());
        let (epoch, position) = (decimal(parts.next())?, decimal(parts.next())?);
        let fingerprint = hex(parts.next().ok_or_else(bad)?)?;
        let ahead = match parts.next() {
            None => None,
            Some(map) => Some(Ahead {
                map: hex(map)?,
                batch_size: decimal(parts.next())?,
                world: decimal(parts.next())?,
            }),
        };
        if parts.next().is_some() {
            return Err(bad());
        }
        Ok(Self { epoch, position, fingerprint, ahead })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: State = State { epoch: 3, position: 1234, fingerprint: 0xabc, ahead: None };

    #[test]
    fn text_round_trips_and_stays_small() {
        let worst = State {
            epoch: u64::MAX,
            position: u64::MAX,
            fingerprint: u64::MAX,
            ahead: Some(Ahead { map: u64::MAX, batch_size: 1 << 20, world: 1 << 16 }),
        };
        for state in [PLAIN, worst] {
            assert_eq!(state.to_string().parse::<State>().unwrap(), state);
        }
        assert_eq!(PLAIN.to_string(), "warpfeed1:3:1234:0000000000000abc");
        assert!(State { ahead: None, ..worst }.to_string().len() < 100);
        assert!(size_of::<State>() < 100);
    }

    #[test]
    fn what_is_no_state_is_refused() {
        for text in
            ["", "warpfeed1", "warpfeed1:1:2", "warpfeed1:1:2:zz", "warpfeed1:1:2:3:4:5:6:7", "x:1:2:3"]
        {
            assert_eq!(text.parse::<State>().unwrap_err().kind(), ErrorKind::InvalidArgument, "{text}");
        }
        assert_eq!("warpfeed2:1:2:3".parse::<State>().unwrap_err().kind(), ErrorKind::StateMismatch);
    }

    #[test]
    fn another_fingerprint_is_refused_with_both_shown() {
        let text = PLAIN.check(0xdef, 8, 1).unwrap_err().to_string();
        assert!(text.contains("abc") && text.contains("def"), "{text}");
        assert!(PLAIN.check(0xabc, 8, 1).is_ok());
        let ahead = State { ahead: Some(Ahead { map: 2, batch_size: 8, world: 1 }), ..PLAIN };
        assert!(ahead.check(0xabc, 8, 1).is_ok());
        assert_eq!(ahead.check(0xabc, 16, 1).unwrap_err().kind(), ErrorKind::StateMismatch);
    }
}

//! Failures that a test asks for.

use crate::error::Code;

/// A call of `function` that fails. Built in steps: `Fault::of("cuMemHostAlloc").nth(3).error(2).forever()`.
#[derive(Clone, Debug, PartialEq)]
pub struct Fault {
    /// The function without the version in its symbol; `kernel NAME` for a kernel that fails while it runs.
    pub function: String,
    /// Which call fails, from 1, counted from when the fault is set.
    pub nth: u64,
    /// The `CUresult`.
    pub error: i32,
    /// Later calls fail too.
    pub forever: bool,
    /// The context fails with it: from then on all its calls return the error.
    pub sticky: bool,
}

impl Fault {
    /// The next call fails with `CUDA_ERROR_UNKNOWN`, once.
    pub fn of(function: &str) -> Fault {
        Fault { function: function.into(), nth: 1, error: Code::UNKNOWN.0, forever: false, sticky: false }
    }

    pub fn nth(self, nth: u64) -> Fault {
        Fault { nth, ..self }
    }

    pub fn error(self, error: i32) -> Fault {
        Fault { error, ..self }
    }

    pub fn forever(self) -> Fault {
        Fault { forever: true, ..self }
    }

    pub fn sticky(self) -> Fault {
        Fault { sticky: true, ..self }
    }

    pub(crate) fn to_text(&self) -> String {
        let Fault { function, nth, error, forever, sticky } = self;
        format!("{nth} {error} {} {} {function}", u8::from(*forever), u8::from(*sticky))
    }

    pub(crate) fn from_text(text: &str) -> Option<Fault> {
        let mut words = text.splitn(5, ' ');
        let mut number = || words.next()?.parse::<u64>().ok();
        let (nth, error) = (number()?, number()?);
        let (forever, sticky) = (number()? != 0, number()? != 0);
        Some(Fault { function: words.next()?.into(), nth, error: error as i32, forever, sticky })
    }
}

pub struct Strike {
    pub code: Code,
    pub sticky: bool,
}

#[derive(Default)]
pub struct Faults(Vec<(Fault, u64)>);

impl Faults {
    pub fn add(&mut self, fault: Fault) {
        self.0.push((fault, 0));
    }

    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// Counts a call of `function`, and says whether and how it fails.
    pub fn strike(&mut self, function: &str) -> Option<Strike> {
        let mut strike = None;
        for (fault, calls) in self.0.iter_mut().filter(|(fault, _)| fault.function == function) {
            *calls += 1;
            if strike.is_none() && (*calls == fault.nth || (fault.forever && *calls > fault.nth)) {
                strike = Some(Strike { code: Code(fault.error), sticky: fault.sticky });
            }
        }
        strike
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nth_call_fails_once_or_from_then_on() {
        let mut faults = Faults::default();
        faults.add(Fault::from_text(&Fault::of("a").nth(2).error(7).to_text()).unwrap());
        faults.add(Fault::of("kernel b").forever());
        let mut hits = |name| (0..4).map(|_| faults.strike(name).map(|s| s.code.0)).collect::<Vec<_>>();
        assert_eq!(hits("a"), [None, Some(7), None, None]);
        assert_eq!(hits("kernel b"), [Some(999); 4]);
        assert_eq!(hits("c"), [None; 4]);
    }
}

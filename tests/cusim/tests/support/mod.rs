//! One driver a process: each test has it to itself, freshly reset.

use cusim::Sim;
use std::ops::Deref;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// `cusim_increment(unsigned* p, unsigned n)`.
#[allow(dead_code)] // not all test files launch it
pub const INCREMENT: &str = include_str!("../increment.ptx");

static LOCK: Mutex<()> = Mutex::new(());

pub struct Locked {
    sim: Sim,
    _lock: MutexGuard<'static, ()>,
}

impl Deref for Locked {
    type Target = Sim;

    fn deref(&self) -> &Sim {
        &self.sim
    }
}

pub fn sim() -> Locked {
    let lock = LOCK.lock().unwrap_or_else(PoisonError::into_inner);
    let sim = Sim::attach().expect("the simulated driver is what this process finds");
    sim.reset();
    Locked { sim, _lock: lock }
}

//! Vector clocks. One component a stream; a component counts the work given to that stream.

#[derive(Clone, Default, Debug, PartialEq, Eq)]
pub struct Clock(Vec<u64>);

impl Clock {
    pub fn get(&self, lane: usize) -> u64 {
        self.0.get(lane).copied().unwrap_or(0)
    }

    /// Takes over everything that `other` knows.
    pub fn join(&mut self, other: &Clock) {
        if self.0.len() < other.0.len() {
            self.0.resize(other.0.len(), 0);
        }
        for (mine, theirs) in self.0.iter_mut().zip(&other.0) {
            *mine = (*mine).max(*theirs);
        }
    }

    /// One more piece of work on `lane`; its stamp.
    pub fn tick(&mut self, lane: usize) -> u64 {
        if self.0.len() <= lane {
            self.0.resize(lane + 1, 0);
        }
        self.0[lane] += 1;
        self.0[lane]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn join_takes_the_later_of_each_component() {
        let (mut a, mut b) = (Clock::default(), Clock::default());
        a.tick(0);
        a.tick(0);
        b.tick(0);
        b.tick(2);
        a.join(&b);
        assert_eq!((a.get(0), a.get(1), a.get(2), a.get(9)), (2, 0, 1, 0));
    }
}

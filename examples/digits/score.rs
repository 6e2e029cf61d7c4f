//! How well held-out digits are told apart.

use std::fmt;

use super::digit::{INK, PIXELS, SIDE};

/// What became of the digits that were classified.
#[derive(Debug, Clone, Default)]
pub(crate) struct Score {
    right: usize,
    mistakes: Vec<Mistake>,
}

#[derive(Debug, Clone)]
struct Mistake {
    image: Vec<u8>,
    label: u8,
    guess: u8,
}

impl Score {
    /// Marks one guess.
    pub(crate) fn mark(&mut self, image: &[u8], label: u8, guess: u8) {
        if guess == label {
            self.right += 1;
        } else {
            self.mistakes.push(Mistake { image: image.to_vec(), label, guess });
        }
    }

    /// Digits that were classified.
    pub(crate) fn seen(&self) -> usize {
        self.right + self.mistakes.len()
    }

    /// The part of them, 0 to 1, that was classified rightly.
    pub(crate) fn accuracy(&self) -> f64 {
        self.right as f64 / self.seen().max(1) as f64
    }
}

/// The first mistakes, drawn side by side.
impl fmt::Display for Score {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHADES: [&str; 5] = ["  ", "░░", "▒▒", "▓▓", "██"];
        const ROOM: usize = 6;
        const WIDTH: usize = 2 * SIDE + 2;
        let shown = &self.mistakes[..self.mistakes.len().min(ROOM)];
        writeln!(f, "{} of {} held-out digits were misread", self.mistakes.len(), self.seen())?;
        for top in (0..PIXELS).step_by(SIDE).take_while(|_| !shown.is_empty()) {
            for mistake in shown {
                let row = &mistake.image[top..top + SIDE];
                let shade = |&ink: &u8| SHADES[usize::from(ink) * (SHADES.len() - 1) / usize::from(INK)];
                write!(f, "{}  ", row.iter().map(shade).collect::<String>())?;
            }
            writeln!(f)?;
        }
        for Mistake { label, guess, .. } in shown {
            write!(f, "{:<WIDTH$}", format!("a {label} read as {guess}"))?;
        }
        Ok(())
    }
}

//! How far long work has come, where nobody sees a bar: a line for each tenth.

use std::io::IsTerminal;

use crate::progress::Progress;

/// Work that is done piece by piece.
pub struct Tenths<'a> {
    progress: &'a Progress,
    what: &'static str,
    total: u64,
    done: u64,
}

impl<'a> Tenths<'a> {
    /// Nothing of `total` yet, which somebody does: "converting".
    pub fn new(progress: &'a Progress, what: &'static str, total: u64) -> Self {
        Self { progress, what, total, done: 0 }
    }

    /// So much more is done.
    pub fn add(&mut self, more: u64) {
        if let Some(percent) = self.passed(more)
            && !std::io::stderr().is_terminal()
        {
            self.progress.say(&format!("{}: {percent}%", self.what));
        }
    }

    /// The tenth that `more` has come to, in percent, if it is another one.
    fn passed(&mut self, more: u64) -> Option<u64> {
        let tenths = |done: u64| (done as f64 / self.total.max(1) as f64 * 10.0) as u64;
        let (before, after) = (tenths(self.done), tenths(self.done + more));
        self.done += more;
        (after > before).then_some(10 * after)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tenth_is_said_once() {
        let progress = Progress::new(true);
        let mut tenths = Tenths::new(&progress, "working", 40);
        let said: Vec<_> = [3, 1, 0, 1, 8, 27].map(|more| tenths.passed(more)).into();
        assert_eq!(said, [None, Some(10), None, None, Some(30), Some(100)]);
    }
}

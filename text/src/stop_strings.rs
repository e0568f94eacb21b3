//! Strings that end an answer.

use crate::{Error, Result};

/// Ends text at the first of several strings, which may arrive in pieces; by default there are none.
#[derive(Debug, Default, Clone)]
pub struct StopStrings {
    stops: Vec<String>,
    held: String,
    /// Which of them has come.
    found: Option<usize>,
}

impl StopStrings {
    /// Stops at any of `stops`; with none of them, text passes through.
    ///
    /// # Errors
    ///
    /// One of them is empty.
    pub fn new(stops: &[String]) -> Result<Self> {
        if stops.iter().any(String::is_empty) {
            return Err(Error::EmptyStopString);
        }
        Ok(Self { stops: stops.to_vec(), held: String::new(), found: None })
    }

    /// Takes text and returns what can be shown, and whether a stop string ended it.
    ///
    /// Text that may be the beginning of a stop string is held back.
    pub fn push(&mut self, text: &str) -> (String, bool) {
        self.held.push_str(text);
        let stops = self.stops.iter().enumerate();
        let found = stops.filter_map(|(i, stop)| Some((self.held.find(stop)?, i))).min();
        if let Some((at, i)) = found {
            self.found = Some(i);
            self.held.truncate(at);
            return (std::mem::take(&mut self.held), true);
        }
        let keep = self.stops.iter().map(|stop| overlap(&self.held, stop)).max().unwrap_or(0);
        let shown = self.held.len() - keep;
        (self.held.drain(..shown).collect(), false)
    }

    /// The stop string that has ended the text; of several that begin there, the first one given.
    pub fn found(&self) -> Option<&str> {
        self.found.map(|i| self.stops[i].as_str())
    }

    /// Returns what was held back: no more text comes.
    pub fn finish(self) -> String {
        self.held
    }
}

/// Length in bytes of the longest proper beginning of `stop` that `text` ends with.
pub(crate) fn overlap(text: &str, stop: &str) -> usize {
    let starts = stop.char_indices().map(|(at, _)| at);
    starts.filter(|&len| text.ends_with(&stop[..len])).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(stops: &[&str], pieces: &[&str]) -> (Vec<String>, bool) {
        let stops: Vec<_> = stops.iter().map(|&s| s.to_owned()).collect();
        let mut stop = StopStrings::new(&stops).unwrap();
        let mut shown = Vec::new();
        for piece in pieces {
            let (text, stopped) = stop.push(piece);
            shown.push(text);
            assert_eq!(stop.found().is_some(), stopped);
            if stopped {
                return (shown, true);
            }
        }
        shown.push(stop.finish());
        (shown, false)
    }

    #[test]
    fn stop_strings_may_span_pieces() {
        assert_eq!(
            run(&["END"], &["ab E", "N", "D cd"]),
            (vec!["ab ".into(), "".into(), "".into()], true)
        );
        let (shown, stopped) = run(&["END"], &["ab E", "N", "e"]);
        assert_eq!((shown.concat().as_str(), stopped), ("ab ENe", false));
        assert_eq!(shown[0], "ab ");
    }

    #[test]
    fn the_earliest_stop_string_wins_and_what_is_held_comes_out() {
        assert_eq!(run(&["yy", "x"], &["ab yyx"]).0, ["ab "]);
        assert_eq!(run(&["xyz", "y"], &["a x", "y"]), (vec!["a ".into(), "x".into()], true));
        assert_eq!(run(&["\n\n"], &["a\n", "b\n"]).0, ["a", "\nb", "\n"]);
        assert_eq!(run(&["aab"], &["a", "a", "a", "b"]).0.concat(), "a");
        assert_eq!(run(&["–x"], &["a –", "y"]).0, ["a ", "–y", ""]);
        assert_eq!(run(&[], &["a", "b"]).0, ["a", "b", ""]);
        assert!(StopStrings::new(&[String::new()]).is_err());
    }
}

//! What the user sees while an IREE folder is being made.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

/// How to report progress; always on stderr.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// Bars that are redrawn in place.
    Bars,
    /// One line per step.
    Lines,
    /// Nothing.
    Silent,
}

impl Progress {
    /// Bars on a terminal, lines elsewhere.
    pub fn detect() -> Progress {
        if std::io::stderr().is_terminal() { Progress::Bars } else { Progress::Lines }
    }

    /// Says one thing.
    pub fn line(self, text: &str) {
        if self != Progress::Silent {
            eprintln!("{text}");
        }
    }

    /// Starts a step whose length is counted in bytes.
    pub fn bytes(self, label: &str, total: u64) -> Step {
        let form = "{msg:32!} [{bar:30}] {bytes:>10}/{total_bytes} {binary_bytes_per_sec}";
        self.step(label, total, form)
    }

    /// Starts a step whose length is counted in pieces of work.
    pub fn pieces(self, label: &str, total: u64) -> Step {
        self.step(label, total, "{msg:32!} [{bar:30}] {pos}/{len} {elapsed}")
    }

    /// Starts a step of unknown length.
    pub fn spinner(self, label: &str) -> Step {
        self.step(label, 0, "{msg:32!} {spinner} {elapsed}")
    }

    fn step(self, label: &str, total: u64, form: &str) -> Step {
        let bar = match self {
            Progress::Bars => ProgressBar::new(total),
            Progress::Lines | Progress::Silent => ProgressBar::hidden(),
        };
        if let Ok(style) = ProgressStyle::with_template(form) {
            bar.set_style(style.progress_chars("=> "));
        }
        bar.set_message(label.to_owned());
        if self == Progress::Bars {
            bar.enable_steady_tick(Duration::from_millis(200));
        }
        Step { progress: self, bar, label: label.to_owned(), started: Instant::now(), done: false }
    }
}

/// One step in progress. Dropped before [`done`](Step::done), it leaves no trace on the terminal.
#[derive(Debug)]
pub struct Step {
    progress: Progress,
    bar: ProgressBar,
    label: String,
    started: Instant,
    done: bool,
}

impl Step {
    /// Sets how much is done.
    pub fn set(&self, position: u64) {
        self.bar.set_position(position);
    }

    /// Sets how much there is to do.
    pub fn set_total(&self, total: u64) {
        self.bar.set_length(total);
    }

    /// Adds to how much is done.
    pub fn add(&self, n: u64) {
        self.bar.inc(n);
    }

    /// Ends the step and says how long it took.
    pub fn done(mut self) {
        self.done = true;
        self.bar.finish_and_clear();
        let seconds = self.started.elapsed().as_secs_f32();
        self.progress.line(&format!("  {} ({seconds:.1} s)", self.label));
    }
}

impl Drop for Step {
    fn drop(&mut self) {
        if !self.done {
            self.bar.finish_and_clear();
        }
    }
}

//! What happens while a model is made ready, on stderr.

use std::borrow::Cow;
use std::collections::HashMap;
use std::io::{self, IsTerminal, Write};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use clap::builder::FalseyValueParser;
use clap::{ArgAction, Args};
use indicatif::{DecimalBytes, MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use xla_session::{Event, Observer};

/// How often a line says how far a long transfer is.
const LINES_APART: Duration = Duration::from_secs(30);

/// Whether it is told.
#[derive(Debug, Clone, Copy, Args)]
pub struct QuietArgs {
    /// Nothing on stderr but errors
    #[arg(short, long, env = "IREE_LLM_QUIET", value_parser = FalseyValueParser::new(),
          action = ArgAction::SetTrue)]
    quiet: bool,
}

impl QuietArgs {
    /// Progress on stderr, unless nobody wants it.
    pub fn progress(self) -> Arc<Progress> {
        Progress::new(self.quiet)
    }
}

/// Bars on a terminal, lines elsewhere, nothing when quiet.
pub struct Progress {
    quiet: bool,
    terminal: bool,
    bars: MultiProgress,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    muted: bool,
    loading: Option<ProgressBar>,
    compiling: HashMap<String, ProgressBar>,
}

impl Progress {
    /// Progress on stderr unless `quiet`.
    pub fn new(quiet: bool) -> Arc<Self> {
        let target =
            if quiet { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() };
        Arc::new(Self {
            quiet,
            terminal: std::io::stderr().is_terminal(),
            bars: MultiProgress::with_draw_target(target),
            state: Mutex::default(),
        })
    }

    /// Hears what a session does, until it is [finished](Self::finish).
    pub fn observer(self: &Arc<Self>) -> Observer {
        self.lock().muted = false;
        let progress = self.clone();
        Arc::new(move |event| progress.on(event))
    }

    /// Removes all bars and shows none any more: text is about to appear.
    pub fn finish(&self) {
        let mut state = self.lock();
        state.muted = true;
        let State { loading, compiling, .. } = &mut *state;
        for bar in loading.take().into_iter().chain(compiling.drain().map(|(_, bar)| bar)) {
            bar.finish_and_clear();
        }
    }

    /// A bar for `total` bytes of something.
    pub fn bytes(&self, what: impl Into<Cow<'static, str>>, total: u64) -> ProgressBar {
        let bar = self.bars.add(ProgressBar::new(total));
        bar.set_style(style("{msg:24!} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta}"));
        bar.set_message(what);
        bar
    }

    /// Shows how far something is that takes long also where there is no bar, of `total` bytes if that is known.
    pub fn transfer(&self, what: impl Into<String>, total: Option<u64>) -> Work<'_> {
        let what = what.into();
        let bar = self.bytes(what.clone(), total.unwrap_or(0));
        self.work(what, bar, total, |bytes| DecimalBytes(bytes).to_string())
    }

    /// The same of `total` weights.
    pub fn weights(&self, what: impl Into<String>, total: u64) -> Work<'_> {
        let what = what.into();
        let bar = self.bars.add(ProgressBar::new(total));
        bar.set_style(style("{msg:24!} {wide_bar} {percent}% {eta}"));
        bar.set_message(what.clone());
        self.work(what, bar, Some(total), |weights| {
            format!("{:.1} M weights", weights as f64 / 1e6)
        })
    }

    /// The same of `total` tokens.
    pub fn tokens(&self, what: impl Into<String>, total: usize) -> Work<'_> {
        let (what, total) = (what.into(), total as u64);
        let bar = self.bars.add(ProgressBar::new(total));
        bar.set_style(style("{msg:24!} {wide_bar} {pos}/{len} tokens {eta}"));
        bar.set_message(what.clone());
        self.work(what, bar, Some(total), |tokens| format!("{tokens} tokens"))
    }

    fn work(
        &self,
        what: String,
        bar: ProgressBar,
        total: Option<u64>,
        unit: fn(u64) -> String,
    ) -> Work<'_> {
        if !self.terminal {
            let size = total.map(|total| format!(" ({})", unit(total)));
            self.say(&format!("{what}{}", size.unwrap_or_default()));
        }
        Work {
            progress: self,
            bar,
            what,
            unit,
            said: Mutex::new(Instant::now()),
            apart: LINES_APART,
        }
    }

    /// A bar for prompts of a file of `bytes` bytes; of a pipe nobody knows how many come.
    pub fn prompts(&self, bytes: Option<u64>) -> ProgressBar {
        let (bar, template) = match bytes {
            Some(bytes) => (ProgressBar::new(bytes), "{wide_bar} {msg} {eta}"),
            None => (ProgressBar::new_spinner(), "{spinner} {msg} {elapsed}"),
        };
        let bar = self.bars.add(bar);
        bar.set_style(style(template));
        bar
    }

    /// A line on stderr, also when quiet: an error.
    pub fn report(&self, line: &str) {
        // Nobody may be there to read it.
        let _ = self.aside(|| writeln!(io::stderr(), "{line}"));
    }

    /// Does what writes to the terminal while the bars are away.
    pub fn aside<R>(&self, write: impl FnOnce() -> R) -> R {
        self.bars.suspend(write)
    }

    /// Stdout, which gets what was written when it is flushed; where it is a terminal, the bars are away meanwhile.
    pub fn stdout(self: &Arc<Self>) -> Box<dyn Write> {
        let stdout = io::stdout();
        if !stdout.is_terminal() {
            return Box::new(stdout);
        }
        Box::new(Beside { progress: self.clone(), to: stdout, text: Vec::new() })
    }

    /// A line on stderr, unless quiet.
    pub fn say(&self, line: &str) {
        if !self.quiet {
            self.report(line);
        }
    }

    fn on(&self, event: Event) {
        let mut state = self.lock();
        if self.quiet || state.muted {
            return;
        }
        match event {
            Event::Compiling { graph } if self.terminal => {
                let bar = self.bars.add(ProgressBar::new_spinner());
                bar.set_style(style("{spinner} compiling {msg} {elapsed}"));
                bar.set_message(graph.clone());
                bar.enable_steady_tick(Duration::from_millis(100));
                state.compiling.insert(graph, bar);
            }
            Event::Compiled { graph, took } => {
                if let Some(bar) = state.compiling.remove(&graph) {
                    bar.finish_and_clear();
                }
                self.say(&format!("compiled {graph} in {:.1} s", took.as_secs_f64()));
            }
            Event::Loading { bytes, total } if self.terminal => {
                let bar = state.loading.get_or_insert_with(|| self.bytes("loading weights", total));
                bar.set_position(bytes);
                if bytes >= total {
                    bar.finish_and_clear();
                }
            }
            Event::WeightsKept { path, bytes } => self.say(&format!(
                "packed weights kept in {} ({}): later starts map them; `iree-llm cache clear \
                 --weights` removes them",
                path.display(),
                DecimalBytes(bytes),
            )),
            Event::NotKept { what, reason } => {
                self.say(&format!("{what}: not kept for the next start: {reason}"));
            }
            _ => {}
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What shares the terminal with the bars.
struct Beside<W> {
    progress: Arc<Progress>,
    to: W,
    /// Not yet there: bars are drawn between whole lines.
    text: Vec<u8>,
}

impl<W: Write> Write for Beside<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.text.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        let Self { progress, to, text } = self;
        let written = progress.aside(|| to.write_all(text).and_then(|()| to.flush()));
        text.clear();
        written
    }
}

/// Something that takes long: a bar on a terminal, elsewhere a line at its beginning and now and then.
pub struct Work<'a> {
    progress: &'a Progress,
    bar: ProgressBar,
    what: String,
    unit: fn(u64) -> String,
    said: Mutex<Instant>,
    apart: Duration,
}

impl iree_llm::Progress for Progress {
    fn say(&self, line: &str) {
        Self::say(self, line);
    }

    fn transfer<'a>(&'a self, name: &str, size: Option<u64>) -> iree_llm::Transferred<'a> {
        let shown = Self::transfer(self, name, size);
        Box::new(move |done, size| shown.set(done, size))
    }
}

impl Work<'_> {
    /// So much is done, of `total` if that is known.
    pub fn set(&self, done: u64, total: Option<u64>) {
        self.bar.set_length(total.unwrap_or(done));
        self.bar.set_position(done);
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.progress.terminal && said.elapsed() >= self.apart {
            *said = Instant::now();
            let of = total.map(|total| format!(" of {}", (self.unit)(total)));
            let (what, of) = (&self.what, of.unwrap_or_default());
            self.progress.say(&format!("{what}: {}{of}", (self.unit)(done)));
        }
    }

    /// So much more is done.
    pub fn add(&self, more: u64) {
        self.set(self.bar.position() + more, self.bar.length());
    }
}

impl Drop for Work<'_> {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).expect("the template is a constant")
}

#[cfg(test)]
mod tests {
    use indicatif::TermLike;

    use super::*;

    #[test]
    fn a_second_model_that_loads_is_shown_too() {
        let progress = Progress::new(true);
        for _ in 0..2 {
            let _hears = progress.observer();
            assert!(!progress.lock().muted);
            progress.finish();
            assert!(progress.lock().muted);
        }
    }

    /// A terminal, and what is written beside the bars on it.
    #[derive(Debug, Clone, Default)]
    struct Screen(Arc<Mutex<String>>);

    impl Screen {
        fn put(&self, text: &str) -> io::Result<()> {
            self.0.lock().unwrap().push_str(text);
            Ok(())
        }
    }

    impl TermLike for Screen {
        fn width(&self) -> u16 {
            80
        }
        fn move_cursor_up(&self, _: usize) -> io::Result<()> {
            Ok(())
        }
        fn move_cursor_down(&self, _: usize) -> io::Result<()> {
            Ok(())
        }
        fn move_cursor_right(&self, _: usize) -> io::Result<()> {
            Ok(())
        }
        fn move_cursor_left(&self, _: usize) -> io::Result<()> {
            Ok(())
        }
        fn write_line(&self, text: &str) -> io::Result<()> {
            self.put(text)
        }
        fn write_str(&self, text: &str) -> io::Result<()> {
            self.put(text)
        }
        fn clear_line(&self) -> io::Result<()> {
            self.put("<clear>")
        }
        fn flush(&self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Write for Screen {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.put(std::str::from_utf8(bytes).unwrap())?;
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_line_on_the_terminal_comes_whole_while_the_bars_are_away() {
        let screen = Screen::default();
        let target = ProgressDrawTarget::term_like(Box::new(screen.clone()));
        let progress = Arc::into_inner(Progress::new(false)).unwrap();
        let bars = MultiProgress::with_draw_target(target);
        let progress = Arc::new(Progress { bars, ..progress });
        let bar = progress.prompts(Some(10));
        bar.set_message("a bar");
        bar.tick();
        let mut beside =
            Beside { progress: progress.clone(), to: screen.clone(), text: Vec::new() };
        let drawn = screen.0.lock().unwrap().len();
        for part in ["a li", "ne\n"] {
            write!(beside, "{part}").unwrap();
        }
        assert_eq!(screen.0.lock().unwrap().len(), drawn);
        beside.flush().unwrap();
        let shown = screen.0.lock().unwrap()[drawn..].to_owned();
        let (before, after) = shown.split_once("a line\n").unwrap();
        assert!(before.ends_with("<clear>") && after.contains("a bar"), "{shown}");
    }

    #[test]
    fn a_line_comes_now_and_then_and_not_with_every_byte() {
        let progress = Arc::into_inner(Progress::new(true)).unwrap();
        let progress = Progress { terminal: false, ..progress };
        let mut work = progress.transfer("file", Some(10));
        let said = *work.said.lock().unwrap();
        work.set(1, Some(10));
        assert_eq!(*work.said.lock().unwrap(), said);
        work.apart = Duration::ZERO;
        work.set(2, Some(10));
        assert!(*work.said.lock().unwrap() > said);
    }
}

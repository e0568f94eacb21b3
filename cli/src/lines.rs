//! Texts and lines of a file or a pipe; lines are read as they are needed.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError, sync_channel};
use std::time::Duration;

use anyhow::{Context, Result};

/// What editors on Windows write before a text in UTF-8, of which it is no part.
const BYTE_ORDER_MARK: &str = "\u{feff}";

/// All of the file at `path`; `-` is stdin.
///
/// # Errors
///
/// It cannot be read, or is not UTF-8.
pub fn read_text(path: &Path) -> Result<String> {
    let text = if path.as_os_str() == "-" {
        let mut text = String::new();
        io::stdin().read_to_string(&mut text).context("cannot read stdin")?;
        text
    } else {
        std::fs::read_to_string(path).with_context(|| path.display().to_string())?
    };
    Ok(text.strip_prefix(BYTE_ORDER_MARK).map(str::to_owned).unwrap_or(text))
}

/// Lines that are read before somebody asks for them.
const AHEAD: usize = 16;

/// A line with its number, from 1.
#[derive(Debug)]
pub struct Line {
    /// Its number.
    pub number: usize,
    /// What it holds, without its end.
    pub text: Vec<u8>,
}

impl Line {
    /// Whether it has white space alone.
    pub fn is_blank(&self) -> bool {
        self.text.trim_ascii().is_empty()
    }
}

/// What there is to read now.
#[derive(Debug)]
pub enum Next {
    /// A line.
    Line(Line),
    /// Nothing yet: a pipe's writer thinks.
    Later,
    /// Nothing more.
    End,
}

/// The lines of a file, in a thread of their own: a pipe may let us wait, and running requests go on
/// meanwhile.
pub struct Lines {
    /// What it is called in errors.
    pub name: String,
    lines: Receiver<io::Result<Line>>,
    /// Size of the file; `None` of a pipe.
    pub bytes: Option<u64>,
}

impl Lines {
    /// Those of the file at `path`; `-` is stdin.
    ///
    /// # Errors
    ///
    /// It cannot be opened, or is a folder.
    pub fn open(path: &Path) -> Result<Self> {
        if path.as_os_str() == "-" {
            return Ok(Self::of("stdin", BufReader::new(io::stdin()), None));
        }
        let open = || {
            let file = File::open(path)?;
            let metadata = file.metadata()?;
            if metadata.is_dir() {
                return Err(io::ErrorKind::IsADirectory.into());
            }
            Ok::<_, io::Error>((file, metadata.is_file().then_some(metadata.len())))
        };
        let name = path.display().to_string();
        let (file, bytes) = open().with_context(|| name.clone())?;
        Ok(Self::of(&name, BufReader::new(file), bytes))
    }

    /// Texts that are there already, a line each.
    pub fn given(texts: &[String]) -> Self {
        let bytes = texts.iter().map(|text| text.len() as u64 + 1).sum();
        let texts: Vec<_> = texts.iter().map(|text| Ok(text.clone().into())).collect();
        Self::ahead("the texts", Some(bytes), texts.into_iter())
    }

    fn of(name: &str, input: impl BufRead + Send + 'static, bytes: Option<u64>) -> Self {
        let mut mark = Some(BYTE_ORDER_MARK.as_bytes());
        let mut whole = move |line: Vec<u8>| {
            let text = mark.take().and_then(|mark| line.strip_prefix(mark)).unwrap_or(&line);
            text.strip_suffix(b"\r").unwrap_or(text).to_vec()
        };
        Self::ahead(name, bytes, input.split(b'\n').map(move |line| line.map(&mut whole)))
    }

    fn ahead(
        name: &str,
        bytes: Option<u64>,
        texts: impl Iterator<Item = io::Result<Vec<u8>>> + Send + 'static,
    ) -> Self {
        let (send, lines) = sync_channel(AHEAD);
        std::thread::spawn(move || {
            for (text, number) in texts.zip(1..) {
                let failed = text.is_err();
                if send.send(text.map(|text| Line { number, text })).is_err() || failed {
                    return;
                }
            }
        });
        Self { name: name.to_owned(), lines, bytes }
    }

    /// The next line, if it is there within `patience`.
    ///
    /// # Errors
    ///
    /// The file cannot be read further.
    pub fn next(&self, patience: Duration) -> Result<Next> {
        let received = if patience.is_zero() {
            self.lines.try_recv()
        } else {
            self.lines.recv_timeout(patience).map_err(|error| match error {
                RecvTimeoutError::Timeout => TryRecvError::Empty,
                RecvTimeoutError::Disconnected => TryRecvError::Disconnected,
            })
        };
        match received {
            Ok(Ok(line)) => Ok(Next::Line(line)),
            Ok(Err(error)) => {
                Err(error).with_context(|| format!("{}: cannot read further", self.name))
            }
            Err(TryRecvError::Empty) => Ok(Next::Later),
            Err(TryRecvError::Disconnected) => Ok(Next::End),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(lines: &Lines) -> Vec<(usize, String)> {
        let mut all = Vec::new();
        loop {
            match lines.next(Duration::from_secs(5)).unwrap() {
                Next::Line(line) => all.push((line.number, String::from_utf8(line.text).unwrap())),
                Next::Later => panic!("a line takes long"),
                Next::End => return all,
            }
        }
    }

    #[test]
    fn lines_are_whole_and_blank_ones_are_some_too() {
        let lines = Lines::of("", "one\r\n\n  \n two \nthree".as_bytes(), None);
        let marked = Lines::of("", "\u{feff}one\n\u{feff}two".as_bytes(), None);
        assert_eq!(all(&marked), [(1, "one".to_owned()), (2, "\u{feff}two".to_owned())]);
        let expected = [(1, "one"), (2, ""), (3, "  "), (4, " two "), (5, "three")];
        assert_eq!(all(&lines), expected.map(|(number, text)| (number, text.to_owned())));
    }

    #[test]
    fn no_more_is_read_than_is_needed() {
        use std::sync::Arc;
        use std::sync::atomic::{AtomicUsize, Ordering};

        /// An endless file.
        struct Endless(Arc<AtomicUsize>);
        impl io::Read for Endless {
            fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
                self.0.fetch_add(1, Ordering::SeqCst);
                buffer[..2].copy_from_slice(b"x\n");
                Ok(2)
            }
        }
        let reads = Arc::new(AtomicUsize::new(0));
        let lines = Lines::of("", BufReader::new(Endless(reads.clone())), None);
        for _ in 0..3 {
            assert!(matches!(lines.next(Duration::from_secs(5)), Ok(Next::Line(_))));
        }
        std::thread::sleep(Duration::from_millis(50));
        // Those taken, those in the channel, and the one that waits for room in it.
        assert!(reads.load(Ordering::SeqCst) <= 3 + AHEAD + 1, "{reads:?}");
    }

    #[test]
    fn a_writer_that_thinks_is_waited_for_only_so_long() {
        let (reader, writer) = io::pipe().unwrap();
        let lines = Lines::of("", BufReader::new(reader), None);
        assert!(matches!(lines.next(Duration::ZERO), Ok(Next::Later)));
        assert!(matches!(lines.next(Duration::from_millis(5)), Ok(Next::Later)));
        drop(writer);
        assert!(matches!(lines.next(Duration::from_secs(5)), Ok(Next::End)));
    }
}

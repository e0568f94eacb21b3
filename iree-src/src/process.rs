//! Runs programs: keeps their output, reports how they fail.

use std::collections::VecDeque;
use std::io::{self, BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::{Error, Result};

/// How many last lines of a failed program's output an error shows.
const TAIL: usize = 30;

/// Runs `command` to its end and returns its stdout.
///
/// # Errors
///
/// [`Error::Tool`] when it cannot be started, [`Error::Command`] when it fails.
pub fn output(what: &str, command: &mut Command) -> Result<String> {
    command.stdin(Stdio::null());
    let output = command.output().map_err(|e| missing(command, &e))?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        let lines: Vec<_> = text.lines().collect();
        return Err(Error::Command {
            what: what.to_owned(),
            status: output.status.to_string(),
            tail: lines[lines.len().saturating_sub(TAIL)..].join("\n"),
            log: None,
        });
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Runs `command` to its end, appends all that it prints to the file `log`, and shows each line
/// to `line`.
///
/// # Errors
///
/// As [`output`], and [`Error::Io`] for the log.
pub fn logged(
    what: &str,
    command: &mut Command,
    log: &Path,
    mut line: impl FnMut(&str),
) -> Result<()> {
    let open = || std::fs::OpenOptions::new().create(true).append(true).open(log);
    let mut file = open().map_err(Error::io("write", log))?;
    // One pipe for both streams keeps their order.
    let (reader, writer) = io::pipe().map_err(Error::io("open a pipe for", log))?;
    let clone = writer.try_clone().map_err(Error::io("open a pipe for", log))?;
    command.stdin(Stdio::null()).stdout(writer).stderr(clone);
    let child = command.spawn();
    // The command holds the write ends; reading would never end while they are open here.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = child.map_err(|e| missing(command, &e))?;
    let mut tail = VecDeque::new();
    let mut reader = BufReader::new(reader);
    let mut bytes = Vec::new();
    while reader.read_until(b'\n', &mut bytes).map_err(Error::io("read output for", log))? > 0 {
        file.write_all(&bytes).map_err(Error::io("write", log))?;
        let text = String::from_utf8_lossy(&bytes).trim_end().to_owned();
        line(&text);
        if tail.len() == TAIL {
            tail.pop_front();
        }
        tail.push_back(text);
        bytes.clear();
    }
    let status = child.wait().map_err(Error::io("wait for the program of", log))?;
    if status.success() {
        return Ok(());
    }
    Err(Error::Command {
        what: what.to_owned(),
        status: status.to_string(),
        tail: tail.make_contiguous().join("\n"),
        log: Some(log.to_owned()),
    })
}

/// The `x` and `y` of a line that begins with ninja's `[x/y]`.
pub fn ninja_status(line: &str) -> Option<(u64, u64)> {
    let (done, rest) = line.strip_prefix('[')?.split_once('/')?;
    let (total, _) = rest.split_once(']')?;
    Some((done.trim().parse().ok()?, total.trim().parse().ok()?))
}

fn missing(command: &Command, error: &io::Error) -> Error {
    let program = command.get_program().to_string_lossy().into_owned();
    Error::Tool {
        why: format!("cannot be started: {error}"),
        fix: format!("install it, or put the folder that has {program} on PATH"),
        tool: program,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_ninja_lines() {
        assert_eq!(ninja_status("[12/345] Building C object x.o"), Some((12, 345)));
        assert_eq!(ninja_status("ninja: error"), None);
        assert_eq!(ninja_status("[x/y] z"), None);
    }

    #[test]
    fn a_failed_program_leaves_its_last_lines_and_its_log() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log");
        let mut command = Command::new("sh");
        command.args(["-c", "echo one; echo two >&2; exit 3"]);
        let mut seen = Vec::new();
        let error = logged("a test", &mut command, &log, |l| seen.push(l.to_owned())).unwrap_err();
        assert_eq!(seen, ["one", "two"]);
        assert_eq!(std::fs::read_to_string(&log).unwrap(), "one\ntwo\n");
        let text = error.to_string();
        assert!(text.contains("a test") && text.contains('3') && text.contains("two"), "{text}");
    }

    #[test]
    fn a_missing_program_is_named() {
        let error = output("x", &mut Command::new("no-such-program-here")).unwrap_err();
        assert!(error.to_string().contains("no-such-program-here"));
    }
}

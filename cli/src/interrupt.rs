//! Ctrl-C: the first one ends what is being generated, the next one the program.

use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};

/// The number of the signal that is Ctrl-C, everywhere.
#[cfg(unix)]
pub const SIGINT: i32 = 2;
/// The conventional exit code after an interrupt.
pub const EXIT: u8 = 130;

/// Longest that the end waits for what is still to be written to stdout.
const FLUSHING: Duration = Duration::from_millis(200);

const IDLE: u8 = 0;
const GENERATING: u8 = 1;
const STOPPING: u8 = 2;

static STATE: AtomicU8 = AtomicU8::new(IDLE);

/// Takes Ctrl-C over for the life of the process.
///
/// # Errors
///
/// The system refuses the handler.
pub fn install() -> Result<()> {
    ctrlc::set_handler(|| {
        if STATE.compare_exchange(GENERATING, STOPPING, Ordering::SeqCst, Ordering::SeqCst).is_err()
        {
            exit_now(EXIT);
        }
    })
    .context("cannot handle Ctrl-C")
}

/// Ends the process at once, whatever its threads are at. What `std::process::exit` runs would take the drivers of GPUs
/// away from those that are in a call of them, which crashes it.
pub fn exit_now(code: u8) -> ! {
    let (flushed, is_flushed) = mpsc::channel();
    // Who writes to a pipe that nobody reads keeps stdout to itself. Stderr, and the log there, has no buffer.
    let flush = move || {
        let _ = io::stdout().flush();
        let _ = flushed.send(());
    };
    if thread::Builder::new().spawn(flush).is_ok() {
        let _ = is_flushed.recv_timeout(FLUSHING);
    }
    // SAFETY: it takes any code, and does not come back.
    unsafe { libc::_exit(code.into()) }
}

/// While this lives, the first Ctrl-C only sets a mark.
pub struct Generating(());

/// From here on Ctrl-C is to be asked for.
pub fn generating() -> Generating {
    STATE.store(GENERATING, Ordering::SeqCst);
    Generating(())
}

/// Whether Ctrl-C was pressed.
pub fn stopped() -> bool {
    STATE.load(Ordering::SeqCst) == STOPPING
}

impl Drop for Generating {
    fn drop(&mut self) {
        STATE.store(IDLE, Ordering::SeqCst);
    }
}

/// How often somebody looks for Ctrl-C who waits for something else.
const LOOK: Duration = Duration::from_millis(20);

/// Ready once Ctrl-C was pressed.
pub async fn pressed() {
    while !stopped() {
        tokio::time::sleep(LOOK).await;
    }
}

/// Takes what is `next` with `each`, as long as something comes, or until Ctrl-C, which is returned.
///
/// # Errors
///
/// Those of `each`, behind which nothing is taken.
pub fn follow<T>(
    mut next: impl AsyncFnMut() -> Option<T>,
    mut each: impl FnMut(T) -> Result<()>,
) -> Result<bool> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
    let _generating = generating();
    runtime.block_on(async {
        loop {
            tokio::select! {
                biased;
                () = pressed() => return Ok(true),
                it = next() => match it {
                    Some(it) => each(it)?,
                    None => return Ok(false),
                },
            }
        }
    })
}

/// The exit code of a command that was or was not interrupted.
pub fn exit_code(interrupted: bool) -> ExitCode {
    if interrupted { ExitCode::from(EXIT) } else { ExitCode::SUCCESS }
}

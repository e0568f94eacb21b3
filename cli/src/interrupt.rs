//! Ctrl-C: the first one ends what is being generated, the next one the program.

use std::process::ExitCode;
use std::sync::atomic::{AtomicU8, Ordering};

use anyhow::{Context, Result};

/// The number of the signal that is Ctrl-C, everywhere.
#[cfg(unix)]
pub const SIGINT: i32 = 2;
/// The conventional exit code after an interrupt.
pub const EXIT: u8 = 130;

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
            std::process::exit(EXIT.into());
        }
    })
    .context("cannot handle Ctrl-C")
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

/// The exit code of a command that was or was not interrupted.
pub fn exit_code(interrupted: bool) -> ExitCode {
    if interrupted { ExitCode::from(EXIT) } else { ExitCode::SUCCESS }
}

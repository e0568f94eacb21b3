//! Errors of kernels on their way through compiled code, which passes on a number only.

use std::collections::VecDeque;
use std::ffi::c_int;
use std::sync::{Mutex, PoisonError};

use crate::base::error::Error;

static FAILURES: Mutex<Failures> =
    Mutex::new(Failures { next: FIRST_FAILURE, known: VecDeque::new() });

struct Failures {
    next: c_int,
    known: VecDeque<(c_int, Error)>,
}

/// `KERN` in ASCII: numbers from here on are hardly in a message for another reason.
const FIRST_FAILURE: c_int = 0x4B45_524E;

/// More workgroups than can fail at once: a worker stops at its first failure.
const MOST_FAILURES: usize = 256;

/// Keeps `error` until its number comes back in the message of a status.
#[cold]
pub(crate) fn keep(error: Error) -> c_int {
    let mut failures = FAILURES.lock().unwrap_or_else(PoisonError::into_inner);
    let number = failures.next;
    failures.next = number.checked_add(1).unwrap_or(FIRST_FAILURE);
    if failures.known.len() == MOST_FAILURES {
        failures.known.pop_front();
    }
    failures.known.push_back((number, error));
    number
}

/// The error of the kernel whose failure the message of a status is about. It stays known: a fence
/// tells its failure to everyone who asks.
///
/// Compiled code returns a number, of which IREE makes a status whose message says it; there is no
/// other way from one to the other, as the status may be read on any thread, and any number of times.
pub(crate) fn of_message(message: &str) -> Option<Error> {
    let failures = FAILURES.lock().unwrap_or_else(PoisonError::into_inner);
    let mut numbers = message.split(|c: char| !c.is_ascii_digit()).filter_map(|n| n.parse().ok());
    let known = |number: c_int| failures.known.iter().find(|(known, _)| *known == number);
    numbers.find_map(known).map(|(_, error)| error.clone())
}

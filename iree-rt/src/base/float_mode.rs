//! How the CPU treats subnormal numbers. IREE's workers take them for zero as long as they live, as does a call of a dispatch on the
//! thread that waits for it; code of Rust's must not run so ([`core::arch`] on changing it), and whoever wrote it
//! does not expect it.

use std::arch::asm;

/// A mode, as the CPU has it in a register.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Mode(u64);

/// Runs `code` with all of IEEE 754, as Rust has it, and goes on as before.
pub(crate) fn of_rust<T>(code: impl FnOnce() -> T) -> T {
    /// Behind a panic, too.
    struct Back(Mode);
    impl Drop for Back {
        fn drop(&mut self) {
            self.0.enter();
        }
    }
    let before = Mode::here();
    if before == Mode::RUST {
        return code();
    }
    let _back = Back(before);
    Mode::RUST.enter();
    code()
}

#[cfg(target_arch = "x86_64")]
impl Mode {
    /// All exceptions masked, to the nearest: MXCSR as a thread begins.
    const RUST: Self = Self(0x1f80);
    /// What has happened is no part of a mode.
    const FLAGS: u32 = 0x3f;

    fn here() -> Self {
        let mut register = 0_u32;
        // SAFETY: it writes four bytes into `register`.
        unsafe { asm!("stmxcsr [{}]", in(reg) &mut register, options(nostack, preserves_flags)) };
        Self((register & !Self::FLAGS).into())
    }

    fn enter(self) {
        let register = self.0 as u32;
        // SAFETY: it reads four bytes of `register`, which have been in this register before, or are its default.
        unsafe {
            asm!("ldmxcsr [{}]", in(reg) &register, options(nostack, readonly));
        }
    }
}

#[cfg(target_arch = "aarch64")]
impl Mode {
    /// FPCR as a thread begins.
    const RUST: Self = Self(0);

    fn here() -> Self {
        let register: u64;
        // SAFETY: it reads a register that every program may read.
        unsafe {
            asm!("mrs {}, fpcr", out(reg) register, options(nomem, nostack, preserves_flags))
        };
        Self(register)
    }

    fn enter(self) {
        // SAFETY: what was in it before, or its default.
        unsafe { asm!("msr fpcr, {}", in(reg) self.0, options(nostack, preserves_flags)) };
    }
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
impl Mode {
    const RUST: Self = Self(0);

    fn here() -> Self {
        Self::RUST
    }

    fn enter(self) {}
}

#[cfg(all(test, any(target_arch = "x86_64", target_arch = "aarch64")))]
mod tests {
    use std::hint::black_box;
    use std::panic::catch_unwind;

    use super::*;

    /// Flush to zero, and take for zero.
    #[cfg(target_arch = "x86_64")]
    const ZERO: Mode = Mode(0x1f80 | 1 << 15 | 1 << 6);
    #[cfg(target_arch = "aarch64")]
    const ZERO: Mode = Mode(1 << 24);

    fn halved() -> f32 {
        black_box(f32::MIN_POSITIVE) / black_box(2.0)
    }

    #[test]
    fn subnormal_numbers_are_there_where_a_worker_takes_them_for_zero() {
        assert!(halved() > 0.0);
        ZERO.enter();
        let outside = [halved(), {
            let caught = catch_unwind(|| of_rust(|| panic!("{}", halved())));
            drop(caught);
            halved()
        }];
        let inside = of_rust(halved);
        let after = Mode::here();
        Mode::RUST.enter();
        assert_eq!(outside, [0.0; 2]);
        assert!(inside > 0.0);
        assert!(after == ZERO);
    }
}

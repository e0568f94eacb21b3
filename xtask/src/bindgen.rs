//! `cargo xtask bindgen`: makes the checked-in bindings of `iree-sys`, or checks them.
//!
//! libclang is the pinned one, so that two machines write the same bytes; `LIBCLANG_PATH`
//! overrides it. How the bindings are made is written in `iree-sys/build/bindings.rs`, which the
//! build script of that crate shares.

#[cfg(feature = "bindgen")]
mod generate;

use std::ffi::OsString;
use std::path::PathBuf;

use anyhow::Result;

use crate::{fetch_iree, flags, iree, workspace};

const LIBCLANG_VAR: &str = "LIBCLANG_PATH";

pub fn run(flags: &flags::Bindgen) -> Result<()> {
    if chosen().is_none() {
        // libclang's place is read from the environment, so that has to be another process.
        let libclang = pinned(flags)?;
        let variables = [(LIBCLANG_VAR, libclang.as_os_str())];
        return workspace::again_with("bindgen", &flags.network, &variables);
    }
    #[cfg(not(feature = "bindgen"))]
    return workspace::again_with("bindgen", &flags.network, &[]);
    #[cfg(feature = "bindgen")]
    generate::run(flags)
}

/// The libclang of the user's environment.
fn chosen() -> Option<OsString> {
    std::env::var_os(LIBCLANG_VAR).filter(|path| !path.is_empty())
}

/// The pinned one.
fn pinned(flags: &flags::Bindgen) -> Result<PathBuf> {
    let request = fetch_iree::base_request(workspace::target_dir()?, &flags.network);
    Ok(iree::tools::libclang(&request)?)
}

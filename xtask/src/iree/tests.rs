//! Whole folders: of an archive that a server here sends, and (when asked for) of real sources.

#[cfg(feature = "dist")]
mod dist;
mod folders;
#[cfg(feature = "dist")]
mod server;

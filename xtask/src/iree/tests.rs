//! Whole folders: of an archive that a server here sends, and (when asked for) of real sources.

#[cfg(feature = "dist")]
mod dist;
mod folders;
#[cfg(feature = "dist")]
mod server;

use iree_src::{Manifest, Origin, OriginKind};

/// That of a folder with nothing in it.
pub fn manifest() -> Manifest {
    Manifest {
        schema: 1,
        iree: iree_src::IREE_VERSION.into(),
        target: iree_src::host_target(),
        origin: Origin { kind: OriginKind::Source, detail: "test".into() },
        sanitizer: None,
        mended: Vec::new(),
        drivers: vec!["local-sync".into()],
        vm_trace: false,
        include: vec![],
        lib: "lib".into(),
        link: vec![],
        compiler: None,
        compiler_library: None,
        fetched: vec![],
        files: vec![],
    }
}

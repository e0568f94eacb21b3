//! Parameters and the module `io_parameters`, through which programs take them: static libraries of
//! IREE that are not in the unified one.

use crate::Manifest;

/// Their names, in link order, and where a build leaves them below the runtime's sources.
pub(crate) const LIBRARIES: [(&str, &str); 7] = [
    ("iree_modules_io_parameters_parameters", "iree/modules/io/parameters"),
    ("iree_io_formats_irpa_irpa", "iree/io/formats/irpa"),
    ("iree_io_stream", "iree/io"),
    ("iree_io_parameter_index_provider", "iree/io"),
    ("iree_io_parameter_provider", "iree/io"),
    ("iree_io_parameter_index", "iree/io"),
    ("iree_hal_utils_file_cache", "iree/hal/utils"),
];

impl Manifest {
    /// Whether what links the folder can give parameters to compiled programs.
    pub fn has_parameters(&self) -> bool {
        let linked = |name: &str| self.link.iter().any(|link| link.ends_with(&format!("={name}")));
        LIBRARIES.iter().all(|(name, _)| linked(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Origin, OriginKind};

    #[test]
    fn a_folder_has_them_when_it_links_all() {
        let mut manifest = Manifest {
            schema: 1,
            iree: "3.13.0".into(),
            target: "t".into(),
            origin: Origin { kind: OriginKind::Registry, detail: "test".into() },
            drivers: vec![],
            sanitizer: None,
            mended: Vec::new(),
            vm_trace: false,
            include: vec![],
            lib: "lib".into(),
            link: vec!["static=iree_runtime_unified".into()],
            compiler: None,
            compiler_library: None,
            fetched: vec![],
            files: vec![],
        };
        assert!(!manifest.has_parameters());
        manifest.link.extend(LIBRARIES.iter().map(|(name, _)| format!("static={name}")));
        assert!(manifest.has_parameters());
        manifest.link.remove(3);
        assert!(!manifest.has_parameters());
    }
}

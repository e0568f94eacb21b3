//! The CUDA headers that the CUDA driver is compiled against.
//!
//! The driver loads `libcuda` when it runs, so a build needs headers and `libdevice` only.

use std::path::{Path, PathBuf};

use iree_src::Fetched;
use iree_src::wheel::Wheel;

use super::request::Request;
use super::{Error, Result, wheel};

const LIBDEVICE: &str = "nvvm/libdevice/libdevice.10.bc";
/// Wheels that together make a toolkit root, each with its folder inside the wheel.
const WHEELS: [(&str, &str); 3] = [
    ("nvidia-cuda-runtime-cu12", "nvidia/cuda_runtime/"),
    ("nvidia-cuda-nvcc-cu12", "nvidia/cuda_nvcc/"),
    ("nvidia-cuda-cccl-cu12", "nvidia/cuda_cccl/"),
];

/// A CUDA toolkit root, or as much of one as the build needs.
pub struct Toolkit {
    pub root: PathBuf,
    pub fetched: Vec<Fetched>,
}

impl Toolkit {
    pub fn libdevice(&self) -> PathBuf {
        self.root.join(LIBDEVICE)
    }

    fn missing(root: &Path) -> Option<PathBuf> {
        ["include/cuda.h", LIBDEVICE].iter().map(|p| root.join(p)).find(|p| !p.exists())
    }
}

/// The installed toolkit that the user named, else one made from wheels in `scratch`.
pub fn toolkit(request: &Request, scratch: &Path) -> Result<Toolkit> {
    if let Some(root) = &request.machine.cuda_home {
        if let Some(missing) = Toolkit::missing(root) {
            return Err(iree_src::Error::Tool {
                tool: "CUDA toolkit".into(),
                why: format!("CUDA_HOME is set, but {} does not exist", missing.display()),
                fix: "correct CUDA_HOME, or unset it to fetch the headers".into(),
            }
            .into());
        }
        return Ok(Toolkit { root: root.clone(), fetched: Vec::new() });
    }
    let root = scratch.join("cuda");
    let mut fetched = Vec::new();
    for (name, prefix) in WHEELS {
        let wheel = Wheel::find(name, &request.target, "set CUDA_HOME to an installed toolkit")?;
        let file = wheel::obtain(&wheel, request)?;
        wheel::unpack(&file, &root, request, |path| {
            let rest = path.strip_prefix(prefix)?;
            // Of the C++ core library, only <nv/target> is included by C headers.
            let wanted = match prefix {
                "nvidia/cuda_cccl/" => rest.starts_with("include/nv/"),
                _ => rest.starts_with("include/") || rest == LIBDEVICE,
            };
            wanted.then(|| rest.into())
        })?;
        fetched.push(wheel.fetched());
    }
    match Toolkit::missing(&root) {
        None => Ok(Toolkit { root, fetched }),
        Some(missing) => Err(Error::request(format!(
            "the pinned CUDA wheels lack {}: set CUDA_HOME to an installed toolkit",
            missing.display()
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::iree::progress::Progress;
    use crate::iree::request::Machine;

    #[test]
    fn a_wrong_cuda_home_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let mut machine = Machine::from_env();
        machine.cuda_home = Some(dir.path().to_owned());
        let mut request = Request::new(dir.path().join("iree"), machine);
        request.progress = Progress::Silent;
        let error = toolkit(&request, dir.path()).err().unwrap().to_string();
        assert!(error.contains("CUDA_HOME") && error.contains("cuda.h"), "{error}");
    }
}

//! Finds the IREE folder (`IREE_CUDA_HOME`, `IREE_DIST`, else `iree/` in the target directory)
//! and links what its `iree.json` lists.

mod folder;
mod link;

use std::env;

fn main() {
    println!("cargo:rerun-if-changed=build");
    for name in folder::VARIABLES {
        println!("cargo:rerun-if-env-changed={name}");
    }
    let linking = env::var_os("CARGO_FEATURE_LINK").is_some();
    match folder::find() {
        Ok(found) => {
            link::metadata(&found);
            if linking {
                link::libraries(&found);
            }
        }
        Err(reason) if linking => link::missing(&reason),
        Err(_) => {}
    }
}

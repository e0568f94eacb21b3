//! Remembers the IREE folder of the build, where the compiler is.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    if let Ok(root) = std::env::var("DEP_IREE_ROOT") {
        println!("cargo:rustc-env=IREE_RT_FOLDER={root}");
    }
}

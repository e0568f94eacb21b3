//! Remembers the IREE folder of the build, where the compiler is, and what its runtime can.

use std::env;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // A program that is given away has no business with the folders of whoever built it.
    let remember = env::var("PROFILE").is_ok_and(|profile| profile == "debug")
        || env::var_os("CARGO_FEATURE_REMEMBER_FOLDER").is_some();
    if let Ok(root) = env::var("DEP_IREE_ROOT")
        && remember
    {
        println!("cargo::rustc-env=IREE_RT_FOLDER={root}");
    }
    println!("cargo::rustc-check-cfg=cfg(cuda_driver)");
    let driver =
        env::var("DEP_IREE_DRIVERS").is_ok_and(|all| all.split(',').any(|it| it == "cuda"));
    if driver && env::var_os("CARGO_FEATURE_CUDA").is_some() {
        println!("cargo::rustc-cfg=cuda_driver");
    }
    println!("cargo::rustc-check-cfg=cfg(task_queue_race)");
    let mended = env::var("DEP_IREE_MENDED").unwrap_or_default();
    if !mended.split(',').any(|it| it == "task-queue-after-push") {
        println!("cargo::rustc-cfg=task_queue_race");
    }
    println!("cargo::rustc-check-cfg=cfg(cpu_features_once)");
    if mended.split(',').any(|it| it == "cpu-features-once") {
        println!("cargo::rustc-cfg=cpu_features_once");
    }
    println!("cargo::rustc-check-cfg=cfg(vm_trace)");
    if env::var("DEP_IREE_VM_TRACE").is_ok_and(|can| can == "true") {
        println!("cargo::rustc-cfg=vm_trace");
    }
}

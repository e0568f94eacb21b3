//! Remembers the IREE folder of the build, where the compiler is, and what its runtime can.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    if let Ok(root) = std::env::var("DEP_IREE_ROOT") {
        println!("cargo:rustc-env=IREE_RT_FOLDER={root}");
    }
    println!("cargo:rustc-check-cfg=cfg(cuda_driver)");
    if std::env::var("DEP_IREE_DRIVERS").is_ok_and(|all| all.split(',').any(|it| it == "cuda")) {
        println!("cargo:rustc-cfg=cuda_driver");
    }
    println!("cargo:rustc-check-cfg=cfg(task_queue_race)");
    let mended = std::env::var("DEP_IREE_MENDED").unwrap_or_default();
    if !mended.split(',').any(|it| it == "task-queue-after-push") {
        println!("cargo:rustc-cfg=task_queue_race");
    }
    println!("cargo:rustc-check-cfg=cfg(vm_trace)");
    if std::env::var("DEP_IREE_VM_TRACE").is_ok_and(|can| can == "true") {
        println!("cargo:rustc-cfg=vm_trace");
    }
}

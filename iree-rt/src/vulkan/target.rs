//! What code for a device of Vulkan is compiled for.

use std::fmt;

use super::Gpu;

/// A device as `iree-compile` is told of it: `#hal.device.target<"vulkan", …>`, an attribute of MLIR, which
/// a module has in its attribute `hal.device.targets`. Such a module is compiled without
/// `--iree-hal-target-device`.
///
/// It is written from the device's own properties. The compiler's named targets
/// (`--iree-vulkan-target`) promise what a device may not have, subgroups of another size above all:
/// code for them computes wrong numbers there, without an error.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Target(String);

impl Target {
    pub(super) fn of(gpu: &Gpu) -> Self {
        let Gpu { features, subgroup_sizes: (_, usual, _), .. } = gpu;
        let some = |items: &[(bool, &'static str)]| -> String {
            let there = items.iter().filter(|(there, _)| *there).map(|(_, name)| *name);
            let there: Vec<_> = there.collect();
            if there.is_empty() { "none".to_owned() } else { there.join("|") }
        };
        let compute = some(&[
            (features.float64, "fp64"),
            (true, "fp32"),
            (features.float16, "fp16"),
            (features.int64, "int64"),
            (true, "int32"),
            (features.int16, "int16"),
            (features.int8, "int8"),
        ]);
        let storage = some(&[
            (features.int64, "b64"),
            (true, "b32"),
            (features.storage16, "b16"),
            (features.storage8, "b8"),
        ]);
        let subgroup = some(&[(features.shuffle, "shuffle"), (features.arithmetic, "arithmetic")]);
        // The compiler's numbers are signed and of 32 bits.
        let signed = |numbers: [u32; 3]| numbers.map(|number| number.min(i32::MAX as u32));
        Self(format!(
            "#hal.device.target<\"vulkan\", [#hal.executable.target<\"vulkan-spirv\", \
             \"vulkan-spirv-fb\", {{iree_codegen.target_info = #iree_gpu.target<arch = \"device\", \
             features = \"spirv:v1.6,cap:Shader\", wgp = <compute = {compute}, storage = {storage}, \
             subgroup = {subgroup}, subgroup_size_choices = [{usual}], max_workgroup_sizes = {:?}, \
             max_thread_count_per_workgroup = {}, max_workgroup_memory_bytes = {}, \
             max_workgroup_counts = {:?}>>}}>]> : !hal.device",
            signed(gpu.workgroup_size),
            gpu.workgroup_threads.min(i32::MAX as u32),
            gpu.shared_bytes.min(i32::MAX as u32),
            signed(gpu.workgroup_count),
        ))
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use crate::hal::vulkan::gpu::tests::lavapipe;

    #[test]
    fn a_target_says_what_the_device_has_and_nothing_else() {
        let mut gpu = lavapipe();
        let target = gpu.target().to_string();
        for there in ["fp64|fp32|fp16", "b64|b32|b16|b8", "subgroup_size_choices = [8]", "= 32768"]
        {
            assert!(target.contains(there), "{target}");
        }
        gpu.features.float64 = false;
        gpu.features.storage8 = false;
        gpu.features.shuffle = false;
        gpu.features.arithmetic = false;
        gpu.workgroup_count = [u32::MAX; 3];
        let target = gpu.target().to_string();
        for there in ["compute = fp32|", "b64|b32|b16,", "subgroup = none", "[2147483647, "] {
            assert!(target.contains(there), "{target}");
        }
    }
}

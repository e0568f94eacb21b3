//! What Vulkan itself says, by the crate `ash`.

use std::ffi::CStr;
use std::sync::OnceLock;

use ash::{Entry, vk};

use super::gpu::{Features, Gpu, Kind};
use crate::base::error::{Code, Error, Result};

/// Vulkan's library, which stays once it is loaded: drivers have threads of their own.
pub(super) fn loader() -> Result<&'static Entry> {
    static LOADED: OnceLock<Entry> = OnceLock::new();
    if let Some(entry) = LOADED.get() {
        return Ok(entry);
    }
    // SAFETY: its initializers are those of Vulkan's loader, which IREE loads in the same way.
    let entry = unsafe { Entry::load() }.map_err(|_| {
        Error::new(
            Code::Unavailable,
            "there is no Vulkan on this machine: its library (libvulkan.so.1) cannot be loaded; install \
             it with the driver of the GPU (Debian: apt install libvulkan1 mesa-vulkan-drivers), or \
             use another device",
        )
    })?;
    Ok(LOADED.get_or_init(|| entry))
}

/// An instance of Vulkan for the time of a question.
struct Instance(ash::Instance);

impl Instance {
    fn new() -> Result<Self> {
        let application = vk::ApplicationInfo::default().api_version(vk::API_VERSION_1_3);
        let info = vk::InstanceCreateInfo::default().application_info(&application);
        // SAFETY: the structs live for the call and point to nothing else.
        let created = unsafe { loader()?.create_instance(&info, None) };
        match created {
            Ok(instance) => Ok(Self(instance)),
            Err(vk::Result::ERROR_INCOMPATIBLE_DRIVER) => Err(Error::new(
                Code::Unavailable,
                "Vulkan has no driver on this machine that can be used: install that of its GPU, or \
                 Mesa's for the CPU (Debian: apt install mesa-vulkan-drivers)",
            )),
            Err(error) => Err(failed("starting Vulkan", error)),
        }
    }

    fn devices(&self) -> Result<Vec<vk::PhysicalDevice>> {
        // SAFETY: the instance is live.
        unsafe { self.0.enumerate_physical_devices() }
            .map_err(|error| failed("asking Vulkan for its devices", error))
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        // SAFETY: ours, and nothing of it is used again.
        unsafe { self.0.destroy_instance(None) };
    }
}

fn failed(what: &str, error: vk::Result) -> Error {
    let code = match error {
        vk::Result::ERROR_OUT_OF_HOST_MEMORY | vk::Result::ERROR_OUT_OF_DEVICE_MEMORY => {
            Code::ResourceExhausted
        }
        _ => Code::Internal,
    };
    Error::new(code, format!("{what}: {error}"))
}

pub(super) fn all() -> Result<Vec<Gpu>> {
    let instance = Instance::new()?;
    let devices = instance.devices()?;
    Ok(devices
        .into_iter()
        .enumerate()
        .map(|(at, device)| describe(&instance, at, device))
        .collect())
}

pub(super) fn free_bytes(ordinal: usize) -> Result<Option<u64>> {
    let instance = Instance::new()?;
    let Some(&device) = instance.devices()?.get(ordinal) else {
        return Err(Error::new(Code::NotFound, format!("there is no device vulkan://{ordinal}")));
    };
    // SAFETY: the device is one of the instance, which is live.
    let extensions = unsafe { instance.0.enumerate_device_extension_properties(device) }
        .map_err(|error| failed("asking a device for its extensions", error))?;
    let name = vk::EXT_MEMORY_BUDGET_NAME;
    if !extensions.iter().any(|it| it.extension_name_as_c_str() == Ok(name)) {
        return Ok(None);
    }
    let mut budget = vk::PhysicalDeviceMemoryBudgetPropertiesEXT::default();
    let mut memory = vk::PhysicalDeviceMemoryProperties2::default().push_next(&mut budget);
    // SAFETY: as above, and the device has the extension whose struct is in the chain.
    unsafe { instance.0.get_physical_device_memory_properties2(device, &mut memory) };
    let own = own_heaps(&memory.memory_properties);
    let free = |heap: usize| budget.heap_budget[heap].saturating_sub(budget.heap_usage[heap]);
    Ok(Some(own.into_iter().map(free).sum()))
}

/// The heaps of memory of a device's own, by number.
fn own_heaps(memory: &vk::PhysicalDeviceMemoryProperties) -> Vec<usize> {
    let own =
        |heap: &usize| memory.memory_heaps[*heap].flags.contains(vk::MemoryHeapFlags::DEVICE_LOCAL);
    (0..memory.memory_heap_count as usize).filter(own).collect()
}

fn describe(instance: &Instance, ordinal: usize, device: vk::PhysicalDevice) -> Gpu {
    let instance = &instance.0;
    // SAFETY: the device is one of the instance, which is live.
    let (basic, memory, queues, can) = unsafe {
        (
            instance.get_physical_device_properties(device),
            instance.get_physical_device_memory_properties(device),
            instance.get_physical_device_queue_family_properties(device),
            instance.get_physical_device_features(device),
        )
    };
    let version = basic.api_version;
    let limits = &basic.limits;
    let mut gpu = Gpu {
        ordinal,
        name: text(basic.device_name_as_c_str().ok()),
        kind: match basic.device_type {
            vk::PhysicalDeviceType::DISCRETE_GPU => Kind::Discrete,
            vk::PhysicalDeviceType::INTEGRATED_GPU => Kind::Integrated,
            vk::PhysicalDeviceType::VIRTUAL_GPU => Kind::Virtual,
            vk::PhysicalDeviceType::CPU => Kind::Cpu,
            _ => Kind::Other,
        },
        uuid: String::new(),
        api_version: (
            vk::api_version_major(version),
            vk::api_version_minor(version),
            vk::api_version_patch(version),
        ),
        driver: String::new(),
        total_bytes: own_heaps(&memory)
            .into_iter()
            .map(|heap| memory.memory_heaps[heap].size)
            .sum(),
        subgroup_sizes: (0, 0, 0),
        workgroup_size: limits.max_compute_work_group_size,
        workgroup_threads: limits.max_compute_work_group_invocations,
        workgroup_count: limits.max_compute_work_group_count,
        shared_bytes: limits.max_compute_shared_memory_size,
        buffer_bytes: limits.max_storage_buffer_range,
        features: Features {
            float64: can.shader_float64 == vk::TRUE,
            int16: can.shader_int16 == vk::TRUE,
            int64: can.shader_int64 == vk::TRUE,
            ..Features::default()
        },
        lacking: Vec::new(),
    };
    if version < vk::API_VERSION_1_3 {
        gpu.lacking.push("Vulkan 1.3");
        return gpu;
    }
    let mut of_11 = vk::PhysicalDeviceVulkan11Properties::default();
    let mut of_12 = vk::PhysicalDeviceVulkan12Properties::default();
    let mut of_13 = vk::PhysicalDeviceVulkan13Properties::default();
    let mut properties = vk::PhysicalDeviceProperties2::default()
        .push_next(&mut of_11)
        .push_next(&mut of_12)
        .push_next(&mut of_13);
    let mut can_11 = vk::PhysicalDeviceVulkan11Features::default();
    let mut can_12 = vk::PhysicalDeviceVulkan12Features::default();
    let mut can_13 = vk::PhysicalDeviceVulkan13Features::default();
    let mut features = vk::PhysicalDeviceFeatures2::default()
        .push_next(&mut can_11)
        .push_next(&mut can_12)
        .push_next(&mut can_13);
    // SAFETY: as above; instance and device have Vulkan 1.3, whose structs are in the chains.
    unsafe {
        instance.get_physical_device_properties2(device, &mut properties);
        instance.get_physical_device_features2(device, &mut features);
    }
    gpu.uuid = of_11
        .device_uuid
        .iter()
        .fold("GPU-".to_owned(), |uuid, byte| uuid + &format!("{byte:02x}"));
    let driver = [of_12.driver_name_as_c_str(), of_12.driver_info_as_c_str()];
    let driver = driver.map(|part| text(part.ok()));
    gpu.driver = driver.join(" ").trim().to_owned();
    gpu.subgroup_sizes = (of_13.min_subgroup_size, of_11.subgroup_size, of_13.max_subgroup_size);
    let subgroup = |operation| {
        let stages = of_11.subgroup_supported_stages;
        stages.contains(vk::ShaderStageFlags::COMPUTE)
            && of_11.subgroup_supported_operations.contains(operation)
    };
    gpu.features = Features {
        float16: can_12.shader_float16 == vk::TRUE,
        int8: can_12.shader_int8 == vk::TRUE,
        storage8: can_12.storage_buffer8_bit_access == vk::TRUE,
        storage16: can_11.storage_buffer16_bit_access == vk::TRUE,
        shuffle: subgroup(vk::SubgroupFeatureFlags::SHUFFLE),
        arithmetic: subgroup(vk::SubgroupFeatureFlags::ARITHMETIC),
        ..gpu.features
    };
    let computes = queues.iter().any(|it| it.queue_flags.contains(vk::QueueFlags::COMPUTE));
    let needed = [
        (can_12.timeline_semaphore == vk::TRUE, "timeline semaphores"),
        (can_12.scalar_block_layout == vk::TRUE, "the scalar block layout"),
        (can_13.synchronization2 == vk::TRUE, "synchronization2"),
        (computes, "a queue that computes"),
    ];
    gpu.lacking = needed.into_iter().filter(|(there, _)| !there).map(|(_, name)| name).collect();
    gpu
}

fn text(name: Option<&CStr>) -> String {
    name.map_or_else(String::new, |name| name.to_string_lossy().into_owned())
}

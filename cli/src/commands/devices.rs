//! `iree-llm devices`: what a model can run on.

use std::process::ExitCode;

use anyhow::Result;

/// Nothing to choose.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  iree-llm devices
  iree-llm generate --device local-sync -p 'The sea'

A name in the first column is what --device takes.")]
pub struct Args {}

impl Args {
    /// Lists devices.
    #[cfg(feature = "iree")]
    pub fn run(self) -> Result<ExitCode> {
        use std::io::Write;

        let mut out = String::new();
        let drivers = iree_rt::Instance::get()?.drivers()?;
        for driver in &drivers {
            match driver.devices() {
                Ok(devices) if devices.is_empty() => {
                    out += &format!("{:<20} no device ({})\n", driver.name, driver.description);
                }
                Ok(devices) => {
                    for device in devices {
                        let known = gpu(&device.uri).or_else(|| vulkan(&device.uri));
                        let (uri, name) = match (known, device.name.as_str()) {
                            (Some(gpu), _) => gpu,
                            (None, "" | "default") => (device.uri, driver.description.clone()),
                            (None, name) => (device.uri.clone(), name.to_owned()),
                        };
                        out += &format!("{uri:<20} {name}\n");
                    }
                }
                Err(error) => out += &format!("{:<20} not usable: {error}\n", driver.name),
            }
        }
        for (name, available) in
            [("cuda", iree_rt::cuda::available()), ("vulkan", iree_rt::vulkan::available())]
        {
            if !drivers.iter().any(|driver| driver.name == name)
                && let Err(error) = available
            {
                out += &format!("{name:<20} not usable: {error}\n");
            }
        }
        std::io::stdout().write_all(out.as_bytes())?;
        Ok(ExitCode::SUCCESS)
    }

    /// Says why there are none.
    #[cfg(not(feature = "iree"))]
    pub fn run(self) -> Result<ExitCode> {
        anyhow::bail!(crate::engine::WITHOUT_IREE)
    }
}

/// The short name of a GPU, and what a choice between several asks for.
#[cfg(feature = "iree")]
fn gpu(uri: &str) -> Option<(String, String)> {
    use indicatif::BinaryBytes;

    let gpu = iree_rt::cuda::Gpu::at(uri).ok()??;
    let target = gpu.target().map_or_else(|error| error.to_string(), |it| it.to_string());
    let free = match gpu.free_bytes() {
        Ok(free) => format!("{} free of ", BinaryBytes(free)),
        Err(_) => String::new(),
    };
    let (major, minor) = gpu.compute_capability;
    let total = BinaryBytes(gpu.total_bytes);
    let text = format!(
        "{}, {free}{total}, compute capability {major}.{minor} (compiled for {target}), {}",
        gpu.name, gpu.uuid
    );
    Some((format!("cuda://{}", gpu.ordinal), text))
}

/// The same of a device of Vulkan.
#[cfg(feature = "iree")]
fn vulkan(uri: &str) -> Option<(String, String)> {
    use indicatif::BinaryBytes;

    // One that cannot be opened is told of as well.
    let all = iree_rt::vulkan::Gpu::all().ok()?;
    let gpu = all.into_iter().find(|gpu| gpu.uri() == uri)?;
    let (major, minor, patch) = gpu.api_version;
    let (least, usual, most) = gpu.subgroup_sizes;
    let subgroups = if least == most {
        usual.to_string()
    } else {
        format!("{least} to {most}, {usual} as a rule")
    };
    let free = match gpu.free_bytes() {
        Ok(Some(free)) => format!("{} free of ", BinaryBytes(free)),
        _ => String::new(),
    };
    let lacking = match &gpu.lacking[..] {
        [] => String::new(),
        lacking => format!(", not usable: it lacks {}", lacking.join(", ")),
    };
    let total = BinaryBytes(gpu.total_bytes);
    let text = format!(
        "{}, {}, {free}{total}, Vulkan {major}.{minor}.{patch}, subgroups of {subgroups}, {}{lacking}",
        gpu.name, gpu.kind, gpu.driver
    );
    Some((format!("vulkan://{}", gpu.ordinal), text))
}

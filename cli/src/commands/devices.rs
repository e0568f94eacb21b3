//! `iree-llm devices`: what a model can run on.

use std::process::ExitCode;

use anyhow::Result;
use clap::ArgAction;

/// What to say.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  iree-llm devices
  iree-llm devices --copy vulkan
  iree-llm generate --device local-sync -p 'The sea'

A name in the first column is what --device takes.")]
pub struct Args {
    /// Measure copies within the memory of this device, instead of a list
    #[arg(long, value_name = "DEVICE")]
    copy: Option<String>,

    /// Print JSON instead of lines
    #[arg(long, action = ArgAction::SetTrue)]
    json: bool,
}

impl Args {
    /// Lists devices, or measures one.
    #[cfg(feature = "iree")]
    pub fn run(self) -> Result<ExitCode> {
        use std::io::Write;

        let text = match &self.copy {
            Some(uri) => {
                let device = iree_rt::Instance::get()?.device(uri)?;
                let rate = crate::bench::copy::bytes_per_second(&device)?;
                match self.json {
                    true => {
                        serde_json::json!({"device": uri, "bytes_per_second": rate}).to_string()
                    }
                    false => format!("{uri:<20} {:.1} GB/s (read and written)", rate / 1e9),
                }
            }
            None => {
                let devices = iree::all()?;
                match self.json {
                    true => serde_json::to_string(&devices)?,
                    false => devices.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"),
                }
            }
        };
        writeln!(std::io::stdout(), "{text}")?;
        Ok(ExitCode::SUCCESS)
    }

    /// Says why there are none.
    #[cfg(not(feature = "iree"))]
    pub fn run(self) -> Result<ExitCode> {
        let _ = (self.copy, self.json);
        anyhow::bail!(crate::engine::WITHOUT_IREE)
    }
}

#[cfg(feature = "iree")]
mod iree {
    use std::fmt;

    use anyhow::Result;
    use indicatif::BinaryBytes;
    use iree_rt::vulkan::Kind;
    use iree_rt::{Instance, cuda, vulkan};
    use serde::Serialize;

    /// A line of the list: a device, or a driver that has none.
    #[derive(Debug, Serialize)]
    pub struct Listed {
        /// What `--device` takes, where it is one.
        device: String,
        /// What a choice between several asks for, or why it cannot be used.
        description: String,
        /// Whether it can be used.
        usable: bool,
        /// The name of a GPU: of a device that computes on the CPU there is none.
        gpu: Option<String>,
    }

    impl fmt::Display for Listed {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "{:<20} {}", self.device, self.description)
        }
    }

    impl Listed {
        fn unusable(driver: &str, description: String) -> Self {
            Self { device: driver.to_owned(), description, usable: false, gpu: None }
        }
    }

    /// The devices of all drivers, in their order.
    pub fn all() -> Result<Vec<Listed>> {
        let mut all = Vec::new();
        let drivers = Instance::get()?.drivers()?;
        for driver in &drivers {
            match driver.devices() {
                Ok(devices) if devices.is_empty() => {
                    let text = format!("no device ({})", driver.description);
                    all.push(Listed::unusable(&driver.name, text));
                }
                Ok(devices) => all.extend(devices.into_iter().map(|device| {
                    cuda_gpu(&device.uri).or_else(|| vulkan_gpu(&device.uri)).unwrap_or_else(|| {
                        let description = match device.name.as_str() {
                            "" | "default" => driver.description.clone(),
                            name => name.to_owned(),
                        };
                        Listed { device: device.uri, description, usable: true, gpu: None }
                    })
                })),
                Err(error) => {
                    all.push(Listed::unusable(&driver.name, format!("not usable: {error}")));
                }
            }
        }
        for (name, available) in [("cuda", cuda::available()), ("vulkan", vulkan::available())] {
            if !drivers.iter().any(|driver| driver.name == name)
                && let Err(error) = available
            {
                all.push(Listed::unusable(name, format!("not usable: {error}")));
            }
        }
        Ok(all)
    }

    /// The GPU of NVIDIA at `uri`, by its short name.
    fn cuda_gpu(uri: &str) -> Option<Listed> {
        let gpu = cuda::Gpu::at(uri).ok()??;
        let target = gpu.target().map_or_else(|error| error.to_string(), |it| it.to_string());
        let free = match gpu.free_bytes() {
            Ok(free) => format!("{} free of ", BinaryBytes(free)),
            Err(_) => String::new(),
        };
        let (major, minor) = gpu.compute_capability;
        let total = BinaryBytes(gpu.total_bytes);
        let description = format!(
            "{}, {free}{total}, compute capability {major}.{minor} (compiled for {target}), {}",
            gpu.name, gpu.uuid
        );
        let device = format!("cuda://{}", gpu.ordinal);
        Some(Listed { device, description, usable: true, gpu: Some(gpu.name) })
    }

    /// The device of Vulkan at `uri`, by its short name.
    fn vulkan_gpu(uri: &str) -> Option<Listed> {
        // One that cannot be opened is told of as well.
        let all = vulkan::Gpu::all().ok()?;
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
        let description = format!(
            "{}, {}, {free}{total}, Vulkan {major}.{minor}.{patch}, subgroups of {subgroups}, {}{lacking}",
            gpu.name, gpu.kind, gpu.driver
        );
        let (device, usable) = (format!("vulkan://{}", gpu.ordinal), lacking.is_empty());
        let gpu = (usable && gpu.kind != Kind::Cpu).then_some(gpu.name);
        Some(Listed { device, description, usable, gpu })
    }
}

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
        for driver in iree_rt::Instance::get()?.drivers()? {
            match driver.devices() {
                Ok(devices) if devices.is_empty() => {
                    out += &format!("{:<20} no device ({})\n", driver.name, driver.description);
                }
                Ok(devices) => {
                    for device in devices {
                        let name = match device.name.as_str() {
                            "" | "default" => &driver.description,
                            name => name,
                        };
                        out += &format!("{:<20} {name}\n", device.uri);
                    }
                }
                Err(error) => out += &format!("{:<20} not usable: {error}\n", driver.name),
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

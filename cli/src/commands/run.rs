//! `iree-llm run`: call a function of any compiled module, or time it.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;

/// How an archive of parameters is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum ParameterMode {
    /// Map the file; what is used of it is read
    File,
    /// Read all of it into memory
    Preload,
}

/// What to call with what.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// A compiled module (.vmfb), - for stdin; those that others import from come first. It is
    /// machine code that runs as this program: take only what you trust
    #[arg(short, long, value_name = "FILE", required = true)]
    module: Vec<PathBuf>,

    /// The function, of the last module unless written as module.function [default: the only one]
    #[arg(short, long, value_name = "NAME")]
    function: Option<String>,

    /// An archive of parameters that modules may ask for, of a scope or of none: .irpa, .gguf or
    /// .safetensors. Those of one scope answer together
    #[arg(short, long, value_name = "[SCOPE=]FILE")]
    parameters: Vec<String>,

    /// How archives of parameters are read
    #[arg(long, alias = "parameter_mode", value_name = "HOW", value_enum,
          default_value_t = ParameterMode::File)]
    parameter_mode: ParameterMode,

    /// Device, as `iree-llm devices` lists them
    #[arg(long, env = "IREE_LLM_DEVICE", value_name = "URI", default_value = "local-task")]
    device: String,

    /// Worker threads of local-task, 64 at most [default: one for each physical core]
    #[arg(long, env = "IREE_LLM_THREADS", value_name = "N",
          value_parser = clap::value_parser!(u32).range(1..))]
    threads: Option<u32>,

    /// An argument, in the order of the function's
    #[arg(short, long, value_name = "VALUE", allow_hyphen_values = true)]
    input: Vec<String>,

    /// What becomes of a result, in the order of the function's: - prints, nothing ignores,
    /// @FILE.npy and @FILE write, +FILE appends [default: - for all]
    #[arg(short, long, value_name = "WHERE", allow_hyphen_values = true)]
    output: Vec<String>,

    /// What a result must be, written as an input is, or (ignored); instead of printing, compare,
    /// and fail when one differs
    #[arg(
        short,
        long,
        alias = "expected_output",
        value_name = "VALUE",
        allow_hyphen_values = true,
        conflicts_with = "output"
    )]
    expected_output: Vec<String>,

    /// How far a float may be from the expected [default: 0.0001 (f32, f64), 0.001 (f16), 0.01
    /// (bf16)]
    #[arg(long, value_name = "X", requires = "expected_output", value_parser = tolerance)]
    atol: Option<f64>,

    /// How much farther, as a part of the expected value
    #[arg(long, value_name = "X", requires = "expected_output", default_value_t = 1e-5,
          value_parser = tolerance)]
    rtol: f64,

    /// Expect the very same bits
    #[arg(long, requires = "expected_output", conflicts_with_all = ["atol", "rtol"])]
    exact: bool,

    /// Most elements that are printed of a tensor
    #[arg(long, alias = "output_max_element_count", value_name = "N", default_value_t = 1024)]
    max_elements: usize,

    /// Call again and again, and print how long a call takes instead of what it returns
    #[arg(short, long, conflicts_with_all = ["output", "expected_output"])]
    benchmark: bool,

    /// Calls before those that are timed
    #[arg(long, value_name = "N", requires = "benchmark", default_value_t = 10)]
    warm_up: u32,

    /// Time so many calls
    #[arg(long, value_name = "N", requires = "benchmark",
          value_parser = clap::value_parser!(u32).range(1..))]
    iterations: Option<u32>,

    /// Time calls for so long, unless told how many
    #[arg(long, value_name = "SECONDS", requires = "benchmark", default_value_t = 1.0,
          value_parser = seconds, conflicts_with = "iterations")]
    min_time: f64,

    /// Print the times as a JSON object, in seconds
    #[arg(long, requires = "benchmark")]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  iree-llm run -m add.vmfb -f add -i 4xf32=1,2,3,4 -i 4xf32=10
  iree-llm run -m add.vmfb -f add -i @a.npy -i 4xf32=@b.bin -o @sum.npy
  iree-llm run -m add.vmfb -f add -i 4xf32=1 -i 4xf32=2 -e 4xf32=3 --rtol 1e-3
  iree-llm run -m add.vmfb -f add -i 4xf32=1 -i 4xf32=2 --benchmark --device local-sync
  iree-llm run -m model.vmfb -f main -i 1xi64=7 --parameters model=weights.safetensors

Values, as iree-run-module takes them:
  3, -1.5, 0x7f           a scalar
  4xf32=1,2,3,4           a tensor; brackets may group: 2x2xi32=[[1 2][3 4]]
  4xf32=1, 4xf32          one element for all; zeros
  4xf32=@FILE             a tensor from raw bytes
  @FILE.npy               a tensor that NumPy saved
  +FILE, *FILE.npy        the next tensor of a file that an earlier value began; all that follow
  &16xi8                  a buffer without a shape, for results to be written to
  (null)                  a null reference, or zero";

fn tolerance(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(x) if x >= 0.0 => Ok(x),
        _ => Err("give a number that is not negative: 0.001".into()),
    }
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(x) if (0.0..=1e6).contains(&x) => Ok(x),
        _ => Err("give a number of seconds: 2.5".into()),
    }
}

#[cfg(not(feature = "iree"))]
impl Args {
    /// Says why it cannot.
    pub fn run(self) -> Result<ExitCode> {
        anyhow::bail!(crate::engine::WITHOUT_IREE)
    }
}

#[cfg(feature = "iree")]
mod call {
    use std::io::{self, Read, Write};
    use std::path::Path;
    use std::time::Duration;

    use anyhow::{Context, bail, ensure};
    use iree_rt::{Call, Code, DeviceOptions, Function, Instance, Module, ParameterIndex, Session};

    use super::*;
    use crate::run::compare::{Tolerance, difference};
    use crate::run::files::Sink;
    use crate::run::parameters;
    use crate::run::timing::{self, Plan, Times};
    use crate::run::value::{self, HostValue};

    impl Args {
        /// Calls.
        pub fn run(self) -> Result<ExitCode> {
            let threads = self.threads.map(|threads| threads as usize);
            let options = DeviceOptions::default().threads(threads);
            let device = Instance::get()?.device_with(&self.device, &options)?;
            let mut builder = Session::builder(&device);
            let mut takes_parameters = false;
            for path in &self.module {
                let module = load(path)?;
                takes_parameters |= module.takes_parameters()?;
                builder = builder.module(module);
            }
            let open = |path: &str| self.parameter_mode.open(path);
            let builder = parameters::give(builder, &self.parameters, open)?;
            let mut session = builder.build().map_err(|error| {
                let lacks = takes_parameters && self.parameters.is_empty();
                if lacks { error.context("give --parameters [SCOPE=]FILE") } else { error }
            })?;
            let function = self.function(&session)?;

            let inputs = value::parse("--input", &self.input, function.arguments())
                .with_context(|| format!("calling {function:?}"))?;
            // Before the call, which may take long.
            let expected = match &self.expected_output[..] {
                [] => None,
                specs => Some(value::parse("--expected-output", specs, function.results())?),
            };
            ensure!(
                self.output.is_empty() || self.output.len() == function.results().len(),
                "{} --output given, and {function:?} has {} result(s)",
                self.output.len(),
                function.results().len()
            );
            let sinks = self.output.iter().map(|spec| Sink::open(spec));
            let sinks = sinks.collect::<Result<Vec<_>>>()?;
            let mut call = session.prepare(&function)?;
            for (index, input) in inputs.iter().enumerate() {
                call.set(index, input.to_device(&device)?)?;
            }
            if self.benchmark {
                return self.benchmark(&mut session, &mut call);
            }
            let name = function.name();
            let name = name.split_once('.').map_or(&name[..], |(_, name)| name);
            writeln!(io::stdout(), "EXEC @{name}")?;
            call.invoke(&mut session)?;
            let results = (0..function.results().len())
                .map(|index| HostValue::read(&call.outputs().get(index)?))
                .collect::<Result<Vec<_>>>()?;
            match expected {
                Some(expected) => self.compare(&expected, &results),
                None => self.print(&results, sinks),
            }
        }

        /// The function that was asked for.
        fn function(&self, session: &Session) -> Result<Function> {
            let module = session.modules().last().context("no module")?;
            let Some(name) = &self.function else {
                let functions = module.functions()?;
                let names: Vec<_> = functions.iter().map(|it| it.name.as_str()).collect();
                return match names[..] {
                    [] => bail!("@{} exports no function", module.name()),
                    [only] => Ok(session.function(&format!("{}.{only}", module.name()))?),
                    _ => bail!(
                        "@{} has {} functions, give one as --function: {}",
                        module.name(),
                        names.len(),
                        names.join(", ")
                    ),
                };
            };
            match session.function(&format!("{}.{name}", module.name())) {
                Err(error) if error.code() == Code::NotFound => Ok(session.function(name)?),
                found => Ok(found?),
            }
        }

        /// Prints `results`, or gives them to their `sinks`, also those behind one that cannot be written.
        fn print(&self, results: &[HostValue], sinks: Vec<Sink>) -> Result<ExitCode> {
            let (mut text, mut code) = (String::new(), ExitCode::SUCCESS);
            let mut sinks = sinks.into_iter();
            for (index, result) in results.iter().enumerate() {
                let printed = match sinks.next() {
                    Some(sink) => result.write(sink, self.max_elements),
                    None => result
                        .text(self.max_elements)
                        .map(|text| format!("result[{index}]: {text}\n")),
                };
                match printed {
                    Ok(printed) => text += &printed,
                    Err(error) => {
                        crate::report_error(&error.context(format!("result[{index}]")));
                        code = ExitCode::FAILURE;
                    }
                }
            }
            io::stdout().write_all(text.as_bytes())?;
            Ok(code)
        }

        fn compare(&self, expected: &[HostValue], results: &[HostValue]) -> Result<ExitCode> {
            let tolerance = Tolerance { absolute: self.atol, relative: self.rtol };
            let tolerance = (!self.exact).then_some(&tolerance);
            let mut text = String::new();
            for (index, (expected, result)) in expected.iter().zip(results).enumerate() {
                let found = difference(index, expected, result, tolerance, self.max_elements);
                text += &found.unwrap_or_default();
            }
            let matched = text.is_empty();
            if matched {
                text += "[SUCCESS] all function outputs matched their expected values.\n";
            }
            io::stdout().write_all(text.as_bytes())?;
            Ok(if matched { ExitCode::SUCCESS } else { ExitCode::FAILURE })
        }

        fn benchmark(&self, session: &mut Session, call: &mut Call) -> Result<ExitCode> {
            let plan = Plan {
                warm_up: self.warm_up,
                iterations: self.iterations,
                at_least: Duration::from_secs_f64(self.min_time),
            };
            let times = timing::measure(&plan, || call.invoke(session))?;
            let function = call.function().name();
            let text = if self.json {
                serde_json::to_string(&Report { function, device: &self.device, times })? + "\n"
            } else {
                format!("{:<12} {function} on {}\n{}", "function", self.device, times.table())
            };
            io::stdout().write_all(text.as_bytes())?;
            Ok(ExitCode::SUCCESS)
        }
    }

    impl ParameterMode {
        fn open(self, path: &str) -> iree_rt::Result<ParameterIndex> {
            match self {
                // SAFETY: the archive is the user's, who has asked for it to be used in place, and
                // nothing here writes to the file.
                Self::File => unsafe { ParameterIndex::from_file(path) },
                Self::Preload => ParameterIndex::read_file(path),
            }
        }
    }

    /// What `--json` prints.
    #[derive(serde::Serialize)]
    struct Report<'a> {
        function: String,
        device: &'a str,
        #[serde(flatten)]
        times: Times,
    }

    fn load(path: &Path) -> Result<Module> {
        if path == Path::new("-") {
            let mut bytes = Vec::new();
            io::stdin().read_to_end(&mut bytes).context("reading the module from stdin")?;
            // SAFETY: the module is the user's, who has asked for it to be run with arguments of
            // theirs.
            return unsafe { Module::from_bytes(&bytes) }.context("the module from stdin");
        }
        // SAFETY: as above, and nothing here writes to the file.
        Ok(unsafe { Module::from_file(path)? })
    }
}

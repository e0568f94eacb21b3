//! The whole command line at a glance.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

/// The environment variable that may stand for `fetch-iree --base-url`.
pub const BASE_URL_VAR: &str = "IREE_DIST_BASE_URL";

/// The workspace's own tasks.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
pub struct Xtask {
    #[command(subcommand)]
    pub task: Task,
}

#[derive(Debug, Subcommand)]
pub enum Task {
    /// Bring IREE: its runtime and its compiler, in one folder.
    FetchIree(FetchIree),
    /// Make the checked-in bindings of iree-sys again from the headers.
    Bindgen(Bindgen),
    /// Bring what is missing, build, and generate text.
    Demo(Demo),
    /// Bring what is missing and check everything: format, lints, documentation, tests.
    Test(Test),
    /// Package the crates of IREE, and build and run what depends on them, as a stranger would.
    Package(Package),
    /// Make what people download: archives, a Python wheel, a Debian package.
    Dist(Dist),
    /// Run the tests of iree-rt with AddressSanitizer, LeakSanitizer and ThreadSanitizer, IREE too.
    Sanitize(Sanitize),
    /// Build everything for another machine, and run it in an emulator of that.
    Cross(Cross),
    /// Measure iree-llm beside llama.cpp on the same random 1B model.
    Bench(Bench),
    /// Make a bundle that checks and measures iree-llm on a machine with a GPU.
    GpuCheck(GpuCheck),
}

#[derive(Debug, Args)]
pub struct FetchIree {
    /// Where IREE comes from [default: what is already there, else registry].
    #[arg(long, value_enum)]
    pub from: Option<From>,
    /// Add the CUDA driver to the runtime (no GPU is needed to build it).
    #[arg(long)]
    pub cuda: bool,
    /// Add the Vulkan driver to the runtime (neither a GPU nor Vulkan is needed to build it).
    #[arg(long)]
    pub vulkan: bool,
    /// Let the runtime write what its VM executes (`SessionBuilder::trace_execution`): slower.
    #[arg(long)]
    pub vm_trace: bool,
    /// The folder to make [default: iree, or iree-cuda with --cuda, or iree-trace with --vm-trace,
    /// in cargo's target folder].
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Verify the folder instead: files, hashes, and that the compiler compiles.
    #[arg(long)]
    pub check: bool,
    /// Make the folder again, even when a good one is there.
    #[arg(long)]
    pub force: bool,
    /// The IREE version.
    #[arg(long, value_name = "VERSION", default_value = iree_src::IREE_VERSION)]
    pub iree_version: String,
    /// With --from source: a checkout, instead of a clone of the version's tag.
    #[arg(long, value_name = "DIR")]
    pub source_dir: Option<PathBuf>,
    /// With --from source: the repository to clone, instead of upstream's.
    #[arg(long, value_name = "URL", conflicts_with = "source_dir")]
    pub git: Option<String>,
    /// With --from dist: a mirror of upstream's releases; the tag and the archive name are appended.
    #[arg(long, value_name = "URL", env = BASE_URL_VAR)]
    pub base_url: Option<String>,
    /// With --from dist: the archive's expected SHA-256.
    #[arg(long, value_name = "HEX")]
    pub sha256: Option<String>,
    /// A compiler of the same version, instead of the one from PyPI.
    #[arg(long, value_name = "PATH")]
    pub iree_compile: Option<PathBuf>,
    #[command(flatten)]
    pub network: Network,
}

#[derive(Debug, Args)]
pub struct Bindgen {
    /// Change nothing; fail when the checked-in bindings are not what the headers give.
    #[arg(long)]
    pub check: bool,
    #[command(flatten)]
    pub network: Network,
}

#[derive(Debug, Args)]
pub struct Demo {
    /// What is asked, or what the text begins with where the model has no chat template [default: a
    /// question].
    #[arg(short, long)]
    pub prompt: Option<String>,
    #[command(flatten)]
    pub network: Network,
    /// More arguments for `iree-llm generate`.
    #[arg(last = true, value_name = "ARGS")]
    pub generate: Vec<String>,
}

#[derive(Debug, Args)]
pub struct Test {
    /// Only the tests: no format, no lints, no documentation, no packages.
    #[arg(long)]
    pub quick: bool,
    /// Also what takes minutes more: all products of models, precisions and architectures.
    #[arg(long)]
    pub all: bool,
    #[command(flatten)]
    pub network: Network,
}

#[derive(Debug, Args)]
pub struct Package {
    #[command(flatten)]
    pub network: Network,
}

#[derive(Debug, Clone, Args)]
#[command(after_help = DIST_HELP)]
pub struct Dist {
    /// Also install and run each package on bare systems, and build everything once more: the bytes
    /// have to be the same. As root, on a Debian.
    #[arg(long)]
    pub check: bool,
    /// With --check: the Debians to install on.
    #[arg(long, value_name = "SUITE,…", value_delimiter = ',', default_value = "bullseye")]
    pub suite: Vec<String>,
    /// The root of an old system whose C++ library the compiler is given [default: Debian 11, brought by
    /// debootstrap].
    #[arg(long, value_name = "ROOT")]
    pub libstdcxx: Option<PathBuf>,
    /// The folder to make [default: dist in cargo's target folder].
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    #[command(flatten)]
    pub network: Network,
}

const DIST_HELP: &str = "\
The program is built with the C compiler of zig's wheel (from PyPI), against glibc 2.28. There is an archive of
program, compiler, licences, manual pages and shell completions; one without the compiler, for graphs that
`iree-llm compile` made; a Python wheel and a Debian package. Each runs from any folder, with nothing but
glibc and, for the compiler, /bin/sh. The first build takes as long as a release build.

The compiler is given the C++ library of an old system: that of Debian 11, which takes root and debootstrap to bring, or
of the root that --libstdcxx names.

Examples:
  cargo xtask dist                                          as root
  cargo xtask dist --libstdcxx /srv/bullseye
  cargo xtask dist --check --suite bullseye,trixie";

#[derive(Debug, Args)]
#[command(after_help = SANITIZE_HELP)]
pub struct Sanitize {
    /// Which [default: both, one after the other].
    #[arg(value_enum)]
    pub sanitizer: Vec<Sanitizer>,
    /// Only the tests whose name contains this.
    #[arg(long, value_name = "NAME")]
    pub only: Option<String>,
    #[command(flatten)]
    pub network: Network,
}

/// What to look for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Sanitizer {
    /// Memory that is not one's own, and leaks.
    Address,
    /// Data races.
    Thread,
}

const SANITIZE_HELP: &str = "\
IREE is built once more for each sanitizer, from the registry's sources (a minute on two cores), into
iree-address and iree-thread below cargo's target folder. The stable toolchain is enough; with the
component rust-src (rustup component add rust-src) the standard library is instrumented as well,
without which ThreadSanitizer does not start. Code that IREE compiled is not instrumented.

Examples:
  cargo xtask sanitize
  cargo xtask sanitize thread --only threads";

#[derive(Debug, Args)]
#[command(after_help = CROSS_HELP)]
pub struct Cross {
    /// What to build for.
    #[arg(value_enum)]
    pub machine: Machine,
    /// Run tests too, under qemu.
    #[arg(long)]
    pub test: bool,
    /// Also those that take an hour.
    #[arg(long, requires = "test")]
    pub all: bool,
    /// Count the instructions of products, in each instruction set: qemu knows nothing of time.
    #[arg(long)]
    pub count: bool,
    /// The CPU that qemu is: cortex-a72 has NEON, neoverse-n1 products of bytes, max all of it.
    #[arg(long, value_name = "NAME", default_value = "max")]
    pub cpu: String,
    #[command(flatten)]
    pub network: Network,
}

/// A machine that others build for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Machine {
    /// AArch64 with Linux.
    Aarch64,
    /// Apple silicon with macOS: only type-checked, without IREE.
    Macos,
}

const CROSS_HELP: &str = "\
Rust's standard library is that of the toolchain (rustup target add aarch64-unknown-linux-gnu), else built
from its sources (rustup component add rust-src), else from those of the same version in Debian's archive,
where the machine has apt. IREE's runtime is built by gcc-aarch64-linux-gnu; its compiler stays this
machine's, and compiles for the other. Tests need qemu-user-static.

Examples:
  cargo xtask cross aarch64                          target/aarch64-unknown-linux-gnu/release/iree-llm
  cargo xtask cross aarch64 --test                   and a quarter of an hour of tests
  cargo xtask cross aarch64 --test --cpu cortex-a72  on a CPU without products of bytes
  cargo xtask cross aarch64 --count                  instructions per weight
  cargo xtask cross macos                            does it compile?";

#[derive(Debug, Args)]
#[command(after_help = BENCH_HELP)]
pub struct Bench {
    /// A few minutes with short prompts, to see that everything works; changes no document.
    #[arg(long)]
    pub quick: bool,
    /// What to measure [default: all].
    #[arg(long, value_enum, value_name = "PART,…", value_delimiter = ',')]
    pub part: Vec<BenchPart>,
    /// Threads of both programs; with fewer than the most, only the short tests run
    /// [default: one for each physical core, then 1].
    // Above, the test of memory has no part left for each.
    #[arg(long, value_name = "N,…", value_delimiter = ',',
        value_parser = clap::value_parser!(u32).range(1..=512))]
    pub threads: Vec<u32>,
    /// Precisions to compare, as `iree-llm` calls them: bf16, stored (bf16 weights, arithmetic in
    /// f32), f32, int8, int4, and w8a8 [default: all but w8a8].
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    pub precision: Vec<String>,
    /// Another iree-llm, usually an older one, that takes turns with this one in the table.
    #[arg(long, value_name = "FILE")]
    pub baseline: Option<PathBuf>,
    /// GGUF files that both servers have too, ours as stored, beside the random model: for `--part serve`.
    /// Prompts are random ids below 21,000.
    #[arg(long, value_name = "FILE,…", value_delimiter = ',')]
    pub gguf: Vec<PathBuf>,
    /// How often the tables are measured [default: 2, 3 of many sequences, prefixes and drafts; 1
    /// with --quick].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub rounds: Option<u32>,
    /// The document whose parts are replaced; the plot is written beside it
    /// [default: docs/performance.md and docs/measurements.md; none with --quick].
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    #[command(flatten)]
    pub network: Network,
}

#[derive(Debug, Args)]
#[command(after_help = GPU_CHECK_HELP)]
pub struct GpuCheck {
    /// The folder to make; or an archive of it, when it ends in .tar.gz or .tar.xz (smaller, slower to make).
    #[arg(long, value_name = "DIR|FILE")]
    pub bundle: PathBuf,
    /// Architectures of NVIDIA's to compile graphs for.
    #[arg(long, value_name = "SM,…", value_delimiter = ',', default_value = "sm_89,sm_80")]
    pub target: Vec<String>,
    /// This iree-llm, instead of one that is built for it; there are no test programs then.
    #[arg(long, value_name = "FILE")]
    pub program: Option<PathBuf>,
    /// Leave out the compiler, without which Vulkan and the tests do nothing there: an archive below 60 MB.
    #[arg(long)]
    pub without_compiler: bool,
    #[command(flatten)]
    pub network: Network,
}

const GPU_CHECK_HELP: &str = "\
Neither a GPU nor CUDA nor Vulkan is needed here. The bundle holds the program with IREE's drivers for
both, its compiler, by which graphs for Vulkan are made where the device is, compiled graphs for CUDA of
every fixture that GPUs run and of the shapes of Llama 3.2 1B and 3.1 8B, the fixtures, test programs,
and scripts for what it is compared with; there, `python3 run.py OUT` does the rest, without a network.
Parts of it have run on an H100, nothing of Vulkan's on a GPU: docs/cuda.md and docs/vulkan.md say what.

Examples:
  cargo xtask gpu-check --bundle gpu-check.tar.xz
  cargo xtask gpu-check --bundle gpu-check.tar.gz --without-compiler
  cargo xtask gpu-check --bundle gpu-check --target sm_89";

/// A part of the document that `cargo xtask bench` makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum BenchPart {
    /// Both programs side by side, in every precision.
    Table,
    /// What each compiled function of ours costs, in a prompt and in a single token; only printed.
    Profile,
    /// How cost grows with the prompt, the context and the threads: scaling.svg.
    Plot,
    /// Single tokens of 1 to 16 sequences at once, beside llama-batched-bench.
    Batched,
    /// Requests with a common prompt: the time to all first tokens.
    Prefix,
    /// Single tokens with drafts and without.
    Speculate,
    /// 1 to 16 clients that ask `iree-llm serve`, and llama-server.
    Serve,
}

const BENCH_HELP: &str = "\
Both programs run by turns, in several rounds, on random weights of Llama 3.2 1B's shape; the
machine's own limits (bytes read, multiplications a second) are measured in between. The first run
compiles llama.cpp and writes 26 GB of models and packed weights below cargo's target folder
(--baseline packs weights once more: 9 GB); a full run then takes about an hour on two cores. Close other programs: they share what is measured.

Examples:
  cargo xtask bench                                  the tables of docs/performance.md and docs/measurements.md
  cargo xtask bench --quick                          does everything work?
  cargo xtask bench --precision bf16 --threads 2,1   one precision, on two cores and on one
  cargo xtask bench --part profile --precision int4  where the time of our int4 goes
  cargo xtask bench --part plot                      scaling.svg, in about six minutes
  cargo xtask bench --part batched                   many sequences at once
  cargo xtask bench --part serve --precision int4    many clients, beside llama-server
  cargo xtask bench --part table --baseline OLD      are we slower than the iree-llm OLD?";

/// The environment variables that may stand for `--offline` and for `--cache`.
pub const OFFLINE_VAR: &str = "IREE_FETCH_OFFLINE";
pub const CACHE_VAR: &str = "IREE_FETCH_CACHE";

/// What tasks may download, and where it is kept.
#[derive(Debug, Clone, Default, Args)]
pub struct Network {
    /// Never touch the network: use only what earlier runs left in the caches.
    #[arg(long, env = OFFLINE_VAR, value_parser = clap::builder::FalseyValueParser::new())]
    pub offline: bool,
    /// Where downloads are kept [default: iree-src in the user's cache folder].
    #[arg(long, value_name = "DIR", env = CACHE_VAR)]
    pub cache: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum From {
    /// Build the sources inside a pinned Cargo package; compiler from PyPI.
    Registry,
    /// Download upstream's prebuilt archive.
    Dist,
    /// Build a checkout; compiler from PyPI.
    Source,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        super::Xtask::command().debug_assert();
    }

    /// Which would end in a fault where they are used, tens of minutes later.
    #[test]
    fn no_threads_and_too_many_are_refused_at_once() {
        let bench = |threads: &str| {
            let line = ["cargo xtask", "bench", "--threads", threads];
            super::Xtask::command().try_get_matches_from(line).is_ok()
        };
        assert!(bench("2,1") && bench("512"));
        assert!(!bench("2,0") && !bench("513"));
    }
}

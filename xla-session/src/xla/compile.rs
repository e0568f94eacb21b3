//! From graphs to loaded modules: compiled once for this machine, in parallel, then cached.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use iree_rt::{CompileLimits, Compiler, Module};

use super::iree;
use super::target::{Code, Machine};
use crate::cache::{Cache, Found, Key, KeyParts, Kind, Label};
use crate::opening::{Event, SessionOptions};
use crate::{Error, Result};

/// A module as text.
#[derive(Debug, Clone, Copy)]
pub(super) struct Graph<'a> {
    /// What the cache calls it.
    pub name: &'a str,
    /// MLIR.
    pub text: &'a str,
}

/// Compiles graphs for a machine.
struct Compilation<'a> {
    /// Or why there is none.
    compiler: iree_rt::Result<Compiler>,
    machine: &'a Machine,
    model: &'a str,
    options: &'a SessionOptions,
    limits: CompileLimits,
}

/// The modules of `graphs`, from the cache where it has them. There need be no compiler where it
/// has all of them.
///
/// # Errors
///
/// No compiler, or a graph that it refuses.
pub(super) fn modules(
    graphs: &[Graph<'_>],
    machine: &Machine,
    model: &str,
    options: &SessionOptions,
) -> Result<Vec<Module>> {
    let compilation = Compilation::new(graphs.len(), machine, model, options);
    in_parallel(graphs, |graph| compilation.module(graph))
}

/// Compiles those of `graphs` that the cache in `options.cache_dir` lacks; returns how many there
/// are.
///
/// # Errors
///
/// As [`modules`], and a cache that does not take them.
pub(super) fn keep(
    graphs: &[Graph<'_>],
    machine: &Machine,
    model: &str,
    options: &SessionOptions,
) -> Result<usize> {
    let compilation = Compilation::new(graphs.len(), machine, model, options);
    let keep = |graph: &Graph<'_>| match &options.cache_dir {
        Some(folder) => compilation.found(folder, graph).map(drop),
        None => Ok(()),
    };
    in_parallel(graphs, keep).map(|kept| kept.len())
}

fn cores() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

/// What `work` makes of each graph, on as many threads as there are cores.
fn in_parallel<T: Send>(
    graphs: &[Graph<'_>],
    work: impl Fn(&Graph<'_>) -> Result<T> + Sync,
) -> Result<Vec<T>> {
    let threads = cores().min(graphs.len());
    let next = AtomicUsize::new(0);
    let mut results: Vec<(usize, T)> = thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|_| {
                scope.spawn(|| {
                    let mut done = Vec::new();
                    loop {
                        let index = next.fetch_add(1, Ordering::Relaxed);
                        let Some(graph) = graphs.get(index) else { return Ok(done) };
                        done.push((index, work(graph)?));
                    }
                })
            })
            .collect();
        let results = workers
            .into_iter()
            .map(|worker| worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        results.collect::<Result<Vec<_>>>()
    })?
    .into_iter()
    .flatten()
    .collect();
    results.sort_by_key(|(index, _)| *index);
    Ok(results.into_iter().map(|(_, result)| result).collect())
}

impl<'a> Compilation<'a> {
    /// Of so many graphs.
    fn new(
        graphs: usize,
        machine: &'a Machine,
        model: &'a str,
        options: &'a SessionOptions,
    ) -> Self {
        // With as many graphs as cores each has one. A second thread alone is up to a third more work, and saves no time.
        let limits = CompileLimits::default().single_thread(graphs.max(2) >= cores());
        let compiler = match &options.compiler {
            Some(path) => Compiler::process(path.clone()),
            None => Compiler::find(),
        };
        Self { compiler, machine, model, options, limits }
    }

    fn module(&self, graph: &Graph<'_>) -> Result<Module> {
        if let Some(folder) = &self.options.cache_dir {
            match self.kept(folder, graph) {
                // A start does not fail for want of a cache.
                Err(error @ Error::Cache { .. }) => {
                    let (what, reason) = (graph.name.to_owned(), error.to_string());
                    self.options.notify(Event::NotKept { what, reason });
                }
                module => return module,
            }
        }
        let bytes = self.compile(graph)?;
        // SAFETY: the compiler made the module for this machine just now, from a graph of ours, which
        // only an executor calls, with what the graph expects.
        unsafe { Module::from_bytes(&bytes) }.map_err(loading(graph))
    }

    /// The module as a file of the cache, compiled now if it is not there.
    fn kept(&self, folder: &Path, graph: &Graph<'_>) -> Result<Module> {
        // Another process may clear the cache between the two steps: then once more.
        let mut tries = 0..2;
        loop {
            let path = self.found(folder, graph)?.path;
            // SAFETY: the cache holds what the compiler made for any CPU, or for what this
            // machine runs; its checksum was just verified, and entries are replaced, never
            // rewritten. Only an executor calls it, with what the graph expects.
            match unsafe { Module::from_file(&path) } {
                Err(error) if error.code() == iree_rt::Code::NotFound && tries.next().is_some() => {
                }
                module => return module.map_err(loading(graph)),
            }
        }
    }

    /// The entry of the cache, made now if it is not there. Without a compiler any compiler's
    /// counts, and any code that runs here.
    fn found(&self, folder: &Path, graph: &Graph<'_>) -> Result<Found> {
        let cache = Cache::open(folder)?;
        let key = |code: &Code, compiler: &str| {
            Key::new(&KeyParts {
                graph: graph.text,
                flags: &code.flags.flags,
                target: &code.name,
                compiler,
                runtime: iree_rt::IREE_VERSION,
            })
        };
        let codes = &self.machine.codes;
        let compiler = match &self.compiler {
            Ok(compiler) => compiler,
            Err(error) => {
                let entries = cache.entries()?.into_iter().map(|entry| entry.label);
                let compilers: BTreeSet<_> = entries
                    .filter(|label| label.kind == Kind::Graph)
                    .map(|label| label.compiler)
                    .collect();
                let of = |code| compilers.iter().find_map(|it| cache.get(&key(code, it)));
                let found = codes.iter().find_map(of);
                return found.ok_or_else(|| self.no_compiler(graph, error));
            }
        };
        let compiler = compiler.version().to_owned();
        let key = key(&codes[0], &compiler);
        let (name, model) = (graph.name.to_owned(), self.model.to_owned());
        let label = Label { name, model, compiler, ..Label::default() };
        cache.get_or_make(&key, &label, |writer| writer.write(&self.compile(graph)?))
    }

    fn compile(&self, graph: &Graph<'_>) -> Result<Vec<u8>> {
        let compiler = self.compiler.as_ref().map_err(|error| self.no_compiler(graph, error))?;
        self.options.notify(Event::Compiling { graph: graph.name.to_owned() });
        let start = Instant::now();
        let bytes = compiler
            .compile_within(graph.text, &self.machine.codes[0].flags, &self.limits)
            .map_err(iree(format!("compiling the graph {}", graph.name)))?;
        self.options
            .notify(Event::Compiled { graph: graph.name.to_owned(), took: start.elapsed() });
        Ok(bytes)
    }

    fn no_compiler(&self, graph: &Graph<'_>, error: &iree_rt::Error) -> Error {
        let (graph, code) = (graph.name.to_owned(), self.machine.codes[0].name.clone());
        if self.options.compiler.is_none() && error.code() == iree_rt::Code::NotFound {
            return Error::NoCompiler { graph, code, source: error.clone() };
        }
        let context = format!(
            "using the IREE compiler for the graph {graph}, which no cache holds for {code}"
        );
        Error::Iree { context, source: error.clone() }
    }
}

fn loading(graph: &Graph<'_>) -> impl FnOnce(iree_rt::Error) -> Error + use<> {
    iree(format!("loading the compiled graph {}", graph.name))
}

#[cfg(test)]
mod tests {
    use iree_rt::cuda::Target;

    use super::*;
    use crate::emit::{Format, WeightFormats};
    use crate::lower::cuda::{self, CudaTiles};
    use checkpoint::config::ModelConfig;

    #[test]
    fn without_a_compiler_a_gpu_takes_older_code_that_is_there() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let config = ModelConfig::from_dir(&root.join("tests/fixtures/llama-mha-f32")).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let here =
            SessionOptions { cache_dir: Some(folder.path().into()), ..SessionOptions::default() };
        let machine = Machine::cuda(&[Target::SM_80]);
        let formats = WeightFormats::all(Format::F32);
        let graph = cuda::head(&config, &formats, &CudaTiles::new(), 1);
        let graphs = [Graph { name: &graph.name, text: &graph.text }];
        assert_eq!(keep(&graphs, &machine, "a", &here).unwrap(), 1);

        let there =
            SessionOptions { compiler: Some(folder.path().join("no-compiler")), ..here.clone() };
        let found = |gpu| {
            let targets = Target::all_for_gpu(gpu, (12, 8)).unwrap();
            modules(&graphs, &Machine::cuda(&targets), "a", &there)
        };
        for gpu in [(8, 0), (8, 6), (9, 0), (10, 0), (12, 0)] {
            assert_eq!(found(gpu).unwrap().len(), 1, "{gpu:?}");
        }
        // Newer code is of no use to an older GPU.
        let error = found((7, 5)).unwrap_err().to_string();
        assert!(error.contains("no cache holds for sm_75"), "{error}");
    }
}

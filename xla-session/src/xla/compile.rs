//! From graphs to loaded modules: compiled once for this machine, in parallel, then cached.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use iree_rt::{CompileOptions, Compiler, Module};

use super::{host, iree};
use crate::backend::{Event, SessionOptions};
use crate::cache::{Cache, Key, KeyParts, Label};
use crate::emit::Graph;
use crate::{Error, Result};

/// Compiles graphs for this machine.
struct Compilation<'a> {
    compiler: Compiler,
    flags: CompileOptions,
    features: String,
    model: &'a str,
    options: &'a SessionOptions,
}

/// The modules of `graphs`, from the cache where it has them.
///
/// # Errors
///
/// No compiler, or a graph that it refuses.
pub(super) fn modules(
    graphs: &[Graph],
    model: &str,
    options: &SessionOptions,
) -> Result<Vec<Module>> {
    let compiler = match &options.compiler {
        Some(path) => Compiler::process(path.clone()),
        None => Compiler::find(),
    };
    let compilation = Compilation {
        compiler: compiler.map_err(iree("finding the IREE compiler"))?,
        // The tiles that matter are said in the graphs; the level is for what lies between them.
        flags: CompileOptions::default()
            .flag("--iree-input-type=stablehlo")
            .flag("--iree-opt-level=O3"),
        features: host::features(),
        model,
        options,
    };
    let threads = thread::available_parallelism().map_or(1, usize::from).min(graphs.len());
    let next = AtomicUsize::new(0);
    let mut modules: Vec<(usize, Module)> = thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|_| {
                scope.spawn(|| {
                    let mut done = Vec::new();
                    loop {
                        let index = next.fetch_add(1, Ordering::Relaxed);
                        let Some(graph) = graphs.get(index) else { return Ok(done) };
                        done.push((index, compilation.module(graph)?));
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
    modules.sort_by_key(|(index, _)| *index);
    Ok(modules.into_iter().map(|(_, module)| module).collect())
}

impl Compilation<'_> {
    fn module(&self, graph: &Graph) -> Result<Module> {
        if let Some(folder) = &self.options.cache_dir {
            match self.kept(folder, graph) {
                // A start does not fail for want of a cache.
                Err(error @ Error::Cache { .. }) => {
                    let (what, reason) = (graph.name.clone(), error.to_string());
                    self.options.notify(Event::NotKept { what, reason });
                }
                module => return module,
            }
        }
        let bytes = self.compile(graph)?;
        // SAFETY: the compiler made the module for this machine just now.
        unsafe { Module::from_bytes(&bytes) }.map_err(loading(graph))
    }

    /// The module as a file of the cache, compiled now if it is not there.
    fn kept(&self, folder: &Path, graph: &Graph) -> Result<Module> {
        let cache = Cache::open(folder)?;
        let key = Key::new(&KeyParts {
            graph: &graph.text,
            flags: &self.flags.flags,
            target: &self.features,
            compiler: self.compiler.version(),
            runtime: iree_rt::IREE_VERSION,
        });
        let (name, model) = (graph.name.clone(), self.model.to_owned());
        let label = Label { name, model, ..Label::default() };
        // Another process may clear the cache between the two steps: then once more.
        let mut tries = 0..2;
        loop {
            let path =
                cache.get_or_make(&key, &label, |writer| writer.write(&self.compile(graph)?))?.path;
            // SAFETY: the cache holds what the compiler made for a CPU with this one's features;
            // its checksum was just verified, and entries are replaced, never rewritten.
            match unsafe { Module::from_file(&path) } {
                Err(error) if error.code() == iree_rt::Code::NotFound && tries.next().is_some() => {
                }
                module => return module.map_err(loading(graph)),
            }
        }
    }

    fn compile(&self, graph: &Graph) -> Result<Vec<u8>> {
        self.options.notify(Event::Compiling { graph: graph.name.clone() });
        let start = Instant::now();
        let bytes = self
            .compiler
            .compile(&graph.text, &self.flags)
            .map_err(iree(format!("compiling the graph {}", graph.name)))?;
        self.options.notify(Event::Compiled { graph: graph.name.clone(), took: start.elapsed() });
        Ok(bytes)
    }
}

fn loading(graph: &Graph) -> impl FnOnce(iree_rt::Error) -> Error + use<> {
    iree(format!("loading the compiled graph {}", graph.name))
}

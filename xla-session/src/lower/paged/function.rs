//! The function around an emitted body: what its caller sees, and where what it makes lies.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use checkpoint::config::ModelConfig;
use kernels::KV_BLOCK;

use super::{Argument, Graph, Inputs, Parts, Source};
use crate::emit::builder::{Builder, DYNAMIC, ElementType, Index, Memory, TensorType, Value};
use crate::emit::{WeightFormats, WeightSpec};

/// A function while it is written.
pub struct Function<'a> {
    pub config: &'a ModelConfig,
    pub formats: &'a WeightFormats,
    pub parts: &'a dyn Parts,
    pub rows: usize,
    /// Whether they are consecutive tokens of one sequence.
    pub of_prompt: bool,
    pub b: Builder,
    arguments: Vec<Argument>,
    /// Bytes of a page, of arguments that are pages.
    page_bytes: BTreeMap<usize, usize>,
    inputs: Inputs,
    /// The pages of layers that some dispatch has updated, as they are now.
    caches: BTreeMap<usize, Memory>,
    /// What the function leaves: the name and type of each.
    results: Vec<(String, String)>,
    /// Bytes of [`Source::Kept`] in use; `None` where the compiler places what lies between.
    kept: Option<usize>,
}

/// The name of the length of all pages of so many bytes.
fn extent(page_bytes: usize) -> String {
    format!("%pages_of_{page_bytes}")
}

/// Where a value in [`Source::Kept`] begins: a multiple of this, bytes.
const ALIGNMENT: usize = 256;

/// Rows up to which a graph places what dispatches leave. More are prompts, where a command buffer
/// that is made for the call costs little beside it; and places of every layer's own would take
/// 0.6 GB for 256 rows of a 1B model.
const PLACED: usize = 32;

const VIEW: &str = "!hal.buffer_view";

impl<'a> Function<'a> {
    pub fn new(
        config: &'a ModelConfig,
        formats: &'a WeightFormats,
        parts: &'a dyn Parts,
        rows: usize,
    ) -> Self {
        Self {
            config,
            formats,
            parts,
            rows,
            of_prompt: false,
            b: Builder::default(),
            arguments: Vec::new(),
            page_bytes: BTreeMap::new(),
            inputs: Inputs::new(config, rows, rows),
            caches: BTreeMap::new(),
            results: Vec::new(),
            kept: (rows <= PLACED).then_some(0),
        }
    }

    /// A function whose rows are consecutive tokens of one sequence.
    pub fn of_prompt(
        config: &'a ModelConfig,
        formats: &'a WeightFormats,
        parts: &'a dyn Parts,
        rows: usize,
    ) -> Self {
        let inputs = Inputs::new(config, rows, 1);
        Self { of_prompt: true, inputs, ..Self::new(config, formats, parts, rows) }
    }

    /// An input of the step.
    pub fn input(&mut self, source: Source) -> Value {
        let ty = self.inputs.ty(&source).clone();
        self.argument(source, ty)
    }

    /// A plane of a weight.
    pub fn weight(&mut self, spec: &WeightSpec, plane: usize) -> Value {
        let ty = spec.planes()[plane].clone();
        self.argument(Source::Weight(spec.clone(), plane), ty)
    }

    /// The pages of a layer, `[pages, 64, heads, width]`, as the dispatches before have left them. Inside a dispatch
    /// there are as many as there can be; how many there are only the caller knows.
    pub fn cache(&mut self, layer: usize, [heads, width]: [usize; 2]) -> Memory {
        if let Some(updated) = self.caches.get(&layer) {
            return updated.clone();
        }
        let at = self.place(Source::Cache(layer), TensorType::new(&[DYNAMIC], ElementType::I8));
        let ty = TensorType::new(&[1, KV_BLOCK, heads, width], ElementType::F32);
        let pages = self.parts.most_pages(ty.bytes());
        self.page_bytes.insert(at, ty.bytes());
        let bytes = extent(ty.bytes());
        let ty = TensorType::new(&[pages, KV_BLOCK, heads, width], ElementType::F32);
        Memory { name: format!("%arg{at}"), bytes, ty }
    }

    /// The pages of a layer as what they hold, outside of dispatches.
    pub fn cache_as_pages(&mut self, cache: &Memory) -> Value {
        let mut ty = cache.ty.clone();
        let page_bytes = ty.bytes() / ty.dims[0];
        ty.dims[0] = DYNAMIC;
        let pages = self.b.index_div(&cache.bytes, page_bytes);
        let text = format!(
            "flow.tensor.bitcast {} : tensor<?xi8>{{{}}} -> {ty}{{{pages}}}",
            cache.name, cache.bytes
        );
        self.b.op(&ty.dims, ty.element, text)
    }

    /// The argument for `source`, added at first use.
    pub fn argument(&mut self, source: Source, ty: TensorType) -> Value {
        Value { name: format!("%arg{}", self.place(source, ty.clone())), ty }
    }

    fn place(&mut self, source: Source, ty: TensorType) -> usize {
        self.arguments.iter().position(|it| it.source == source).unwrap_or_else(|| {
            self.arguments.push(Argument { source, ty });
            self.arguments.len() - 1
        })
    }

    /// `value`, where a dispatch ends, in memory of its own. What the compiler places itself lies in
    /// memory of a length that is known only at run time, and a command buffer that names it is made
    /// anew for each call.
    pub fn kept(&mut self, value: Value) -> Value {
        match self.kept_memory(value.ty.bytes()) {
            Some(memory) => self.stored(&value, &format!("{memory} : !hal.buffer")),
            None => value,
        }
    }

    /// `value`, in memory of the caller.
    pub fn answered(&mut self, value: &Value, source: Source) -> Value {
        let at = self.place(source, value.ty.clone());
        let value = self.stored(value, &format!("%view{at} : {VIEW}"));
        self.results.push((value.name.clone(), value.ty.to_string()));
        value
    }

    /// The cache of a layer, as the function leaves it.
    pub fn updated(&mut self, layer: usize, cache: &Memory) {
        self.caches.insert(layer, cache.clone());
        self.results.push((cache.name.clone(), "tensor<?xi8>".into()));
    }

    /// `parts`, one behind the other along `dim`; each a result of its own, that is written to its
    /// place, where the graph chose it.
    pub fn joined(&mut self, parts: &[Value], dim: usize) -> Value {
        let mut ty = parts[0].ty.clone();
        ty.dims[dim] = parts.iter().map(|part| part.dims()[dim]).sum();
        let Some(memory) = self.kept_memory(ty.bytes()) else { return self.b.concat(parts, dim) };
        let import = format!("hal.tensor.import wait(%wait) => {memory} : !hal.buffer -> {ty}");
        let mut whole = self.b.op(&ty.dims, ty.element, import);
        let mut at = 0;
        for part in parts {
            let mut offsets = vec![Index::from(0); ty.dims.len()];
            offsets[dim] = at.into();
            whole = self.b.insert(part, &whole, &offsets);
            at += part.dims()[dim];
        }
        whole
    }

    fn stored(&mut self, value: &Value, memory: &str) -> Value {
        let Value { name, ty } = value;
        let place = format_args!("hal.tensor.alias wait(%wait) => {name} : {ty} to {memory}");
        self.b.op(&ty.dims, ty.element, place)
    }

    /// The name of a buffer of `bytes` bytes.
    fn kept_memory(&mut self, bytes: usize) -> Option<String> {
        let at = self.kept?;
        self.kept = Some((at + bytes).next_multiple_of(ALIGNMENT));
        Some(self.b.part_of_buffer("%kept", at, bytes))
    }

    /// The graph. Its function has buffer views in its signature, with what IREE would add to one of
    /// tensors written out: IREE adds it by calling the function from a wrapper, and that call copies
    /// every argument, weights and cache too.
    ///
    /// How long a cache is comes from a global that does not change once the module is loaded: a
    /// command buffer that names an extent of a call's argument is made anew for each call, and one
    /// with that extent written out would be another graph for every size.
    pub fn finish(mut self, name: String) -> Graph {
        if let Some(bytes) = self.kept.filter(|bytes| *bytes > 0) {
            self.place(Source::Kept, TensorType::new(&[bytes], ElementType::I8));
        }
        let mut arguments = Vec::new();
        let mut imports = String::new();
        for (i, Argument { source, ty }) in self.arguments.iter().enumerate() {
            if ty.dims.is_empty() {
                let element = ty.element.as_str();
                arguments.push(format!("%arg{i}: {element}"));
                continue;
            }
            arguments.push(format!("%view{i}: {VIEW}"));
            let _ = match source {
                Source::Kept => writeln!(
                    imports,
                    "    %kept = hal.buffer_view.buffer<%view{i} : {VIEW}> : !hal.buffer"
                ),
                // Memory that is only written.
                Source::Logits | Source::Picked => Ok(()),
                Source::Hidden if ty.dims[0] == self.rows => Ok(()),
                _ => {
                    let extent = match self.page_bytes.get(&i) {
                        Some(bytes) => format!("{{{}}}", extent(*bytes)),
                        None => String::new(),
                    };
                    writeln!(
                        imports,
                        "    %arg{i} = hal.tensor.import wait(%wait) => %view{i} : {VIEW} -> \
                         {ty}{extent}"
                    )
                }
            };
        }
        arguments.extend(["%wait: !hal.fence".into(), "%signal: !hal.fence".into()]);
        let list = |items: &mut dyn Iterator<Item = &str>| items.collect::<Vec<_>>().join(", ");
        let (values, types) = (
            list(&mut self.results.iter().map(|(name, _)| name.as_str())),
            list(&mut self.results.iter().map(|(_, ty)| ty.as_str())),
        );
        let targets = match self.parts.targets() {
            Some(targets) => format!("attributes {{{targets}}} "),
            None => String::new(),
        };
        let (mut globals, mut stores, mut loads) = <(String, String, String)>::default();
        let sizes: BTreeSet<_> = self.page_bytes.values().copied().collect();
        for bytes in sizes {
            let name = extent(bytes);
            let global = name.replace('%', "@");
            let _ = writeln!(globals, "  util.global private {global} : index");
            let _ = writeln!(
                stores,
                "    %page{bytes} = arith.constant {bytes} : index
    {name} = arith.muli %pages, %page{bytes} : index
    util.global.store {name}, {global} : index"
            );
            let _ = writeln!(loads, "    {name} = util.global.load {global} : index");
        }
        let text = format!(
            "module @model {targets}{{
{globals}  util.func private @engine.pages() -> i64
  util.initializer {{
    %number = util.call @engine.pages() : () -> i64
    %pages = arith.index_cast %number : i64 to index
{stores}    util.return
  }}
  util.func public @{name}({}) attributes \
             {{iree.abi.stub, iree.reflection = {{iree.abi.model = \"coarse-fences\"}}}} {{
{loads}{imports}{}    %ready:{} = hal.tensor.barrier join({values} : {types}) => %signal : !hal.fence
    util.return
  }}
}}\n",
            arguments.join(", "),
            self.b.text(),
            self.results.len(),
        );
        let Self { rows, of_prompt, arguments, .. } = self;
        Graph { name, text, rows, of_prompt, arguments }
    }
}

//! Graphs as files, for people and for other compilers.

use std::fs;
use std::path::Path;

use checkpoint::config::ModelConfig;
use safetensors::Dtype;
use safetensors::tensor::TensorView;
use serde::Serialize;

use super::{Argument, Graph, Source};
use crate::emit::builder::TensorType;
use crate::{Error, Result};

/// Describes the graphs of a folder: `arguments.json`.
#[derive(Serialize)]
struct Description<'a> {
    /// Tokens that the KV cache holds.
    capacity: usize,
    graphs: Vec<GraphDescription<'a>>,
}

#[derive(Serialize)]
struct GraphDescription<'a> {
    name: &'a str,
    file: String,
    rows: usize,
    arguments: Vec<ValueDescription>,
    results: Vec<ValueDescription>,
}

#[derive(Serialize)]
struct ValueDescription {
    name: String,
    shape: Vec<usize>,
    dtype: &'static str,
    /// Of arguments: "tokens", "start", "last", "rope_cos", "rope_sin", of models that
    /// rotate in several ways "rope_cos.<n>", "rope_sin.<n>" too, "keys.<layer>", "values.<layer>", or the checkpoint's tensors, joined along their rows by "+".
    #[serde(skip_serializing_if = "Option::is_none")]
    source: Option<String>,
}

/// Writes `<name>.mlir` for each graph and `arguments.json`, which says where each argument comes
/// from; and `rope.safetensors`, the rotary tables of `capacity` positions.
///
/// # Errors
///
/// [`Error::Io`] when the folder cannot be written.
pub fn export(
    folder: &Path,
    config: &ModelConfig,
    graphs: &[Graph],
    capacity: usize,
) -> Result<()> {
    fs::create_dir_all(folder).map_err(Error::io(folder))?;
    let write = |name: &str, bytes: &[u8]| {
        let path = folder.join(name);
        fs::write(&path, bytes).map_err(Error::io(path))
    };
    let mut described = Vec::new();
    for graph in graphs {
        let file = format!("{}.mlir", graph.name);
        write(&file, graph.text.as_bytes())?;
        described.push(GraphDescription {
            name: &graph.name,
            file,
            rows: graph.rows,
            arguments: arguments(graph),
            results: results(config, graph),
        });
    }
    let description = Description { capacity, graphs: described };
    let json = serde_json::to_vec_pretty(&description).map_err(std::io::Error::from);
    write("arguments.json", &json.map_err(Error::io(folder))?)?;
    let ropes = &config.architecture.ropes;
    let tables: Vec<_> = ropes.iter().map(|rope| rope.tables(0..capacity)).collect();
    let views = tables.iter().enumerate().flat_map(|(at, tables)| {
        let shape = [capacity, ropes[at].width / 2];
        [("rope_cos", &tables.cos), ("rope_sin", &tables.sin)].map(|(name, table)| {
            let bytes = bytemuck::cast_slice(table);
            let view = TensorView::new(Dtype::F32, shape.to_vec(), bytes);
            view.map(|view| (rope_name(name, at), view))
        })
    });
    let bytes = views
        .collect::<Result<Vec<_>, _>>()
        .and_then(|views| safetensors::serialize(views, None))
        .map_err(|e| Error::io(folder)(std::io::Error::other(e)))?;
    write("rope.safetensors", &bytes)
}

fn arguments(graph: &Graph) -> Vec<ValueDescription> {
    let describe = |(i, argument): (usize, &Argument)| {
        let source = match &argument.source {
            Source::Tokens => "tokens".into(),
            Source::Start => "start".into(),
            Source::Last => "last".into(),
            Source::RopeCos(at) => rope_name("rope_cos", *at),
            Source::RopeSin(at) => rope_name("rope_sin", *at),
            Source::Keys(layer) => format!("keys.{layer}"),
            Source::Values(layer) => format!("values.{layer}"),
            Source::Weight(spec) => {
                let names: Vec<_> = spec.parts.iter().map(|(name, _)| name.as_str()).collect();
                names.join("+")
            }
        };
        ValueDescription { source: Some(source), ..value(format!("arg{i}"), &argument.ty) }
    };
    graph.arguments.iter().enumerate().map(describe).collect()
}

/// The first rope's table has a plain name.
fn rope_name(table: &str, at: usize) -> String {
    if at == 0 { table.into() } else { format!("{table}.{at}") }
}

fn results(config: &ModelConfig, graph: &Graph) -> Vec<ValueDescription> {
    let layers = config.architecture.layers.iter().enumerate();
    let own = layers.filter(|(_, layer)| layer.mixer.key_width() > 0);
    let caches = own.flat_map(|(at, _)| [format!("keys.{at}"), format!("values.{at}")]);
    let names = ["token".to_owned(), "logits".to_owned()].into_iter().chain(caches);
    names.zip(&graph.results).map(|(name, ty)| value(name, ty)).collect()
}

fn value(name: String, ty: &TensorType) -> ValueDescription {
    ValueDescription { name, shape: ty.dims.clone(), dtype: ty.element.as_str(), source: None }
}

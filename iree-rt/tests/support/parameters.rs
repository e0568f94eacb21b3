//! A program with parameters, and archives of them in each format.

use std::fs;
use std::sync::OnceLock;

use iree_rt::{CompileOptions, Module, ParameterFormat, ParameterIndex, Result, Session, Tensor};

use super::{compile, device, module};

/// Takes `ints` and `w`, also as state that it changes, from the scope `model`.
pub const PROGRAM: &str = r#"
module @program {
  util.global private @w = #flow.parameter.named<"model"::"w"> : tensor<3xf32>
  util.global private @ints = #flow.parameter.named<"model"::"ints"> : tensor<5xi32>
  util.global private mutable @state = #flow.parameter.named<"model"::"w"> : tensor<3xf32>
  func.func @scale(%a: tensor<3xf32>) -> tensor<3xf32> {
    %w = util.global.load @w : tensor<3xf32>
    %0 = stablehlo.multiply %a, %w : tensor<3xf32>
    return %0 : tensor<3xf32>
  }
  func.func @get_ints() -> tensor<5xi32> {
    %0 = util.global.load @ints : tensor<5xi32>
    return %0 : tensor<5xi32>
  }
  func.func @weights() -> tensor<3xf32> {
    %0 = util.global.load @w : tensor<3xf32>
    return %0 : tensor<3xf32>
  }
  func.func @replace(%a: tensor<1xf32>) -> tensor<3xf32> {
    %old = util.global.load @state : tensor<3xf32>
    %zero = stablehlo.constant dense<0> : tensor<i32>
    %new = stablehlo.dynamic_update_slice %old, %a, %zero
        : (tensor<3xf32>, tensor<1xf32>, tensor<i32>) -> tensor<3xf32>
    util.global.store %new, @state : tensor<3xf32>
    %out = stablehlo.negate %new : tensor<3xf32>
    return %out : tensor<3xf32>
  }
  func.func @step(%a: tensor<3xf32>) -> tensor<3xf32> {
    %old = util.global.load @state : tensor<3xf32>
    %new = stablehlo.add %old, %a : tensor<3xf32>
    util.global.store %new, @state : tensor<3xf32>
    return %new : tensor<3xf32>
  }
}
"#;

pub const W: [f32; 3] = [10., 20., 30.];
pub const INTS: [i32; 5] = [1, -2, 3, -4, 5];

pub fn program() -> Module {
    static BYTES: OnceLock<Vec<u8>> = OnceLock::new();
    let options = CompileOptions::default().flag("--iree-opt-const-eval=false");
    module(BYTES.get_or_init(|| compile(PROGRAM, &options)))
}

pub fn in_memory() -> ParameterIndex {
    let index = ParameterIndex::new().unwrap();
    index.add("ints", &INTS, b"five").unwrap();
    index.add("w", &W, b"").unwrap();
    index
}

pub fn irpa() -> Vec<u8> {
    let file = tempfile::Builder::new().suffix(".irpa").tempfile().unwrap();
    in_memory().write_archive(file.path()).unwrap();
    fs::read(file.path()).unwrap()
}

pub fn safetensors() -> Vec<u8> {
    let header = r#"{"__metadata__":{"who":"me"},"ints":{"dtype":"I32","shape":[5],"data_offsets":[0,20]},"w":{"dtype":"F32","shape":[3],"data_offsets":[20,32]}}"#;
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.bytes());
    bytes.extend(INTS.iter().flat_map(|x| x.to_le_bytes()));
    bytes.extend(W.iter().flat_map(|x| x.to_le_bytes()));
    bytes
}

pub fn gguf() -> Vec<u8> {
    let (i32, f32) = (26, 0);
    let mut bytes = gguf_header(&[("ints", 5, i32, 0), ("w", 3, f32, 32)]);
    bytes.extend(INTS.iter().flat_map(|x| x.to_le_bytes()));
    bytes.resize(bytes.len().next_multiple_of(32), 0);
    bytes.extend(W.iter().flat_map(|x| x.to_le_bytes()));
    bytes
}

/// All before the data of tensors of these names, elements, types and offsets.
pub fn gguf_header(tensors: &[(&str, u64, u32, u64)]) -> Vec<u8> {
    let mut bytes = b"GGUF".to_vec();
    let text = |bytes: &mut Vec<u8>, text: &str| {
        bytes.extend((text.len() as u64).to_le_bytes());
        bytes.extend(text.bytes());
    };
    bytes.extend(3u32.to_le_bytes());
    bytes.extend((tensors.len() as u64).to_le_bytes());
    bytes.extend(3u64.to_le_bytes());
    text(&mut bytes, "general.name");
    bytes.extend(8u32.to_le_bytes());
    text(&mut bytes, "test");
    text(&mut bytes, "tokens");
    bytes.extend([9u32, 8].map(u32::to_le_bytes).concat());
    bytes.extend(2u64.to_le_bytes());
    text(&mut bytes, "a");
    text(&mut bytes, "bc");
    text(&mut bytes, "ids");
    bytes.extend([9u32, 5].map(u32::to_le_bytes).concat());
    bytes.extend(2u64.to_le_bytes());
    bytes.extend([7i32, 8].map(i32::to_le_bytes).concat());
    for (name, length, ty, offset) in tensors {
        text(&mut bytes, name);
        bytes.extend(1u32.to_le_bytes());
        bytes.extend(length.to_le_bytes());
        bytes.extend(ty.to_le_bytes());
        bytes.extend(offset.to_le_bytes());
    }
    bytes.resize(bytes.len().next_multiple_of(32), 0);
    bytes
}

pub fn archives() -> [(ParameterFormat, &'static str, Vec<u8>); 3] {
    [
        (ParameterFormat::Irpa, "irpa", irpa()),
        (ParameterFormat::Gguf, "gguf", gguf()),
        (ParameterFormat::Safetensors, "safetensors", safetensors()),
    ]
}

pub fn build(uri: &str, index: &ParameterIndex) -> Result<Session> {
    Session::builder(&device(uri)).parameters("model", index).module(program()).build()
}

pub fn floats(session: &mut Session, name: &str, argument: Option<[f32; 3]>) -> Vec<f32> {
    let function = session.function(name).unwrap();
    let view = argument.map(|data| session.device().buffer_view(&[3], &data).unwrap());
    session.call(&function, Vec::from_iter(view)).unwrap().view(0).unwrap().read().unwrap()
}

pub fn ints(session: &mut Session) -> Vec<i32> {
    let ints = session.typed::<(), Tensor<i32>>("program.get_ints").unwrap();
    ints.call(session, ()).unwrap().read().unwrap()
}

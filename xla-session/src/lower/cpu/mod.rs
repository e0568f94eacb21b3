//! CPUs: a step is a list of calls of [`kernels`], written as a graph.
//!
//! IREE schedules them on its workers and compiles what little lies between. A step has as many rows
//! (tokens, of any sequences) as its caller says, up to a number that the graph is made for, so that
//! one graph serves them all. All that calls leave to each other lies in one piece of memory, the
//! [`Workspace`], at places that the graph chose: a step allocates nothing. Beside it there are the
//! weights, the pages of the KV cache, and the tables that say which pages are whose.
//!
//! Every kernel computes a row by itself, in one order of sums, so that the bits of its results depend
//! on nothing else in the step.
//!
//! Each file is a kernel, or kernels of one kind: what it is called with (`abi.rs`), where the graph
//! calls it, and what a work item does.

mod abi;
mod attention;
mod convolution;
mod distances;
mod embed;
mod experts;
mod gate;
mod gated_delta;
mod head;
mod head_gate;
mod latent;
mod norm;
mod product;
mod program;
mod scale;
mod step;
mod target;
mod workspace;

pub use self::program::{
    Argument, Function, Number, Program, Source, most_rows, program, supports,
};
pub use self::target::CpuTarget;
pub use self::workspace::{Place, Workspace};

/// What graphs of [`program`] call, in the instructions of `isa`.
#[cfg(feature = "iree")]
pub(crate) fn kernels(isa: kernels::Isa) -> iree_rt::Kernels {
    let all = iree_rt::Kernels::new();
    let all = embed::kernels(all);
    let all = norm::kernels(all, isa);
    let all = product::kernels(all, isa);
    let all = attention::kernels(all, isa);
    let all = distances::kernels(all);
    let all = convolution::kernels(all, isa);
    let all = gated_delta::kernels(all, isa);
    let all = gate::kernels(all, isa);
    let all = head_gate::kernels(all, isa);
    let all = latent::kernels(all, isa);
    let all = experts::kernels(all, isa);
    let all = scale::kernels(all, isa);
    head::kernels(all, isa)
}

//! Kernels on every instruction set of this CPU, against f64 and against each other.

mod weights;

mod batch;
mod products;
mod quantise;
mod sketch;

mod compressed;

mod attention;
mod kv_cache;

mod argmax;
mod convolution;
mod gate;
mod gated_delta;
mod gather;
mod ggml;
mod head_gates;
mod limits;
mod norm;
mod rope;

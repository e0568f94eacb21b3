//! Safe bindings of the IREE runtime: load compiled machine-learning modules, call them.
//!
//! From device to result: [`Instance`], [`Device`], [`Module`], [`Session`], [`Function`],
//! [`Call`], [`BufferView`].

pub mod buffer;
mod buffer_view;
mod call;
pub mod compiler;
mod device;
mod driver;
mod element;
mod error;
mod function;
mod import;
mod instance;
mod list;
mod module;
mod semaphore;
mod session;
mod signature;
mod status;
mod task_device;
mod typed;
mod upload;
mod value;

pub use buffer::{Buffer, Memory};
pub use buffer_view::{BufferView, Mapped};
pub use call::{Call, Outputs};
pub use compiler::{CompileOptions, Compiler};
pub use device::{Device, DeviceOptions};
pub use driver::{DeviceInfo, DriverInfo};
pub use element::{Element, ElementType};
pub use error::{Code, Error, Result};
pub use function::{Function, FunctionInfo};
pub use half::{bf16, f16};
pub use instance::Instance;
pub use iree_sys::IREE_VERSION;
pub use module::Module;
pub use session::{Session, SessionBuilder};
pub use signature::{ScalarType, Signature, ValueType};
pub use typed::{Parameters, Results, Tensor, Typed, TypedFunction};
pub use upload::Upload;
pub use value::Value;

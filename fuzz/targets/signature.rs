//! What a module says of its functions' types: a calling convention, a line break, a declaration.
#![no_main]

use libfuzzer_sys::fuzz_target;

mod element {
    pub use iree_rt::ElementType;
}
#[allow(dead_code)]
#[path = "../../iree-rt/src/signature.rs"]
mod signature;

fuzz_target!(|text: &str| {
    let (convention, declaration) = text.split_once('\n').unwrap_or((text, ""));
    let signature = signature::Signature::new(convention, declaration);
    std::hint::black_box(signature.to_string());
});

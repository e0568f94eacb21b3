//! What a module says of its functions' types: a calling convention, a declaration, and extents, a
//! line each.
#![no_main]

use libfuzzer_sys::fuzz_target;

/// Where `signature` looks for it.
mod hal {
    pub mod memory {
        pub mod element {
            pub use iree_rt::ElementType;
        }
    }
}
#[allow(dead_code)]
#[path = "../../iree-rt/src/vm/extents.rs"]
mod extents;
#[allow(dead_code)]
#[path = "../../iree-rt/src/vm/signature.rs"]
mod signature;

fuzz_target!(|text: &str| {
    let (convention, rest) = text.split_once('\n').unwrap_or((text, ""));
    let (declaration, shapes) = rest.split_once('\n').unwrap_or((rest, ""));
    let signature = signature::Signature::new(convention, declaration);
    std::hint::black_box(signature.to_string());
    if let Ok(extents) = extents::Extents::parse(shapes) {
        let shape: &[usize] = &[1, 2];
        let _ = extents.check_ranks(&vec![Some(2); signature.arguments.len()]);
        let _ = extents.check(|_| Some(shape), |index| index.to_string());
    }
});

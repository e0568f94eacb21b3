//! Which kernel an instruction set has for a format.

use std::marker::PhantomData;

use crate::integers::{Bits, E2m1, Group, Grouped, Integer, Iq4, Levels};
#[cfg(target_arch = "x86_64")]
use crate::nibbles::{self, GroupedNibbles, Nibbles};
use crate::rounded::{Round, Rounded};
use crate::scales::{
    Exponent, Nested, NestedHalves, NestedNibbles, NestedScale, NestedSixes, Scale,
    ScaleAndMinimum, Scales, SharedMinimum, SharedZero,
};
use crate::{AttentionKernel, Format, Isa, Kernel, KvFormat};
#[cfg(target_arch = "x86_64")]
use crate::{avx2, avx512};
use crate::{floats, portable, vector, walk};

/// The fastest kernel for `format` on this CPU.
pub fn product(format: Format) -> Kernel {
    product_for(format, Isa::detect())
}

/// The kernel for `format` in the instructions of `isa`, whether or not this CPU has them.
// Inlined into other crates, what only chooses would have all kernels compiled there, as those are compiled.
#[inline(never)]
pub fn product_for(format: Format, isa: Isa) -> Kernel {
    if let Some(kernel) = ggml_kernel(format, isa) {
        return kernel;
    }
    match isa {
        Isa::Portable => kernel_of::<portable::Portable, portable::Portable>(format),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => bytes_of::<avx2::Avx2, avx2::Avx2>(format),
        #[cfg(target_arch = "x86_64")]
        Isa::AvxVnni => bytes_of::<avx2::Avx2, avx2::Avx2<true>>(format),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => kernel_of::<avx512::Avx512<false>, avx512::Avx512<false>>(format),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512Bf16 if format == Format::Bf16Rounded => walk::paired_bf16,
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512Vnni | Isa::Avx512Bf16 => {
            bytes_of::<avx512::Avx512<false>, avx512::Avx512<true>>(format)
        }
    }
}

/// Rounds a row of activations for products with weights of `format`, in the instructions of `isa`;
/// `alone` is whether these have no other row.
///
/// # Safety
///
/// The CPU has the instructions, there are `columns` f32 at `x`, and
/// [`rounded_bytes`](crate::rounded_bytes) at `to`, aligned to 4 bytes, which nothing else accesses.
///
/// # Panics
///
/// The format is not one of integers.
pub unsafe fn round_row(
    isa: Isa,
    format: Format,
    alone: bool,
    x: *const f32,
    columns: usize,
    to: *mut u8,
) {
    fn round<F>(x: *const f32, columns: usize, to: *mut u8) -> Round<F> {
        Round { x, columns, to: Rounded::new(to, columns), integers: PhantomData }
    }
    // SAFETY: the caller's promise.
    unsafe {
        match format {
            #[cfg(target_arch = "x86_64")]
            Format::Int4 if alone && !matches!(isa, Isa::Portable | Isa::Avx512) => {
                enter(isa, &round::<Nibbles>(x, columns, to));
            }
            #[cfg(target_arch = "x86_64")]
            Format::Q4_1 | Format::Q4K | Format::Affine4 | Format::Zeroed4
                if alone && isa != Isa::Portable =>
            {
                enter(isa, &round::<Nibbles>(x, columns, to));
            }
            Format::Int8 => enter(isa, &round::<Bits<8>>(x, columns, to)),
            Format::Int6 | Format::Q6K => enter(isa, &round::<Bits<6>>(x, columns, to)),
            Format::Q5_0 | Format::Q5_1 | Format::Q5K => {
                enter(isa, &round::<Bits<5>>(x, columns, to));
            }
            Format::Int4
            | Format::Q4_1
            | Format::Q4K
            | Format::Affine4
            | Format::Zeroed4
            | Format::Iq4Nl
            | Format::Iq4Xs
            | Format::Mxfp4
            | Format::Q2K
            | Format::Q3K => enter(isa, &round::<Bits<4>>(x, columns, to)),
            floats => panic!("products with {floats:?} take floats"),
        }
    }
}

/// The fastest attention over a cache of `format` on this CPU.
pub fn attention(format: KvFormat) -> AttentionKernel {
    attention_for(format, Isa::detect())
}

/// Attention over a cache of `format` in the instructions of `isa`, whether or not this CPU has them.
#[inline(never)]
pub fn attention_for(format: KvFormat, isa: Isa) -> AttentionKernel {
    match isa {
        Isa::Portable => attention_of::<portable::Portable>(format),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 | Isa::AvxVnni => attention_of::<avx2::Avx2>(format),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 | Isa::Avx512Vnni | Isa::Avx512Bf16 => {
            attention_of::<avx512::Avx512<false>>(format)
        }
    }
}

fn attention_of<V: vector::Vector>(format: KvFormat) -> AttentionKernel {
    match format {
        KvFormat::F32 => crate::attention::attention::<V, floats::F32>,
        KvFormat::F16 => crate::attention::attention::<V, floats::F16>,
    }
}

/// Runs `job` in the instructions of `isa`.
///
/// # Safety
///
/// The CPU has them, and what the job wants holds.
#[cfg(target_arch = "x86_64")]
pub(crate) unsafe fn enter<J>(isa: Isa, job: &J)
where
    J: vector::Job<portable::Portable>
        + vector::Job<avx2::Avx2>
        + vector::Job<avx512::Avx512<false>>,
{
    use vector::Vector;
    // SAFETY: the caller's promise.
    unsafe {
        match isa {
            Isa::Portable => portable::Portable::enter(job),
            Isa::Avx2 | Isa::AvxVnni => <avx2::Avx2>::enter(job),
            Isa::Avx512 | Isa::Avx512Vnni | Isa::Avx512Bf16 => avx512::Avx512::<false>::enter(job),
        }
    }
}

/// Runs `job` in the instructions of `isa`.
///
/// # Safety
///
/// What the job wants holds.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) unsafe fn enter<J: vector::Job<portable::Portable>>(isa: Isa, job: &J) {
    match isa {
        // SAFETY: the caller's promise.
        Isa::Portable => unsafe { <portable::Portable as vector::Vector>::enter(job) },
    }
}

/// As [`kernel_of`], where instructions of `I` multiply bytes; [`round_row`] knows which do.
#[cfg(target_arch = "x86_64")]
fn bytes_of<F: vector::Vector, I: nibbles::Bytes>(format: Format) -> Kernel {
    match format {
        Format::Int4 => walk::one_row_or_more::<I, GroupedNibbles<Scale>, Grouped<Bits<4>, Scale>>,
        other => kernel_of::<F, I>(other),
    }
}

/// Floats in the instructions of `F`, integers in those of `I`.
fn kernel_of<F: vector::Vector, I: vector::Vector>(format: Format) -> Kernel {
    match format {
        Format::F32 => walk::floats::<F, floats::F32>,
        Format::Bf16 => walk::floats::<F, floats::Bf16>,
        Format::Bf16Rounded => walk::widened_bf16::<F>,
        Format::F16 => walk::floats::<F, floats::F16>,
        Format::Int8 => walk::integers::<I, Grouped<Bits<8>, Scale>>,
        Format::Int6 => walk::integers::<I, Grouped<Bits<6>, Scale>>,
        Format::Int4 => walk::integers::<I, Grouped<Bits<4>, Scale>>,
        other => unreachable!("`ggml_kernel` has {other:?}"),
    }
}

/// The kernel for what only ggml has, if `format` is of that. Those of AVX2 serve what has a little more
/// too: compiling them once for each takes minutes.
fn ggml_kernel(format: Format, isa: Isa) -> Option<Kernel> {
    match isa {
        Isa::Portable => ggml_kernel_of::<
            portable::Portable,
            Grouped<Bits<4>, ScaleAndMinimum>,
            Grouped<Bits<4>, Nested>,
            Grouped<Bits<4>, SharedMinimum>,
            Grouped<Bits<4>, SharedZero>,
        >(format),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 | Isa::AvxVnni | Isa::Avx512 => ggml_kernel_of::<
            avx2::Avx2,
            GroupedNibbles<ScaleAndMinimum>,
            GroupedNibbles<Nested>,
            GroupedNibbles<SharedMinimum>,
            GroupedNibbles<SharedZero>,
        >(format),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512Vnni | Isa::Avx512Bf16 => ggml_kernel_of::<
            avx512::Avx512<true>,
            GroupedNibbles<ScaleAndMinimum>,
            GroupedNibbles<Nested>,
            GroupedNibbles<SharedMinimum>,
            GroupedNibbles<SharedZero>,
        >(format),
    }
}

/// As [`ggml_kernel`]: in the instructions of `V`, with `One` and its like for one row of four bits.
fn ggml_kernel_of<V, One, OneNested, OneMinimum, OneZero>(format: Format) -> Option<Kernel>
where
    V: vector::Vector,
    One: Group<V>,
    OneNested: Group<V>,
    OneMinimum: Group<V>,
    OneZero: Group<V>,
{
    /// One row meets integers as they are stored.
    fn decoded<V: vector::Vector, I: Integer, S: Scales>() -> Kernel {
        walk::one_row_or_decoded::<V, Grouped<I, S>, I, S>
    }
    Some(match format {
        Format::Q4_1 => walk::one_row_or_decoded::<V, One, Bits<4>, ScaleAndMinimum>,
        Format::Q5_0 => decoded::<V, Bits<5>, Scale>(),
        Format::Q5_1 => decoded::<V, Bits<5>, ScaleAndMinimum>(),
        Format::Q4K => walk::one_row_or_decoded::<V, OneNested, Bits<4>, Nested>,
        Format::Affine4 => walk::one_row_or_decoded::<V, OneMinimum, Bits<4>, SharedMinimum>,
        Format::Zeroed4 => walk::one_row_or_decoded::<V, OneZero, Bits<4>, SharedZero>,
        Format::Q5K => decoded::<V, Bits<5>, Nested>(),
        Format::Q6K => decoded::<V, Bits<6>, NestedHalves>(),
        Format::Q2K => decoded::<V, Bits<2>, NestedNibbles>(),
        Format::Q3K => decoded::<V, Bits<3>, NestedSixes>(),
        Format::Iq4Nl => decoded::<V, Levels<Iq4>, Scale>(),
        Format::Iq4Xs => decoded::<V, Levels<Iq4>, NestedScale>(),
        Format::Mxfp4 => decoded::<V, Levels<E2m1>, Exponent>(),
        _ => return None,
    })
}

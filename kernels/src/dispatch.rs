//! Which kernel an instruction set has for a format.

use std::marker::PhantomData;

#[cfg(target_arch = "x86_64")]
use crate::amx_activations::{Narrow, Split};
#[cfg(target_arch = "x86_64")]
use crate::amx_integers::{self, PairPlanes, QuadPlanes};
use crate::integers::{Bits, E2m1, Group, Grouped, Integer, Iq4, Levels, Rounding};
#[cfg(target_arch = "aarch64")]
use crate::neon::{DOT, MATRICES, Neon};
#[cfg(target_arch = "aarch64")]
use crate::neon_quads::{GroupedQuads, Quad, Quads};
#[cfg(target_arch = "x86_64")]
use crate::quads::{GroupedQuads, QuadVector, Quads};
use crate::rounded::{Round, Rounded, largest_for};
use crate::scales::{
    Exponent, Nested, NestedHalves, NestedNibbles, NestedScale, NestedSixes, Scale,
    ScaleAndMinimum, Scales, SharedMinimum, SharedZero,
};
use crate::{AttentionKernel, Format, Isa, Kernel, KvFormat};
#[cfg(target_arch = "x86_64")]
use crate::{amx_floats, avx2, avx512, avx512_bf16};
use crate::{floats, portable, vector, walk};

/// The fastest kernel for `format` on this CPU.
pub fn product(format: Format) -> Kernel {
    product_for(format, Isa::detect())
}

/// The kernel for `format` in the instructions of `isa`, whether or not [this CPU has them](Isa::all_here).
// Inlined into other crates, what only chooses would have all kernels compiled there, as those are compiled.
#[inline(never)]
pub fn product_for(format: Format, isa: Isa) -> Kernel {
    #[cfg(target_arch = "x86_64")]
    if isa == Isa::Amx
        && let Some(kernel) = tiled_kernel(format)
    {
        return kernel;
    }
    if let Some(kernel) = ggml_kernel(format, isa) {
        return kernel;
    }
    match isa {
        Isa::Portable => kernel_of::<portable::Portable, portable::Portable>(format),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => bytes_of::<avx2::Avx2, avx2::Avx2>(format),
        #[cfg(target_arch = "x86_64")]
        Isa::AvxVnni => vnni_of::<avx2::Avx2, avx2::Avx2<true>>(format),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => kernel_of::<avx512::Avx512<false>, avx512::Avx512<false>>(format),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512Bf16 if format == Format::Bf16Rounded => {
            use avx512::Avx512;
            walk::paired_bf16::<Avx512<true>, avx512_bf16::Bf16Pairs, Avx512<false>>
        }
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512Vnni | Isa::Avx512Bf16 | Isa::Amx => {
            vnni_of::<avx512::Avx512<false>, avx512::Avx512<true>>(format)
        }
        #[cfg(target_arch = "aarch64")]
        Isa::NeonBf16 if format == Format::Bf16Rounded => {
            walk::paired_bf16::<Neon<MATRICES>, crate::neon_bf16::Bf16Pairs, Neon>
        }
        #[cfg(target_arch = "aarch64")]
        Isa::NeonDot => quads_of::<DOT>(format),
        #[cfg(target_arch = "aarch64")]
        Isa::NeonBf16 => quads_of::<MATRICES>(format),
        #[cfg(target_arch = "aarch64")]
        Isa::Neon => kernel_of::<Neon, Neon>(format),
    }
}

/// The kernel that multiplies by tiles, if there is one for `format`. Few rows meet integers without.
#[cfg(target_arch = "x86_64")]
fn tiled_kernel(format: Format) -> Option<Kernel> {
    macro_rules! integers {
        ($format:ident, $integer:ty, $scales:ty) => {
            integers!($format, $integer, $scales, 2)
        };
        ($format:ident, $integer:ty, $scales:ty, $planes:literal) => {
            |p| {
                let of_few = product_for(Format::$format, Isa::Avx512Vnni);
                // SAFETY: whoever calls a kernel promises what both want.
                unsafe {
                    match p.used < amx_integers::from_rows(Format::$format) {
                        true => of_few(p),
                        false => amx_integers::many::<$integer, $scales, $planes>(p),
                    }
                }
            }
        };
    }
    macro_rules! floats {
        ($format:ident, $activations:ty) => {
            |p| {
                let otherwise = product_for(Format::$format, Isa::Avx512Bf16);
                // SAFETY: whoever calls a kernel promises what both want.
                unsafe { amx_floats::packed::<$activations>(p, otherwise) }
            }
        };
    }
    Some(match format {
        // Integers that were multiplied with their scales are no bytes, as tiles want them.
        Format::F32 | Format::F16 | Format::Q3K | Format::Q6K => return None,
        Format::Bf16 => floats!(Bf16, Split),
        Format::Bf16Rounded => floats!(Bf16Rounded, Narrow),
        Format::Int8 => integers!(Int8, Bits<8>, Scale),
        Format::Int8Rounded => integers!(Int8Rounded, Bits<8>, Scale, 1),
        Format::Int6 => integers!(Int6, Bits<6>, Scale),
        Format::Int4 => integers!(Int4, Bits<4>, Scale),
        Format::Nested4 => integers!(Nested4, Bits<4>, Nested, 1),
        Format::Q4_1 => integers!(Q4_1, Bits<4>, ScaleAndMinimum),
        Format::Q5_0 => integers!(Q5_0, Bits<5>, Scale),
        Format::Q5_1 => integers!(Q5_1, Bits<5>, ScaleAndMinimum),
        Format::Q4K => integers!(Q4K, Bits<4>, Nested),
        Format::Q5K => integers!(Q5K, Bits<5>, Nested),
        Format::Affine4 => integers!(Affine4, Bits<4>, SharedMinimum),
        Format::Zeroed4 => integers!(Zeroed4, Bits<4>, SharedZero),
        Format::Q2K => integers!(Q2K, Bits<2>, NestedNibbles),
        Format::Iq4Nl => integers!(Iq4Nl, Levels<Iq4>, Scale),
        Format::Iq4Xs => integers!(Iq4Xs, Levels<Iq4>, NestedScale),
        Format::Mxfp4 => integers!(Mxfp4, Levels<E2m1>, Exponent),
    })
}

/// Rounds a row of activations for products with weights of `format`, in the instructions of `isa`;
/// `rows` is how many these meet together.
///
/// # Safety
///
/// The CPU has the instructions, as [`Isa::all_here`] has said before; there are `columns` f32 at `x`, and
/// [`rounded_bytes`](crate::rounded_bytes) at `to`, aligned to 4 bytes, which nothing else accesses.
///
/// # Panics
///
/// The format is not one of integers.
#[cfg_attr(not(target_arch = "x86_64"), expect(unused_variables, reason = "all rows are the same"))]
pub unsafe fn round_row(
    isa: Isa,
    format: Format,
    rows: usize,
    x: *const f32,
    columns: usize,
    to: *mut u8,
) {
    unsafe fn round<F: Rounding>(isa: Isa, row: Round<()>) {
        // SAFETY: the caller's promise.
        unsafe { enter(isa, &row.arranged::<F>()) }
    }
    let most = largest_for(format);
    let row = Round { x, columns, to: Rounded::new(to, columns), most, integers: PhantomData };
    #[cfg(target_arch = "aarch64")]
    if matches!(isa, Isa::NeonDot | Isa::NeonBf16) && has_quads(format) {
        // SAFETY: the caller's promise.
        return unsafe {
            match format.integers().map(|it| it.bits) {
                Some(8) => enter(isa, &row.arranged::<Quads<Bits<8>>>()),
                Some(6) => enter(isa, &row.arranged::<Quads<Bits<6>>>()),
                Some(5) => enter(isa, &row.arranged::<Quads<Bits<5>>>()),
                Some(4) => enter(isa, &row.arranged::<Quads<Bits<4>>>()),
                _ => panic!("products with {format:?} take floats"),
            }
        };
    }
    let alone = rows == 1;
    let round = match format {
        #[cfg(target_arch = "x86_64")]
        _ if isa == Isa::Amx
            && rows >= amx_integers::from_rows(format)
            && tiled_kernel(format).is_some() =>
        {
            tiled_rounding(format)
        }
        #[cfg(target_arch = "x86_64")]
        Format::Nested4 if isa != Isa::Portable => round::<Quads<1>>,
        #[cfg(target_arch = "x86_64")]
        Format::Int8Rounded if has_vnni(isa) => round::<Quads<1>>,
        #[cfg(target_arch = "x86_64")]
        Format::Int8 if alone && has_vnni(isa) => round::<Quads<2>>,
        #[cfg(target_arch = "x86_64")]
        Format::Int4 if alone && !matches!(isa, Isa::Portable | Isa::Avx512) => round::<Quads<2>>,
        #[cfg(target_arch = "x86_64")]
        Format::Q4_1 | Format::Q4K | Format::Affine4 | Format::Zeroed4
            if alone && isa != Isa::Portable =>
        {
            round::<Quads<2>>
        }
        Format::Int8 | Format::Int8Rounded => round::<Bits<8>>,
        Format::Int6 | Format::Q6K => round::<Bits<6>>,
        Format::Q5_0 | Format::Q5_1 | Format::Q5K => round::<Bits<5>>,
        Format::Int4
        | Format::Nested4
        | Format::Q4_1
        | Format::Q4K
        | Format::Affine4
        | Format::Zeroed4
        | Format::Iq4Nl
        | Format::Iq4Xs
        | Format::Mxfp4
        | Format::Q2K
        | Format::Q3K => round::<Bits<4>>,
        floats => panic!("products with {floats:?} take floats"),
    };
    // SAFETY: the caller's promise.
    unsafe { round(isa, row) }
}

/// Rounds a row as [`tiled_kernel`] has the integers of `format`: in two planes of bytes, or in one what one byte holds.
#[cfg(target_arch = "x86_64")]
fn tiled_rounding(format: Format) -> unsafe fn(Isa, Round<()>) {
    /// For CPUs that have tiles.
    unsafe fn round<F: Rounding>(_: Isa, row: Round<()>) {
        // SAFETY: the caller's promise; AVX-512 is there where tiles are.
        unsafe { <avx512::Avx512<false> as vector::Vector>::enter(&row.arranged::<F>()) }
    }
    match format {
        Format::Nested4 | Format::Int8Rounded => round::<QuadPlanes<1>>,
        Format::Int6 => round::<PairPlanes<Bits<6>>>,
        Format::Q5_0 | Format::Q5_1 | Format::Q5K => round::<PairPlanes<Bits<5>>>,
        Format::Q2K => round::<PairPlanes<Bits<4>>>,
        _ => round::<QuadPlanes<2>>,
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
        Isa::Avx512 | Isa::Avx512Vnni | Isa::Avx512Bf16 | Isa::Amx => {
            attention_of::<avx512::Avx512<false>>(format)
        }
        #[cfg(target_arch = "aarch64")]
        Isa::Neon | Isa::NeonDot | Isa::NeonBf16 => attention_of::<Neon>(format),
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
            Isa::Avx512 | Isa::Avx512Vnni | Isa::Avx512Bf16 | Isa::Amx => {
                avx512::Avx512::<false>::enter(job);
            }
        }
    }
}

/// Runs `job` in the instructions of `isa`.
///
/// # Safety
///
/// What the job wants holds.
#[cfg(target_arch = "aarch64")]
pub(crate) unsafe fn enter<J>(isa: Isa, job: &J)
where
    J: vector::Job<portable::Portable> + vector::Job<Neon>,
{
    use vector::Vector;
    // SAFETY: the caller's promise.
    unsafe {
        match isa {
            Isa::Portable => portable::Portable::enter(job),
            Isa::Neon | Isa::NeonDot | Isa::NeonBf16 => <Neon>::enter(job),
        }
    }
}

/// Runs `job` in the instructions of `isa`.
///
/// # Safety
///
/// What the job wants holds.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub(crate) unsafe fn enter<J: vector::Job<portable::Portable>>(isa: Isa, job: &J) {
    match isa {
        // SAFETY: the caller's promise.
        Isa::Portable => unsafe { <portable::Portable as vector::Vector>::enter(job) },
    }
}

/// As [`kernel_of`], where instructions of `I` multiply bytes; [`round_row`] knows which do.
#[cfg(target_arch = "x86_64")]
fn bytes_of<F: vector::Vector, I: QuadVector>(format: Format) -> Kernel {
    match format {
        Format::Int4 => {
            walk::one_row_or_more::<I, GroupedQuads<Bits<4>, Scale, 2>, Grouped<Bits<4>, Scale>>
        }
        other => kernel_of::<F, I>(other),
    }
}

/// As [`bytes_of`], where bytes of weights may be large; [`has_vnni`] knows where.
#[cfg(target_arch = "x86_64")]
fn vnni_of<F: vector::Vector, I: QuadVector>(format: Format) -> Kernel {
    match format {
        Format::Int8 => {
            walk::one_row_or_more::<I, GroupedQuads<Bits<8>, Scale, 2>, Grouped<Bits<8>, Scale>>
        }
        Format::Int8Rounded => walk::integers::<I, GroupedQuads<Bits<8>, Scale, 1>>,
        other => bytes_of::<F, I>(other),
    }
}

#[cfg(target_arch = "x86_64")]
fn has_vnni(isa: Isa) -> bool {
    matches!(isa, Isa::AvxVnni | Isa::Avx512Vnni | Isa::Avx512Bf16 | Isa::Amx)
}

/// Whether FEAT_DotProd multiplies the integers of `format`: not those of two and three bits, nor levels.
#[cfg(target_arch = "aarch64")]
fn has_quads(format: Format) -> bool {
    let others = [Format::Q2K, Format::Q3K, Format::Iq4Nl, Format::Iq4Xs, Format::Mxfp4];
    format.is_quantised() && !others.contains(&format)
}

/// Floats as [`kernel_of`] has them, and the formats of integers that [have quads](has_quads): with FEAT_I8MM
/// several rows meet them two by two.
#[cfg(target_arch = "aarch64")]
fn quads_of<const MORE: u8>(format: Format) -> Kernel {
    fn of<I: Quad, S: Scales, const MORE: u8>() -> Kernel {
        walk::integers::<Neon<MORE>, GroupedQuads<I, S, 2>>
    }
    match format {
        Format::Int8 => of::<Bits<8>, Scale, MORE>(),
        Format::Int8Rounded => walk::integers::<Neon<MORE>, GroupedQuads<Bits<8>, Scale, 1>>,
        Format::Int6 => of::<Bits<6>, Scale, MORE>(),
        Format::Int4 => of::<Bits<4>, Scale, MORE>(),
        Format::Q4_1 => of::<Bits<4>, ScaleAndMinimum, MORE>(),
        Format::Q5_0 => of::<Bits<5>, Scale, MORE>(),
        Format::Q5_1 => of::<Bits<5>, ScaleAndMinimum, MORE>(),
        Format::Nested4 => walk::integers::<Neon<MORE>, GroupedQuads<Bits<4>, Nested, 1>>,
        Format::Q4K => of::<Bits<4>, Nested, MORE>(),
        Format::Affine4 => of::<Bits<4>, SharedMinimum, MORE>(),
        Format::Zeroed4 => of::<Bits<4>, SharedZero, MORE>(),
        Format::Q5K => of::<Bits<5>, Nested, MORE>(),
        Format::Q6K => of::<Bits<6>, NestedHalves, MORE>(),
        floats => kernel_of::<Neon, Neon>(floats),
    }
}

/// Floats in the instructions of `F`, integers in those of `I`.
fn kernel_of<F: vector::Vector, I: vector::Vector>(format: Format) -> Kernel {
    match format {
        Format::F32 => walk::floats::<F, floats::F32>,
        Format::Bf16 => walk::floats::<F, floats::Bf16>,
        Format::Bf16Rounded => walk::widened_bf16::<F>,
        Format::F16 => walk::floats::<F, floats::F16>,
        Format::Int8 | Format::Int8Rounded => walk::integers::<I, Grouped<Bits<8>, Scale>>,
        Format::Int6 => walk::integers::<I, Grouped<Bits<6>, Scale>>,
        Format::Int4 => walk::integers::<I, Grouped<Bits<4>, Scale>>,
        other => unreachable!("`ggml_kernel` has {other:?}"),
    }
}

/// How an instruction set multiplies the integers of ggml's formats. Those of AVX2 serve what has a little
/// more too: compiling them once for each takes minutes.
trait Way {
    type Vector: vector::Vector;

    /// One row beside four bits.
    type One<S: Scales>: Group<Self::Vector>;
    /// Any rows beside four bits, activations being bytes.
    type ByteActivations<S: Scales>: Group<Self::Vector>;

    /// Any rows beside six bits.
    fn six<S: Scales>() -> Kernel {
        walk::integers::<Self::Vector, Grouped<Bits<6>, S>>
    }

    /// Any rows beside integers that take some work to be taken out of their words.
    fn costly<I: Integer, S: Scales>() -> Kernel;
}

impl Way for portable::Portable {
    type Vector = Self;
    type One<S: Scales> = Grouped<Bits<4>, S>;
    type ByteActivations<S: Scales> = Grouped<Bits<4>, S>;

    fn costly<I: Integer, S: Scales>() -> Kernel {
        walk::one_row_or_decoded::<Self, I, S>
    }
}

#[cfg(target_arch = "x86_64")]
impl Way for avx2::Avx2 {
    type Vector = Self;
    type One<S: Scales> = GroupedQuads<Bits<4>, S, 2>;
    type ByteActivations<S: Scales> = GroupedQuads<Bits<4>, S, 1>;

    /// Measured, as they are stored and decoded: two rows 1.1 to 1.5 times as fast, eight 0.8 to 0.98,
    /// more 0.77 to 0.85.
    fn costly<I: Integer, S: Scales>() -> Kernel {
        walk::one_row_or_decoded::<Self, I, S>
    }
}

/// Measured: two rows are 1.4 to 1.8 times as fast as with what is decoded once for all of them, eight 1.2
/// to 1.5 times.
#[cfg(target_arch = "x86_64")]
impl Way for avx512::Avx512<true> {
    type Vector = Self;
    type One<S: Scales> = GroupedQuads<Bits<4>, S, 2>;
    type ByteActivations<S: Scales> = GroupedQuads<Bits<4>, S, 1>;

    fn six<S: Scales>() -> Kernel {
        Self::costly::<Bits<6>, S>()
    }

    fn costly<I: Integer, S: Scales>() -> Kernel {
        walk::few_or_many::<I, S>
    }
}

#[cfg(target_arch = "aarch64")]
impl Way for Neon {
    type Vector = Self;
    type One<S: Scales> = Grouped<Bits<4>, S>;
    type ByteActivations<S: Scales> = Grouped<Bits<4>, S>;

    fn costly<I: Integer, S: Scales>() -> Kernel {
        walk::one_row_or_decoded::<Self, I, S>
    }
}

/// The kernel for what only ggml has, and for [`Format::Nested4`], if `format` is of that.
fn ggml_kernel(format: Format, isa: Isa) -> Option<Kernel> {
    match isa {
        Isa::Portable => ggml_kernel_of::<portable::Portable>(format),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 | Isa::AvxVnni | Isa::Avx512 => ggml_kernel_of::<avx2::Avx2>(format),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512Vnni | Isa::Avx512Bf16 | Isa::Amx => {
            ggml_kernel_of::<avx512::Avx512<true>>(format)
        }
        // `quads_of` has them.
        #[cfg(target_arch = "aarch64")]
        Isa::NeonDot | Isa::NeonBf16 if has_quads(format) => None,
        #[cfg(target_arch = "aarch64")]
        Isa::Neon | Isa::NeonDot | Isa::NeonBf16 => ggml_kernel_of::<Neon>(format),
    }
}

/// As [`ggml_kernel`]. Integers of four bits are met as they are stored.
fn ggml_kernel_of<W: Way>(format: Format) -> Option<Kernel> {
    fn four<W: Way, S: Scales>() -> Kernel {
        walk::one_row_or_more::<W::Vector, W::One<S>, Grouped<Bits<4>, S>>
    }
    Some(match format {
        Format::Nested4 => walk::integers::<W::Vector, W::ByteActivations<Nested>>,
        Format::Q4K => four::<W, Nested>(),
        Format::Q4_1 => four::<W, ScaleAndMinimum>(),
        Format::Affine4 => four::<W, SharedMinimum>(),
        Format::Zeroed4 => four::<W, SharedZero>(),
        Format::Q6K => W::six::<NestedHalves>(),
        Format::Q5_0 => W::costly::<Bits<5>, Scale>(),
        Format::Q5_1 => W::costly::<Bits<5>, ScaleAndMinimum>(),
        Format::Q5K => W::costly::<Bits<5>, Nested>(),
        Format::Q2K => W::costly::<Bits<2>, NestedNibbles>(),
        Format::Q3K => W::costly::<Bits<3>, NestedSixes>(),
        Format::Iq4Nl => W::costly::<Levels<Iq4>, Scale>(),
        Format::Iq4Xs => W::costly::<Levels<Iq4>, NestedScale>(),
        Format::Mxfp4 => W::costly::<Levels<E2m1>, Exponent>(),
        _ => return None,
    })
}

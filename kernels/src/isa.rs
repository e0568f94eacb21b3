//! The instruction sets that kernels are written for.

#[cfg(target_arch = "aarch64")]
use crate::neon;
#[cfg(target_arch = "x86_64")]
use crate::{amx, avx2, avx512, avx512_bf16, prefetching};

/// An instruction set that kernels are written for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Isa {
    /// Whatever the compiler's baseline has.
    Portable,
    /// x86-64 with AVX2, FMA and F16C.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// And with AVX-VNNI.
    #[cfg(target_arch = "x86_64")]
    AvxVnni,
    /// x86-64 with AVX2, FMA, F16C and AVX-512 F, BW, DQ and VL.
    #[cfg(target_arch = "x86_64")]
    Avx512,
    /// And with AVX-512 VNNI.
    #[cfg(target_arch = "x86_64")]
    Avx512Vnni,
    /// And with AVX-512 BF16.
    #[cfg(target_arch = "x86_64")]
    Avx512Bf16,
    /// And with AMX, of bytes and of bfloat16.
    #[cfg(target_arch = "x86_64")]
    Amx,
    /// AArch64, all of which has NEON.
    #[cfg(target_arch = "aarch64")]
    Neon,
    /// And with products of bytes, FEAT_DotProd.
    #[cfg(target_arch = "aarch64")]
    NeonDot,
    /// And with FEAT_BF16 and FEAT_I8MM.
    #[cfg(target_arch = "aarch64")]
    NeonBf16,
}

impl Isa {
    /// The name in messages and options.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Portable => "portable",
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => "avx2",
            #[cfg(target_arch = "x86_64")]
            Self::AvxVnni => "avx-vnni",
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => "avx512",
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Vnni => "avx512-vnni",
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Bf16 => "avx512-bf16",
            #[cfg(target_arch = "x86_64")]
            Self::Amx => "amx",
            #[cfg(target_arch = "aarch64")]
            Self::Neon => "neon",
            #[cfg(target_arch = "aarch64")]
            Self::NeonDot => "neon-dot",
            #[cfg(target_arch = "aarch64")]
            Self::NeonBf16 => "neon-bf16",
        }
    }

    /// The fastest one that this CPU has.
    pub fn detect() -> Self {
        Self::all_here().pop().unwrap_or(Self::Portable)
    }

    /// All that this CPU has, slowest first. Linux is asked for the registers of AMX by this: alternate stacks
    /// for signals then have to be larger by 8 KB.
    pub fn all_here() -> Vec<Self> {
        let mut all = vec![Self::Portable];
        #[cfg(target_arch = "x86_64")]
        {
            prefetching::find_out();
            all.extend(avx2::detected().then_some(Self::Avx2));
            all.extend(avx2::vnni_detected().then_some(Self::AvxVnni));
            all.extend(avx512::detected().then_some(Self::Avx512));
            all.extend(avx512::vnni_detected().then_some(Self::Avx512Vnni));
            all.extend(avx512_bf16::detected().then_some(Self::Avx512Bf16));
            all.extend(amx::detected().then_some(Self::Amx));
        }
        #[cfg(target_arch = "aarch64")]
        {
            all.push(Self::Neon);
            all.extend(neon::dot_detected().then_some(Self::NeonDot));
            all.extend(neon::matrices_detected().then_some(Self::NeonBf16));
        }
        all
    }
}

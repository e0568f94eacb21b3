//! What the host's CPU can do: compiled code for one CPU crashes on another.

/// The instruction sets that code generation may use, as a stable list.
pub(super) fn features() -> String {
    macro_rules! detected {
        ($is:ident: $($feature:tt)*) => {{
            let mut found = vec![std::env::consts::ARCH];
            $(if std::arch::$is!($feature) { found.push($feature); })*
            found.join(",")
        }};
    }
    #[cfg(target_arch = "x86_64")]
    return detected!(is_x86_feature_detected:
        "sse3" "ssse3" "sse4.1" "sse4.2" "popcnt" "aes" "pclmulqdq" "avx" "f16c" "fma" "avx2"
        "bmi1" "bmi2" "lzcnt" "movbe" "adx" "sha" "vaes" "vpclmulqdq" "gfni" "avxvnni"
        "avx512f" "avx512cd" "avx512dq" "avx512bw" "avx512vl" "avx512ifma" "avx512vbmi"
        "avx512vbmi2" "avx512vnni" "avx512bitalg" "avx512vpopcntdq" "avx512bf16" "avx512fp16"
        "avx512vp2intersect");
    #[cfg(target_arch = "aarch64")]
    return detected!(is_aarch64_feature_detected:
        "neon" "fp16" "dotprod" "i8mm" "bf16" "fhm" "sve" "sve2" "lse" "lse2" "rcpc" "rdm" "sha3"
        "jsconv" "fcma");
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    return std::env::consts::ARCH.into();
}

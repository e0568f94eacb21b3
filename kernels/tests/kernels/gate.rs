//! The gate of an MLP, and numbers with a limit.

use kernels::{Activation, Gate, Isa, Scale, gate as run, scale};

const ALL: [Activation; 6] = [
    Activation::Silu,
    Activation::GeluTanh,
    Activation::Gelu,
    Activation::Clamped { alpha: 1.702, limit: 7.0 },
    Activation::ReluSquared,
    Activation::Xielu { positive: 0.7, negative: 1.2, beta: 0.5, epsilon: -1e-6 },
];

#[test]
fn gates_of_any_size_match_f64() {
    let mut gate: Vec<f32> = (-2000..2000).map(|i| i as f32 * 0.01).collect();
    gate.extend([-1e30, -200.0, -88.5, 88.5, 200.0, 1e30, -0.0, 0.0]);
    for isa in Isa::all_here() {
        let lengths = [gate.len(), 1, 5, 16, 17];
        let cases = ALL.into_iter().flat_map(|it| lengths.map(|len| (it, len)));
        for (alone, (activation, len)) in
            cases.flat_map(|case| [false, true].map(|alone| (alone, case)))
        {
            let from = gate.len() - len;
            // Within limits and outside of them.
            let ups = (0..len).map(|i| [-1.5, 8.0, -20.0, 0.5][i % 4]);
            let (gate, ups) = (&gate[from..], ups.collect::<Vec<f32>>());
            let mut y = vec![f32::NAN; len];
            let (gate_at, y_at) = (gate.as_ptr(), y.as_mut_ptr());
            let up = if alone { std::ptr::null() } else { ups.as_ptr() };
            let of = Gate { activation, gate: gate_at, up, y: y_at, len };
            // SAFETY: this CPU has the instructions, and all are as long.
            unsafe { run(isa, &of) };
            for ((&gate, &up), &y) in gate.iter().zip(&ups).zip(&y) {
                let (x, mut up) = (f64::from(gate), f64::from(up));
                let root = (2.0 / std::f64::consts::PI).sqrt();
                let (activated, most) = match activation {
                    Activation::Silu => (x / (1.0 + (-x).exp()), 3e-7),
                    // The power of what is rounded, where it is large.
                    Activation::GeluTanh => {
                        let inner = root * (x + 0.044715 * x * x * x);
                        (x / (1.0 + (-2.0 * inner).exp()), 1e-5)
                    }
                    // Where little is above, by the tail of what is rounded.
                    Activation::Gelu => {
                        (x * normal(x), if x < -1.0 { 3e-6 + 2e-7 * x * x } else { 5e-7 })
                    }
                    Activation::Clamped { alpha, limit } => {
                        let (alpha, limit) = (f64::from(alpha), f64::from(limit));
                        up = up.clamp(-limit, limit) + 1.0;
                        let x = x.min(limit);
                        (x / (1.0 + (-alpha * x).exp()), 1e-5)
                    }
                    Activation::ReluSquared => (x.max(0.0).powi(2), 3e-7),
                    Activation::Xielu { positive, negative, beta, epsilon } => {
                        let [positive, negative] = [positive, negative].map(f64::from);
                        let below = negative * (x.min(f64::from(epsilon)).exp_m1() - x);
                        let curved = if x > 0.0 { positive * x * x } else { below };
                        (curved + f64::from(beta) * x, 1e-6)
                    }
                };
                let expected = if alone { activated } else { activated * up };
                if expected.abs() > f64::from(f32::MAX) {
                    assert_eq!(
                        y,
                        f32::INFINITY.copysign(expected as f32),
                        "{isa:?} {activation:?} {gate}"
                    );
                    continue;
                }
                let error = (f64::from(y) - expected).abs();
                let small = if activation == Activation::Silu { 1e-35 } else { 2e-7 };
                let small = small * up.abs().max(1.0);
                assert!(
                    error <= most * expected.abs() + small,
                    "{isa:?} {activation:?} {gate}: {y} {expected}"
                );
            }
        }
    }
}

/// The probability that a normal variable is below `x`, from the series where it is near, else by a continued fraction.
fn normal(x: f64) -> f64 {
    let density = (-x * x / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt();
    if x.abs() < 4.0 {
        let (mut term, mut sum) = (x, 0.0);
        for odd in (1..200).step_by(2) {
            sum += term;
            term *= x * x / f64::from(odd + 2);
        }
        return 0.5 + density * sum;
    }
    let fraction = (1..100).rev().fold(0.0, |below, k| f64::from(k) / (x.abs() + below));
    let tail = density / (x.abs() + fraction);
    if x > 0.0 { 1.0 - tail } else { tail }
}

#[test]
fn what_is_not_a_number_is_not_hidden() {
    for isa in Isa::all_here() {
        for (gate, up) in [(f32::NAN, 1.0), (1.0, f32::NAN), (f32::INFINITY, 1.0)] {
            for activation in ALL {
                // What is infinite is above a limit.
                let clamped = matches!(activation, Activation::Clamped { .. });
                if clamped && gate.is_infinite() {
                    continue;
                }
                let mut y = 0.0;
                let of = Gate { activation, gate: &gate, up: &up, y: &mut y, len: 1 };
                // SAFETY: this CPU has the instructions, and all are one element.
                unsafe { run(isa, &of) };
                assert!(!y.is_finite(), "{isa:?}: {gate} {up} gave {y}");
            }
        }
    }
}

#[test]
fn scaled_and_capped_numbers_match_f64() {
    let numbers: Vec<f32> = (-3000..3000).map(|i| i as f32 * 0.03).chain([0.0, 1e30]).collect();
    for isa in Isa::all_here() {
        for (factor, cap) in [(1.0, 0.0), (0.125, 0.0), (1.0, 30.0), (4.0, 30.0)] {
            for len in [numbers.len(), 1, 17] {
                let from = &numbers[numbers.len() - len..];
                let mut x = from.to_vec();
                // SAFETY: this CPU has the instructions, and there are as many.
                unsafe { scale(isa, &Scale { x: x.as_mut_ptr(), len, factor, cap }) };
                for (&from, &x) in from.iter().zip(&x) {
                    let scaled = f64::from(from) * f64::from(factor);
                    let limit = f64::from(cap);
                    let expected =
                        if cap == 0.0 { scaled } else { limit * (scaled / limit).tanh() };
                    let error = (f64::from(x) - expected).abs();
                    assert!(error <= 3e-7 * expected.abs().max(limit), "{isa:?} {from}: {x}");
                }
            }
        }
    }
}

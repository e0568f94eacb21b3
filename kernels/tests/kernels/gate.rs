//! The gate of an MLP.

use kernels::{Isa, SiluGate, silu_gate};

#[test]
fn gates_of_any_size_match_f64() {
    let mut gate: Vec<f32> = (-2000..2000).map(|i| i as f32 * 0.01).collect();
    gate.extend([-1e30, -200.0, -88.5, 88.5, 200.0, 1e30, -0.0, 0.0]);
    for isa in Isa::all_here() {
        for len in [gate.len(), 1, 5, 16, 17] {
            let from = gate.len() - len;
            let (gate, up) = (&gate[from..], vec![-1.5; len]);
            let mut y = vec![f32::NAN; len];
            let of = SiluGate { gate: gate.as_ptr(), up: up.as_ptr(), y: y.as_mut_ptr(), len };
            // SAFETY: this CPU has the instructions, and all are as long.
            unsafe { silu_gate(isa, &of) };
            for (&gate, &y) in gate.iter().zip(&y) {
                let x = f64::from(gate);
                let expected = x / (1.0 + (-x).exp()) * -1.5;
                let error = (f64::from(y) - expected).abs();
                assert!(error <= 3e-7 * expected.abs() + 1e-35, "{isa:?} {gate}: {y} {expected}");
            }
        }
    }
}

#[test]
fn what_is_not_a_number_is_not_hidden() {
    for isa in Isa::all_here() {
        for (gate, up) in [(f32::NAN, 1.0), (1.0, f32::NAN), (f32::INFINITY, 1.0)] {
            let mut y = 0.0;
            let of = SiluGate { gate: &gate, up: &up, y: &mut y, len: 1 };
            // SAFETY: this CPU has the instructions, and all are one element.
            unsafe { silu_gate(isa, &of) };
            assert!(!y.is_finite(), "{isa:?}: {gate} {up} gave {y}");
        }
    }
}

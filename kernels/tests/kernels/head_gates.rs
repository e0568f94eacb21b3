//! Gates of attention's heads.

use kernels::{Isa, gate_by_sigmoid, split_gates};

#[test]
fn gates_move_behind_all_else() {
    for (heads, head_dim, rest) in [(1, 4, 0), (3, 2, 5), (2, 16, 40), (5, 1, 1)] {
        // Queries, then gates above 1000, then the rest above 2000.
        let queries = (0..heads * head_dim).map(|i| i as f32).collect::<Vec<f32>>();
        let gates = queries.iter().map(|it| it + 1000.0).collect::<Vec<f32>>();
        let rest = (0..rest).map(|i| i as f32 + 2000.0).collect::<Vec<f32>>();
        let heads_of = queries.chunks(head_dim).zip(gates.chunks(head_dim));
        let mut row: Vec<f32> = heads_of.flat_map(|(query, gate)| [query, gate].concat()).collect();
        row.extend(&rest);
        // SAFETY: the row is as long as they are together.
        unsafe { split_gates(row.as_mut_ptr(), heads, head_dim, rest.len()) };
        assert_eq!(row, [queries, rest, gates].concat(), "{heads} heads of {head_dim}");
    }
}

#[test]
fn sigmoids_of_any_size_match_f64() {
    let gates: Vec<f32> = (-2000..2000).map(|i| i as f32 * 0.02).chain([-1e30, 1e30]).collect();
    for isa in Isa::all_here() {
        for len in [gates.len(), 1, 15, 16, 17] {
            let gates = &gates[gates.len() - len..];
            let from: Vec<f32> = (0..len).map(|i| [1.5, -8.0, 0.25][i % 3]).collect();
            let mut x = from.clone();
            // SAFETY: this CPU has the instructions, and both are as long.
            unsafe { gate_by_sigmoid(isa, x.as_mut_ptr(), gates.as_ptr(), len) };
            for ((&from, &gate), &x) in from.iter().zip(gates).zip(&x) {
                let expected = f64::from(from) / (1.0 + (-f64::from(gate)).exp());
                let error = (f64::from(x) - expected).abs();
                assert!(error <= 3e-7 * expected.abs() + 1e-35, "{isa:?} {gate}: {x} {expected}");
            }
        }
        let mut x = [1.0];
        // SAFETY: likewise, of one element.
        unsafe { gate_by_sigmoid(isa, x.as_mut_ptr(), &f32::NAN, 1) };
        assert!(x[0].is_nan(), "{isa:?}: what is no number is hidden");
    }
}

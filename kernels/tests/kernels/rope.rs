//! Rotated rows and the cache they go to.

use kernels::{Isa, KV_BLOCK, KvFormat, RotateAppend, rotate_append};

/// Against the definition, in f64; the other slots of the page stay as they were.
#[test]
fn a_row_is_rotated_and_goes_to_its_slot() {
    const OTHER: f32 = 7.0;
    for (heads, kv_heads, width, slot, turned, interleaved) in [
        (4, 2, 16, 0, 16, false),
        (3, 1, 6, 63, 6, false),
        (2, 2, 50, 17, 50, false),
        (4, 2, 16, 5, 8, false),
        (3, 1, 20, 3, 14, true),
        (2, 1, 12, 9, 12, true),
        (2, 1, 12, 9, 0, false),
    ] {
        let len = (heads + 2 * kv_heads) * width;
        let row: Vec<f32> = (0..len).map(|i| (i as f32 * 0.37).sin()).collect();
        let angles: Vec<f64> = (0..turned / 2).map(|i| 3.0 / (1.0 + i as f64)).collect();
        // Of queries they are multiplied with a number.
        let [cos, sin] = [f64::cos, f64::sin].map(|f| {
            let times = |by: f64| angles.iter().map(|&a| (by * f(a)) as f32).collect::<Vec<f32>>();
            [times(1.5), times(1.0)]
        });
        for isa in Isa::all_here() {
            let mut rotated = row.clone();
            let mut keys = vec![OTHER; kv_heads * width * KV_BLOCK];
            let mut values = keys.clone();
            let of = RotateAppend {
                row: rotated.as_mut_ptr(),
                cos: cos.each_ref().map(|it| it.as_ptr()),
                sin: sin.each_ref().map(|it| it.as_ptr()),
                rotated: turned,
                interleaved,
                heads,
                kv_heads,
                width,
                keys: keys.as_mut_ptr().cast(),
                values: values.as_mut_ptr().cast(),
                slot,
                format: KvFormat::F32,
            };
            // SAFETY: this CPU has the instructions, and all are as long as stated.
            unsafe { rotate_append(isa, &of) };
            let half = turned / 2;
            for head in 0..heads + kv_heads {
                for (i, angle) in angles.iter().enumerate() {
                    let pair = if interleaved { [2 * i, 2 * i + 1] } else { [i, half + i] };
                    let [a, b] = pair.map(|i| f64::from(row[head * width + i]));
                    let by = if head < heads { 1.5 } else { 1.0 };
                    let (sin, cos) = angle.sin_cos();
                    let (sin, cos) = (by * sin, by * cos);
                    let expected = [a * cos - b * sin, b * cos + a * sin];
                    let found = pair.map(|i| f64::from(rotated[head * width + i]));
                    for (found, expected) in found.into_iter().zip(expected) {
                        assert!((found - expected).abs() < 1e-6, "{isa:?}: {found} {expected}");
                    }
                }
                let rest = head * width + turned..(head + 1) * width;
                assert_eq!(rotated[rest.clone()], row[rest], "{isa:?}: the rest of a head");
            }
            for (page, transposed) in [(&keys, true), (&values, false)] {
                let first = if transposed { heads } else { heads + kv_heads } * width;
                for (at, &stored) in page.iter().enumerate() {
                    let (head, at) = (at / (width * KV_BLOCK), at % (width * KV_BLOCK));
                    let (i, in_slot) = match transposed {
                        true => (at / KV_BLOCK, at % KV_BLOCK),
                        false => (at % width, at / width),
                    };
                    let expected = match in_slot == slot {
                        true => rotated[first + head * width + i],
                        false => OTHER,
                    };
                    assert_eq!(stored, expected, "{isa:?} head {head} slot {in_slot}");
                }
            }
        }
    }
}

//! Formats of the KV cache.

use kernels::KvFormat;

#[test]
fn an_unknown_format_lists_the_known() {
    for (name, format) in KvFormat::ALL {
        assert_eq!(name.parse(), Ok(format));
    }
    let error = "q8_0".parse::<KvFormat>().unwrap_err().to_string();
    assert_eq!(error, "unknown KV cache format `q8_0`; known: f32, f16");
}

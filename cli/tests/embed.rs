//! Vectors of texts.
#![cfg(feature = "iree")]

mod support;

use std::fs;

use support::{model, succeeds};

/// The lines that `arguments` print.
fn embedded(arguments: &[&str]) -> Vec<serde_json::Value> {
    let output = succeeds(arguments);
    output.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn vector(line: &serde_json::Value) -> Vec<f64> {
    line["embedding"].as_array().unwrap().iter().map(|it| it.as_f64().unwrap()).collect()
}

#[test]
fn a_text_has_its_vector_in_any_company_and_form() {
    let model = model();
    let folder = model.path().to_str().unwrap();
    let together = embedded(&["embed", "-q", "-m", folder, "abc", "a longer text", "abc"]);
    let alone = embedded(&["embed", "-q", "-m", folder, "a longer text"]);
    assert_eq!(together.len(), 3);
    assert_eq!(together[1]["embedding"], alone[0]["embedding"]);
    assert_eq!(together[0]["embedding"], together[2]["embedding"]);
    assert_ne!(together[0]["embedding"], together[1]["embedding"]);
    assert_eq!(together[1]["index"], 1);
    for line in &together {
        let length: f64 = vector(line).iter().map(|x| x * x).sum();
        assert!((length - 1.0).abs() < 1e-5, "{length}");
    }

    // The folder says how, and flags say it differently.
    fs::create_dir(model.path().join("1_Pooling")).unwrap();
    let pooling = model.path().join("1_Pooling/config.json");
    fs::write(&pooling, r#"{"pooling_mode_mean_tokens": true}"#).unwrap();
    fs::write(model.path().join("modules.json"), "[]").unwrap();
    let mean = embedded(&["embed", "-q", "-m", folder, "a longer text"]);
    let length: f64 = vector(&mean[0]).iter().map(|x| x * x).sum();
    assert!((length - 1.0).abs() > 1e-3, "not normalized: {length}");
    let last = embedded(&["embed", "-q", "-m", folder, "--pooling", "last", "a longer text"]);
    let (last, alone) = (vector(&last[0]), vector(&alone[0]));
    let length = last.iter().map(|x| x * x).sum::<f64>().sqrt();
    for (last, alone) in last.iter().zip(&alone) {
        assert!((last / length - alone).abs() < 1e-6, "{last} {alone}");
    }

    let file = model.path().join("texts.txt");
    fs::write(&file, "abc\na longer text\n").unwrap();
    let npy = model.path().join("vectors.npy");
    let [file, to] = [&file, &npy].map(|path| path.to_str().unwrap());
    succeeds(&["embed", "-q", "-m", folder, "--file", file, "-o", to]);
    let bytes = fs::read(&npy).unwrap();
    let header = String::from_utf8_lossy(&bytes[10..128]).into_owned();
    assert!(bytes.starts_with(b"\x93NUMPY\x01\x00"));
    let width = mean[0]["embedding"].as_array().unwrap().len();
    assert!(header.contains(&format!("'shape': (2, {width})")), "{header}");
    let data = &bytes[bytes.len() - width * 4..];
    let last_row: Vec<f32> =
        data.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
    let expected: Vec<f32> = vector(&mean[0]).iter().map(|&x| x as f32).collect();
    assert_eq!(last_row, expected);
}

//! Instructions of products, which an emulator counts exactly: their time it cannot say.

use std::io::{BufRead, BufReader};
use std::path::Path;

use anyhow::{Context, Result, ensure};

use super::emulator::Emulator;

/// The program that is counted: an example of the crate `kernels`.
pub const EXAMPLE: &str = "calls";

const ISAS: [&str; 4] = ["portable", "neon", "neon-dot", "neon-bf16"];

const FORMATS: [&str; 14] = [
    "f32",
    "f32-compressed",
    "bf16",
    "bf16-compressed",
    "bf16_rounded",
    "bf16_rounded-compressed",
    "f16",
    "int8",
    "int8_rounded",
    "int6",
    "int4",
    "q4_k",
    "q5_k",
    "q6_k",
];

/// Prints a table: instructions for a weight and a row of activations, for one row and for six.
pub fn table(emulator: &Emulator, program: &Path) -> Result<()> {
    let output = emulator.run(program).output()?;
    let shape = String::from_utf8(output.stdout)?;
    let shape: Vec<f64> = shape.split_whitespace().filter_map(|it| it.parse().ok()).collect();
    ensure!(shape.len() == 2, "{} does not say its shape", program.display());
    println!("instructions per weight and row, of a matrix of {} x {}:\n", shape[0], shape[1]);
    println!("| weights | rows | {} |", ISAS.join(" | "));
    println!("|---|---|{}", "---|".repeat(ISAS.len()));
    for format in FORMATS {
        for rows in ["1", "6"] {
            let mut line = format!("| {format} | {rows} |");
            for isa in ISAS {
                let calls = |calls| instructions(emulator, program, &[isa, format, rows, calls]);
                let products = shape[0] * shape[1] * rows.parse::<f64>()?;
                let each = (calls("2")? - calls("1")?) as f64 / products;
                line += &format!(" {each:.2} |");
            }
            println!("{line}");
        }
    }
    Ok(())
}

/// How many instructions `program` takes.
fn instructions(emulator: &Emulator, program: &Path, arguments: &[&str]) -> Result<u64> {
    let folder = tempfile::tempdir()?;
    let log = folder.path().join("log");
    let mut command = emulator.logging(program, &log)?;
    let output = command.args(arguments).output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{} {arguments:?} failed: {said}", program.display());
    let log = std::fs::File::open(&log).context("qemu wrote no log")?;
    let mut log = BufReader::with_capacity(1 << 20, log);
    let (mut count, mut line) = (0, Vec::new());
    while log.read_until(b'\n', &mut line)? > 0 {
        count += u64::from(line.starts_with(b"Trace"));
        line.clear();
    }
    ensure!(count > 0, "qemu counted no instructions");
    Ok(count)
}

//! Times a compiled model: the half of `run.py` that is IREE's.
//!
//! ```text
//! python3 iree-rt/benches/onnx/run.py
//! ```
//!
//! A line of input (`model folder`, `preset`, `threads`, with 0 threads for `local-sync`) opens a
//! session, whose number is the answer; a number times it for a while, and the answer is its median
//! in microseconds.

use std::collections::HashMap;
use std::io::{BufRead, IsTerminal, Write, stdin, stdout};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use iree_rt::{
    Call, CompileOptions, Compiler, DeviceOptions, Instance, Literal, Module, Result, Session,
};

/// How long a model runs until another has its turn.
const TURN: Duration = Duration::from_millis(400);

fn main() -> Result<()> {
    if stdin().is_terminal() {
        println!("run by iree-rt/benches/onnx/run.py");
        return Ok(());
    }
    let mut compiled = Compiled::new();
    let mut opened: Vec<(Session, Call)> = Vec::new();
    for line in stdin().lock().lines() {
        let line = line?;
        let answer = match line.split('\t').collect::<Vec<_>>()[..] {
            [folder, preset, threads] => {
                opened.push(open(
                    &mut compiled,
                    Path::new(folder),
                    preset,
                    threads.parse().unwrap_or(0),
                )?);
                (opened.len() - 1).to_string()
            }
            [number] => {
                match number.parse().ok().and_then(|number: usize| opened.get_mut(number)) {
                    Some((session, call)) => format!("{:.2}", median(session, call)?),
                    None => break,
                }
            }
            _ => break,
        };
        println!("{answer}");
        stdout().flush()?;
    }
    Ok(())
}

/// Compiled modules, by folder and preset.
type Compiled = HashMap<(PathBuf, String), Vec<u8>>;

/// Compiles `model.mlir` in `folder` and sets `input0.npy`, `input1.npy` and so on.
fn open(
    compiled: &mut Compiled,
    folder: &Path,
    preset: &str,
    threads: usize,
) -> Result<(Session, Call)> {
    let options = CompileOptions::default();
    let options = match preset {
        "fast" => options.fast(),
        "untiled" => options.fast().data_tiling(false),
        _ => options,
    };
    let key = (folder.to_path_buf(), preset.to_owned());
    if !compiled.contains_key(&key) {
        let vmfb = Compiler::find()?.compile(&folder.join("model.mlir"), &options)?;
        compiled.insert(key.clone(), vmfb);
    }
    let instance = Instance::get()?;
    let device = match threads {
        0 => instance.device("local-sync")?,
        threads => {
            instance.device_with("local-task", &DeviceOptions::default().threads(threads))?
        }
    };
    // SAFETY: compiled by this program, for the CPU of this machine; every shape is fixed.
    let module = unsafe { Module::from_bytes(&compiled[&key])? };
    let name = format!("{}.main", module.name());
    let session = Session::builder(&device).module(module).build()?;
    let mut call = session.prepare(&session.function(&name)?)?;
    for index in 0.. {
        let file = folder.join(format!("input{index}.npy"));
        if !file.exists() {
            break;
        }
        call.set(index, Literal::load_npy(file)?.to_device(&device)?)?;
    }
    Ok((session, call))
}

/// Of the calls of a turn, in microseconds; each with all its results read, as ONNX Runtime's are.
fn median(session: &mut Session, call: &mut Call) -> Result<f64> {
    let (begin, mut times) = (Instant::now(), Vec::new());
    while begin.elapsed() < TURN || times.len() < 3 {
        let start = Instant::now();
        call.invoke(session)?;
        for index in 0..call.outputs().len() {
            std::hint::black_box(Literal::read(&call.outputs().view(index)?)?);
        }
        times.push(start.elapsed());
    }
    times.sort();
    Ok(times[times.len() / 2].as_secs_f64() * 1e6)
}

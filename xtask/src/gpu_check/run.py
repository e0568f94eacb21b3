#!/usr/bin/env python3
"""Checks and measures iree-llm on the GPU of this machine; `cargo xtask gpu-check` made this folder.

    python3 run.py OUT                       everything, part by part, then the table
    python3 run.py OUT --part exact,copy     some parts; OUT keeps what earlier calls left
    python3 run.py OUT --part table          only the table, of what is in OUT

Needs Python 3 and an NVIDIA driver; no compiler, no network, no package. Each part is a program of
its own with its own limit of time (under eight minutes) and leaves OUT/<part>.json and
OUT/<part>.log; the table is OUT/table.md and OUT/results.json. A part that fails or is not possible
here says so in the table and stops nothing. Peers are measured where they are installed: torch with
transformers, and llama-cpp-python built for CUDA.

`--device local-task` runs the same on the CPU, with a tiny shape: it checks this script.
"""

import argparse
import ctypes
import datetime
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
LIMIT = 470  # seconds that a part may take
SHAPES = {"1b": "Llama-3.2-1B", "8b": "Llama-3.1-8B"}
PRECISIONS = ["stored", "int8", "int4"]
PROMPT, GENERATE, DEPTH = 2048, 128, 2048
TOGETHER = [1, 8, 32]
TOGETHER_PROMPT = 256


def parts(shapes):
    names = ["device", "tests", "exact", "copy"]
    names += [f"{kind}-{shape}-{precision}" for kind in ("speed", "parallel")
              for shape in shapes for precision in PRECISIONS]
    names += [f"{peer}-{shape}" for shape in shapes for peer in ("eager", "compiled")]
    return names + ["llama-1b", "table"]


def run(command, log, limit, environment=None):
    """The output of a command; its messages go to `log`. Raises what the table then says."""
    log.write("$ " + " ".join(command) + "\n")
    log.flush()
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              stdin=subprocess.DEVNULL, timeout=limit, text=True,
                              errors="replace", env={**os.environ, **(environment or {})})
    except subprocess.TimeoutExpired as error:
        for output in (error.stdout, error.stderr):
            if output:
                log.write(output if isinstance(output, str) else output.decode(errors="replace"))
        raise RuntimeError(f"took longer than {limit:.0f} s")
    except OSError as error:
        raise RuntimeError(f"{command[0]} does not start: {error}")
    log.write(done.stdout + done.stderr)
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        error = RuntimeError(lines[-1] if lines else f"exit code {done.returncode}")
        error.stdout = done.stdout
        raise error
    return done.stdout


class Check:
    def __init__(self, options):
        self.options = options
        self.out = options.out
        self.on_cuda = options.device.startswith("cuda")
        self.program = os.path.join(HERE, "iree-llm")
        self.deadline = None
        self.environment = driver_environment(self.out) if self.on_cuda else {}
        # The first use of a folder may write to it (locks), and the bundle may be read-only.
        self.graphs = os.path.join(self.out, "graphs")
        if not os.path.isdir(self.graphs) and os.path.isdir(os.path.join(HERE, "graphs")):
            shutil.copytree(os.path.join(HERE, "graphs"), self.graphs)

    def llm(self, log, *arguments):
        engine = ["--device", self.options.device, "--cache-dir", self.graphs]
        engine += ["--no-weights-cache"]
        left = self.deadline - time.monotonic()
        return run([self.program, *arguments, *engine], log, left, self.environment)

    def part_device(self, log):
        result = {
            "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
            "system": f"{platform.system()} {platform.release()} {platform.machine()}",
            "cores": os.cpu_count(),
        }
        for key, command in {
            "program": [self.program, "--version"],
            "devices": [self.program, "devices"],
            "gpu": ["nvidia-smi", "--query-gpu=name,driver_version,memory.total,memory.free,"
                    "compute_cap,clocks.max.sm,clocks.max.mem", "--format=csv,noheader"],
        }.items():
            try:
                result[key] = run(command, log, 60, self.environment).strip()
            except RuntimeError as error:
                result[key] = f"not known: {error}"
        return result

    def part_tests(self, log):
        """The tests of iree-rt that need a GPU, as programs."""
        folder = os.path.join(HERE, "tests")
        names = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
        if not names:
            raise RuntimeError("the bundle holds no test programs")
        results = {}
        for name in names:
            command = [os.path.join(folder, name), "--ignored", "--test-threads", "1"]
            if not self.on_cuda:
                command.append("--list")
            try:
                left = self.deadline - time.monotonic()
                output = run(command, log, left, self.environment)
                results[name] = [line for line in output.splitlines() if line.strip()][-1]
            except RuntimeError as error:
                output = getattr(error, "stdout", "") or ""
                failed = [line for line in output.splitlines() if line.endswith("FAILED")]
                results[name] = "; ".join(failed) or f"failed: {error}"
        return {"results": results, "exact": not any("ail" in it for it in results.values())}

    def part_exact(self, log):
        """Every fixture in f32: the tokens of Hugging Face transformers, of one sequence and of several
        together."""
        folder = os.path.join(HERE, "fixtures")
        fixtures = [os.path.join(folder, name) for name in sorted(os.listdir(folder))]
        try:
            output = self.llm(log, "check", "--json", "--precision", "f32", "--parallel",
                              ",".join(map(str, TOGETHER)), *fixtures)
        except RuntimeError as error:
            output = getattr(error, "stdout", "")
            if not output:
                raise
        checked = json.loads(output)
        cases = [(model, case) for model in checked for case in model["cases"]]
        wrong = [f"{model['model']} after {case['prompt']}, {case['parallel']} together: "
                 f"{case['same']} of {case['of']}"
                 for model, case in cases if case["same"] != case["of"]]
        return {"models": len(checked), "cases": len(cases) // len(TOGETHER), "exact": not wrong, "wrong": wrong}

    def part_copy(self, log):
        """Bytes a second of copies within the GPU's memory, read and written counted."""
        if not self.on_cuda:
            source = bytearray(os.urandom(1 << 16)) * 1024
            return {"bytes_per_second": copy_rate(lambda: bytes(source), len(source), lambda: None)}
        return {"bytes_per_second": cuda_copy()}

    def speed(self, log, shape, precision):
        tiny = not self.on_cuda
        folder = os.path.join(HERE, "models", "tiny" if tiny else SHAPES[shape])
        prompt, generate, depth = (64, 8, 64) if tiny else (PROMPT, GENERATE, DEPTH)
        context = ["--context", "512" if tiny else str(2 * (PROMPT + GENERATE + DEPTH))]
        output = self.llm(
            log, "bench", "--json", "-m", folder, "--load-mode", "random", *context,
            "--precision", precision, "-p", f"256,{prompt}" if not tiny else str(prompt),
            "-n", str(generate), "-r", "3" if tiny else "5")
        [result] = json.loads(output)
        try:
            output = self.llm(
                log, "bench", "--json", "-m", folder, "--load-mode", "random", *context,
                "--precision", precision, "-p", "0", "-n", str(generate), "-d", str(depth),
                "-r", "3")
            result["tests"] += json.loads(output)[0]["tests"]
        except RuntimeError as error:
            result["at_depth"] = str(error)
        config = json.load(open(os.path.join(folder, "config.json")))
        result["bytes_per_token"] = bytes_per_token(config, precision)
        return result

    def parallel(self, log, shape, precision):
        """Tokens a second in total, of sequences that decode together."""
        tiny = not self.on_cuda
        folder = os.path.join(HERE, "models", "tiny" if tiny else SHAPES[shape])
        prompt, generate = (16, 8) if tiny else (TOGETHER_PROMPT, GENERATE)
        output = self.llm(
            log, "bench", "--json", "-m", folder, "--load-mode", "random",
            "--precision", precision, "--parallel", ",".join(map(str, TOGETHER)),
            "-p", str(prompt), "-n", str(generate), "-r", "3")
        [result] = json.loads(output)
        return result

    def peer(self, log, kind, shape):
        folder = os.path.join(HERE, "models", SHAPES[shape] if self.on_cuda else "tiny")
        device = "cuda" if self.on_cuda else "cpu"
        sizes = ["256", str(PROMPT), str(GENERATE)] if self.on_cuda else ["16", "64", "8"]
        command = [sys.executable, os.path.join(HERE, "peers", "hf.py"), folder, kind, device]
        return json.loads(run(command + sizes, log, self.deadline - time.monotonic()))

    def part_llama(self, log):
        if not self.on_cuda:
            raise RuntimeError("llama.cpp's model is of one size, for GPUs")
        left = lambda: self.deadline - time.monotonic()
        probe = "import llama_cpp, gguf; assert llama_cpp.llama_supports_gpu_offload(), 'no CUDA'"
        run([sys.executable, "-c", probe], log, left())
        peers, folder = os.path.join(HERE, "peers"), os.path.join(self.out, "llama")
        run([sys.executable, os.path.join(peers, "model.py"), folder, "bf16"], log, left())
        output = run(
            [sys.executable, os.path.join(peers, "llama.py"), os.path.join(folder, "bf16.gguf"),
             "--gpu-layers", "999", "--threads", "4", "--flash-attn", "on", "-r", "3",
             "-p", f"256,{PROMPT}", "-n", str(GENERATE), "--pg", f"{DEPTH},{GENERATE}"], log, left())
        result = json.loads(output)
        return result[0] if isinstance(result, list) else result

    def do(self, part):
        if part == "table":
            return self.table()
        path = os.path.join(self.out, part + ".json")
        start = time.monotonic()
        self.deadline = start + self.options.limit
        kind, _, rest = part.partition("-")
        print(f"==> {part}", flush=True)
        with open(os.path.join(self.out, part + ".log"), "w") as log:
            try:
                if kind in ("speed", "parallel"):
                    result = getattr(self, kind)(log, *rest.split("-"))
                elif kind in ("eager", "compiled"):
                    result = self.peer(log, kind, rest)
                else:
                    result = getattr(self, f"part_{kind}")(log)
            except Exception as error:  # one part's failure is a line of the table
                result = {"failed": str(error) or type(error).__name__}
                log.write(f"failed: {error!r}\n")
        result["took_s"] = round(time.monotonic() - start, 1)
        with open(path, "w") as file:
            json.dump(result, file, indent=1)
        print("    " + (f"failed: {result['failed']}" if "failed" in result else
                        f"done in {result['took_s']} s"), flush=True)

    def table(self):
        results = {}
        for part in parts(self.options.shapes):
            try:
                with open(os.path.join(self.out, part + ".json")) as file:
                    results[part] = json.load(file)
            except FileNotFoundError:
                pass
        with open(os.path.join(self.out, "results.json"), "w") as file:
            json.dump(results, file, indent=1)
        text = markdown(results, self.options)
        with open(os.path.join(self.out, "table.md"), "w") as file:
            file.write(text)
        print(text)


def driver_environment(out):
    """IREE looks for libcuda.so, which only development packages bring: a link to libcuda.so.1."""
    try:
        ctypes.CDLL("libcuda.so")
        return {}
    except OSError:
        pass
    try:
        ctypes.CDLL("libcuda.so.1")
        with open("/proc/self/maps") as maps:
            paths = [line.split()[-1] for line in maps if "/libcuda.so" in line]
        folder = os.path.join(out, "lib")
        os.makedirs(folder, exist_ok=True)
        link = os.path.join(folder, "libcuda.so")
        if not os.path.lexists(link):
            os.symlink(paths[0], link)
    except (OSError, IndexError):
        return {}
    others = os.environ.get("LD_LIBRARY_PATH")
    return {"LD_LIBRARY_PATH": folder + (":" + others if others else "")}


def bytes_per_token(config, precision):
    """Bytes of weights that a decoded token reads: every matrix once, of the embedding one row."""
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    width = config.get("head_dim") or hidden // heads
    kv = config.get("num_key_value_heads", heads) * width
    layer = hidden * (heads * width) * 2 + hidden * kv * 2 + 3 * hidden * config["intermediate_size"]
    head = hidden * config["vocab_size"]
    each = {"stored": 2, "f32": 4, "int8": 1 + 2 / 32, "int4": 0.5 + 2 / 32}[precision]
    of_head = {"int4": 1 + 2 / 32}.get(precision, each)
    return config["num_hidden_layers"] * layer * each + head * of_head


def copy_rate(copy, size, wait, rounds=10):
    rates = []
    for _ in range(rounds):
        start = time.perf_counter()
        copy()
        wait()
        rates.append(2 * size / (time.perf_counter() - start))
    return statistics.median(rates)


def cuda_copy(size=1 << 30, repeat=20):
    """With the driver's own API: nothing else need be installed."""
    cuda = ctypes.CDLL("libcuda.so.1")

    def call(name, *arguments):
        status = getattr(cuda, name)(*arguments)
        if status != 0:
            raise RuntimeError(f"{name} returned {status}")

    device, context = ctypes.c_int(), ctypes.c_void_p()
    call("cuInit", 0)
    call("cuDeviceGet", ctypes.byref(device), 0)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    call("cuCtxSetCurrent", context)
    source, target = ctypes.c_uint64(), ctypes.c_uint64()
    call("cuMemAlloc_v2", ctypes.byref(source), ctypes.c_size_t(size))
    call("cuMemAlloc_v2", ctypes.byref(target), ctypes.c_size_t(size))
    call("cuMemsetD8_v2", source, ctypes.c_ubyte(1), ctypes.c_size_t(size))

    def copy():
        for _ in range(repeat):
            call("cuMemcpyDtoDAsync_v2", target, source, ctypes.c_size_t(size), None)

    copy()
    call("cuCtxSynchronize")
    rate = copy_rate(copy, size * repeat, lambda: call("cuCtxSynchronize"))
    call("cuMemFree_v2", source)
    call("cuMemFree_v2", target)
    call("cuDevicePrimaryCtxRelease_v2", device)
    return rate


def rate(result, name, depth=0):
    """Tokens a second of a test, in the JSON of `iree-llm bench`."""
    for test in (result or {}).get("tests", []):
        if test["test"] == name and test["depth"] == depth:
            return test["tokens_per_second"]["median"]
    return None


def together(result, sequences):
    """Tokens a second of so many sequences, in the JSON of `iree-llm bench --parallel`."""
    for it in (result or {}).get("parallel", []):
        if it["sequences"] == sequences:
            return it["tokens_per_second_decode"]["median"]
    return None


def number(value, digits=1):
    return "–" if value is None else f"{value:,.{digits}f}"


def ratio(a, b):
    return "–" if not a or not b else f"{a / b:.2f}x"


def markdown(results, options):
    on_cuda = options.device.startswith("cuda")
    device, lines = results.get("device", {}), []
    copy = results.get("copy", {}).get("bytes_per_second")
    lines.append(f"iree-llm on `{options.device}`: {device.get('gpu', 'no GPU')}; "
                 f"{device.get('system', '')}, {device.get('cores', '?')} cores; "
                 f"{device.get('date', '')}.")
    if not on_cuda:
        lines.append("\nThis ran on the CPU with a tiny shape: a check of the script, no figures.")
    if copy:
        lines.append(f"\nMeasured copy bandwidth: {copy / 1e9:,.0f} GB/s (read and written).")
    exact = results.get("exact", {})
    if "models" in exact:
        verdict = "every token is the reference's" if exact["exact"] else "; ".join(exact["wrong"])
        lines.append(f"\nExactness, f32, {', '.join(map(str, TOGETHER))} sequences together: "
                     f"{exact['models']} models, {exact['cases']} prompts: {verdict}.")
    for name, verdict in results.get("tests", {}).get("results", {}).items():
        lines.append(f"\nTests `{name}`: {verdict}.")
    prompt, generate, depth = (PROMPT, GENERATE, DEPTH) if on_cuda else (64, 8, 64)
    for shape in options.shapes:
        lines.append(f"\n### {SHAPES[shape]}'s shape, random weights, batch 1, tokens a second\n")
        lines.append(f"| | tg{generate} | of copy bandwidth | tg{generate} @ d{depth} | pp256 | "
                     f"pp{prompt} | tg to eager | tg to compiled | pp to eager |")
        lines.append("|---|---|---|---|---|---|---|---|---|")
        peers = {kind: results.get(f"{kind}-{shape}") for kind in ("eager", "compiled")}
        if shape == "1b":
            peers["llama.cpp"] = results.get("llama-1b")
        rows = [(f"iree-llm {precision}", results.get(f"speed-{shape}-{precision}"))
                for precision in PRECISIONS]
        rows += [(f"transformers {kind}, bf16" if kind != "llama.cpp" else "llama.cpp, bf16", result)
                 for kind, result in peers.items()]
        test, pp = f"tg{generate}", f"pp{prompt}"
        for name, result in rows:
            decode = rate(result, test)
            share = None
            if decode and copy and (result or {}).get("bytes_per_token"):
                share = 100 * decode * result["bytes_per_token"] / copy
            lines.append(
                f"| {name} | {number(decode)} | {'–' if share is None else f'{share:.0f}%'} | "
                f"{number(rate(result, test, depth))} | {number(rate(result, 'pp256'))} | "
                f"{number(rate(result, pp))} | {ratio(decode, rate(peers['eager'], test))} | "
                f"{ratio(decode, rate(peers['compiled'], test))} | "
                f"{ratio(rate(result, pp), rate(peers['eager'], pp))} |")
        lines.append("")
        for precision in PRECISIONS:
            result = results.get(f"speed-{shape}-{precision}", {})
            if "start" in result:
                start, memory = result["start"], result["memory"]
                peak = (memory.get("peak") or 0) / 1e9
                lines.append(f"{precision}: ready after {start['ready_s']:.1f} s (weights "
                             f"{start['load_s']:.1f} s), peak host memory {peak:.2f} GB, "
                             f"{start['compiled_graphs']} graphs compiled here.")
    for shape in options.shapes:
        lines.append(f"\n### {SHAPES[shape]}'s shape, sequences together, tokens a second in total\n")
        lines.append("| | " + " | ".join(str(n) for n in TOGETHER) + " |")
        lines.append("|---|" + "---|" * len(TOGETHER))
        for precision in PRECISIONS:
            result = results.get(f"parallel-{shape}-{precision}")
            cells = [number(together(result, n)) for n in TOGETHER]
            lines.append(f"| {precision} | " + " | ".join(cells) + " |")
    missing = [f"- {part}: {result['failed']}" for part, result in results.items()
               if "failed" in result]
    if missing:
        lines += ["\nNot measured:\n", *missing]
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", help="folder for results")
    parser.add_argument("--part", help="comma-separated: " + ", ".join(parts(SHAPES)))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--shapes", default="1b,8b")
    parser.add_argument("--limit", type=float, default=LIMIT, help="seconds for each part")
    options = parser.parse_args()
    options.shapes = [shape for shape in options.shapes.split(",") if shape]
    if not options.device.startswith("cuda"):
        options.shapes = ["1b"]
    known = parts(options.shapes)
    wanted = options.part.split(",") if options.part else known
    unknown = [part for part in wanted if part not in known]
    if unknown:
        parser.error(f"unknown part {unknown[0]}; known: {', '.join(known)}")
    options.out = os.path.abspath(options.out)
    os.makedirs(options.out, exist_ok=True)
    check = Check(options)
    for part in wanted:
        check.do(part)
    # A GPU that computes wrongly is a failure; a peer that is missing is not.
    for part in set(wanted) & {"exact", "tests"}:
        with open(os.path.join(options.out, part + ".json")) as file:
            if not json.load(file).get("exact"):
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

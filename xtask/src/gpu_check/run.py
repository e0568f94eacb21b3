#!/usr/bin/env python3
"""Checks and measures iree-llm on the GPUs of this machine; `cargo xtask gpu-check` made this folder.

    python3 run.py OUT                       everything, on every GPU: CUDA's first, then Vulkan's
    python3 run.py OUT --device vulkan       on one device
    python3 run.py OUT --part exact,copy     some parts; OUT keeps what earlier calls left
    python3 run.py OUT --part table          only the tables, of what is in OUT

Needs Python 3, and NVIDIA's driver or libvulkan with a driver; no network and no package. Each part
is a program of its own with its own limit of time (under eight minutes) and leaves <part>.json and
<part>.log in OUT/<device>; there are table.md and results.json, too. A part that fails or is not
possible here says so in the table and stops nothing. Peers are measured where they are installed:
torch with transformers on CUDA, and llama-cpp-python built for CUDA or Vulkan. GPUs of one name are
measured once.

`--device local-task` runs the same on the CPU, and `--device vulkan` where Vulkan computes on the
CPU (Mesa's lavapipe), with a tiny shape: that checks this script.
"""

import argparse
import concurrent.futures
import ctypes
import datetime
import io
import json
import os
import platform
import shutil
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
PROGRAM = os.path.join(HERE, "bin", "iree-llm")
FIXTURES = os.path.join(HERE, "fixtures")
LIMIT = 470  # seconds that a part may take
SHAPES = {"1b": "Llama-3.2-1B", "8b": "Llama-3.1-8B"}
PRECISIONS = ["stored", "bf16", "int8", "int4"]
PROMPT, GENERATE, DEPTH = 2048, 128, 2048
TOGETHER = [1, 8, 32]
TOGETHER_PROMPT = 256
# The columns that compare with peers: of which test, with whom.
RATIOS = [("tg", "eager"), ("tg", "compiled"), ("pp", "eager"), ("tg", "llama"), ("pp", "llama")]


class Device:
    """What `--device` names, and what of it matters here."""

    def __init__(self, name, listed, is_first=True):
        self.name = name
        self.is_first = is_first  # of its driver's that can be used
        self.driver, _, self.path = name.partition("://")
        # What is not listed may be named in another way (vulkan://GPU-...): a GPU of these drivers.
        self.is_gpu = listed["gpu"] is not None if listed else self.driver in ("cuda", "vulkan")
        self.description = listed["description"] if listed else name
        self.shapes = list(SHAPES) if self.is_gpu else ["1b"]
        # On Vulkan bf16 is as stored: no activation is rounded.
        self.precisions = [it for it in PRECISIONS if (self.driver, it) != ("vulkan", "bf16")]
        # PyTorch does not know Vulkan.
        self.peers = ["llama"] if self.driver == "vulkan" else ["eager", "compiled", "llama"]

    @property
    def folder(self):
        return self.name.replace("://", "-")

    def parts(self):
        names = ["device", "tests", "exact", "exact-stored", "copy"]
        names += [f"{kind}-{shape}-{precision}" for kind in ("speed", "parallel")
                  for shape in self.shapes for precision in self.precisions]
        names += [f"{peer}-{shape}" for peer in self.peers for shape in self.shapes
                  if (peer, shape) != ("llama", "8b")]
        return names + ["table"]

    def alone(self):
        """The environment in which other programs see this GPU alone."""
        names = {"cuda": "CUDA_VISIBLE_DEVICES", "vulkan": "GGML_VK_VISIBLE_DEVICES"}
        if self.driver not in names or not self.path.isdecimal():
            return {}
        name = names[self.driver]
        visible = [it for it in os.environ.get(name, "").split(",") if it]
        number = int(self.path)
        return {name: visible[number] if number < len(visible) else self.path}


def run(command, log, limit, environment=None):
    """The output of a command; its messages go to `log`. Raises what the table then says."""
    log.write("$ " + " ".join(command) + "\n")
    log.flush()
    late = RuntimeError("not done within the limit of time of its part (--limit)")
    if limit <= 0:
        raise late
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              stdin=subprocess.DEVNULL, timeout=limit, text=True,
                              errors="replace", env={**os.environ, **(environment or {})})
    except subprocess.TimeoutExpired as error:
        for output in (error.stdout, error.stderr):
            if output:
                log.write(output if isinstance(output, str) else output.decode(errors="replace"))
        raise late
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
    def __init__(self, options, device, environment):
        self.options = options
        self.device = device
        self.out = os.path.join(options.out, device.folder)
        os.makedirs(self.out, exist_ok=True)
        self.environment = environment
        self.deadline = None
        # The first use of a folder may write to it (locks), and the bundle may be read-only.
        self.graphs = os.path.join(options.out, "graphs")
        if not os.path.isdir(self.graphs) and os.path.isdir(os.path.join(HERE, "graphs")):
            # All of it or nothing: what was half copied would be taken for all.
            part = self.graphs + ".part"
            shutil.rmtree(part, ignore_errors=True)
            shutil.copytree(os.path.join(HERE, "graphs"), part)
            os.rename(part, self.graphs)

    def left(self):
        return self.deadline - time.monotonic()

    def llm(self, log, *arguments):
        engine = ["--device", self.device.name, "--cache-dir", self.graphs]
        engine += ["--no-weights-cache"]
        return run([PROGRAM, *arguments, *engine], log, self.left(), self.environment)

    def part_device(self, log):
        result = {
            "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
            "system": f"{platform.system()} {platform.release()} {platform.machine()}",
            "cores": os.cpu_count(),
            "description": self.device.description,
        }
        commands = {"program": [PROGRAM, "--version"], "devices": [PROGRAM, "devices"]}
        if self.device.driver == "cuda":
            commands["nvidia_smi"] = [
                "nvidia-smi", "--query-gpu=name,driver_version,memory.total,memory.free,"
                "compute_cap,clocks.max.sm,clocks.max.mem", "--format=csv,noheader"]
        for key, command in commands.items():
            try:
                result[key] = run(command, log, 60, self.environment).strip()
            except RuntimeError as error:
                result[key] = f"not known: {error}"
        return result

    def part_tests(self, log):
        """The tests of iree-rt that need such a device, as a program."""
        driver = self.device.driver
        # Of CUDA's, those that need no GPU are ignored there; without a device all are only listed.
        arguments = {"cuda": ["--ignored"], "vulkan": []}.get(driver, ["--list"])
        name = driver if driver in ("cuda", "vulkan") else "cuda"
        program = os.path.join(HERE, "tests", name)
        if not os.path.exists(program):
            raise RuntimeError(f"the bundle holds no test programs of {name}")
        if driver == "vulkan" and not self.device.is_first:
            raise RuntimeError("they run on the first device of Vulkan only")
        kept = os.path.join(self.options.out, "tests")
        os.makedirs(kept, exist_ok=True)
        # They compile what they run.
        compiler = os.path.join(HERE, "lib", "iree-llm") + os.pathsep + os.environ.get("PATH", "")
        environment = {**self.environment, **self.device.alone(), "PATH": compiler,
                       "CARGO_TARGET_TMPDIR": kept}
        try:
            output = run([program, *arguments, "--test-threads", "1"], log, self.left(), environment)
            verdict = [line for line in output.splitlines() if line.strip()][-1]
            return {"results": {name: verdict}, "exact": True}
        except RuntimeError as error:
            output = getattr(error, "stdout", "") or ""
            failed = [line for line in output.splitlines() if line.endswith("FAILED")]
            return {"results": {name: "; ".join(failed) or f"failed: {error}"}, "exact": False}

    def exact(self, log, precision, fixtures):
        """The tokens of Hugging Face transformers, of one sequence and of several together."""
        if not fixtures:
            raise RuntimeError("the bundle holds no such fixtures")
        result = {"models": 0, "cases": 0, "wrong": [], "not_reached": []}

        def check(name):
            """Messages, output (where tokens are wrong it says which), an error, whether time was up."""
            messages = io.StringIO()
            try:
                output, error = self.llm(
                    messages, "check", "--json", "--precision", precision, "--parallel",
                    ",".join(map(str, TOGETHER)), os.path.join(FIXTURES, name)), None
            except RuntimeError as failure:
                output, error = getattr(failure, "stdout", ""), failure
            return messages.getvalue(), output, error, self.left() <= 0

        # The start of a program is most of a small model's time. Elsewhere each compiles, or takes all cores.
        workers = max(1, min(8, (os.cpu_count() or 1) // 2)) if self.device.driver == "cuda" else 1
        with concurrent.futures.ThreadPoolExecutor(workers) as pool:
            answers = list(pool.map(check, fixtures))
        for name, (messages, output, error, late) in zip(fixtures, answers):
            log.write(messages)
            [checked] = json.loads(output) if output else [{}]
            if "cases" not in checked:
                if late:
                    result["not_reached"].append(name)
                else:
                    result["wrong"].append(f"{name}: {error}")
                continue
            result["models"] += 1
            result["cases"] += len(checked["cases"]) // len(TOGETHER)
            wrong = [f"{name} after {case['prompt']}, {case['parallel']} together: "
                     f"{case['same']} of {case['of']}"
                     for case in checked["cases"] if case["same"] != case["of"]]
            result["wrong"] += wrong or ([f"{name}: {error}"] if error else [])
        result["exact"] = not result["wrong"] and not result["not_reached"]
        return result

    def part_exact(self, log):
        """Every fixture in f32."""
        return self.exact(log, "f32", sorted(os.listdir(FIXTURES)))

    def part_exact_stored(self, log):
        """The fixtures that are stored in bf16, as they are stored."""
        return self.exact(log, "stored", [name for name in sorted(os.listdir(FIXTURES))
                                          if name.endswith("-bf16")])

    def part_copy(self, log):
        """Bytes a second of copies within the device's memory, read and written counted."""
        command = [PROGRAM, "devices", "--json", "--copy", self.device.name]
        measured = json.loads(run(command, log, self.left(), self.environment))
        return {"bytes_per_second": measured["bytes_per_second"]}

    def model(self, shape):
        return os.path.join(HERE, "models", SHAPES[shape] if self.device.is_gpu else "tiny")

    def speed(self, log, shape, precision):
        """Tokens a second of one sequence; what takes longer comes last, and may not be reached."""
        folder = self.model(shape)
        prompt, generate, depth = sizes(self.device)
        if self.device.is_gpu:
            context = 2 * (PROMPT + GENERATE + DEPTH)
            calls = [("256", generate, 0, 5), (str(prompt), 0, 0, 3), ("0", generate, depth, 3)]
        else:
            context = 512
            calls = [(str(prompt), generate, 0, 3), ("0", generate, depth, 3)]
        result = None
        for prompts, steps, before, repeat in calls:
            try:
                [measured] = json.loads(self.llm(
                    log, "bench", "--json", "-m", folder, "--load-mode", "random",
                    "--context", str(context), "--precision", precision, "-p", prompts,
                    "-n", str(steps), "-d", str(before), "-r", str(repeat)))
            except RuntimeError as error:
                if result is None:
                    raise
                what = f"tg{steps} @ d{before}" if before else f"pp{prompts}"
                result["not_reached"].append(f"{what}: {error}")
                continue
            if result is None:
                result = {**measured, "not_reached": []}
            else:
                result["tests"] += measured["tests"]
        with open(os.path.join(folder, "config.json")) as file:
            result["bytes_per_token"] = bytes_per_token(json.load(file), precision)
        result["same"], result["wrong"] = compared(folder, precision, result["tests"])
        result["exact"] = not result["wrong"]
        return result

    def parallel(self, log, shape, precision):
        """Tokens a second in total, of sequences that decode together."""
        prompt, generate = (TOGETHER_PROMPT, GENERATE) if self.device.is_gpu else (16, 8)
        output = self.llm(
            log, "bench", "--json", "-m", self.model(shape), "--load-mode", "random",
            "--precision", precision, "--parallel", ",".join(map(str, TOGETHER)),
            "-p", str(prompt), "-n", str(generate), "-r", "3")
        [result] = json.loads(output)
        return result

    def torch(self, log, kind, shape):
        device = "cuda" if self.device.is_gpu else "cpu"
        lengths = ["256", str(PROMPT), str(GENERATE)] if self.device.is_gpu else ["16", "64", "8"]
        command = [sys.executable, os.path.join(HERE, "peers", "hf.py"), self.model(shape), kind]
        return json.loads(run([*command, device, *lengths], log, self.left(), self.device.alone()))

    def llama(self, log, _shape):
        if not self.device.is_gpu:
            raise RuntimeError("llama.cpp's model is of one size, for GPUs")
        driver = self.device.driver
        probe = ("import gguf, llama_cpp, pathlib; folder = pathlib.Path(llama_cpp.__file__).parent; "
                 f"assert list(folder.rglob('*ggml-{driver}*')), 'llama-cpp-python without {driver}'")
        run([sys.executable, "-c", probe], log, self.left())
        peers, folder = os.path.join(HERE, "peers"), os.path.join(self.options.out, "llama")
        run([sys.executable, os.path.join(peers, "model.py"), folder, "bf16"], log, self.left())
        output = run(
            [sys.executable, os.path.join(peers, "llama.py"), os.path.join(folder, "bf16.gguf"),
             "--gpu-layers", "999", "--threads", "4", "--flash-attn", "on", "-r", "3",
             "-p", f"256,{PROMPT}", "-n", str(GENERATE), "--pg", f"{DEPTH},{GENERATE}"],
            log, self.left(), self.device.alone())
        result = json.loads(output)
        return result[0] if isinstance(result, list) else result

    def do(self, part):
        """Whether nothing is wrong: a GPU that computes wrongly is, a peer that is missing is not."""
        if part == "table":
            self.table()
            return True
        path = os.path.join(self.out, part + ".json")
        start = time.monotonic()
        self.deadline = start + self.options.limit
        kind, _, rest = part.partition("-")
        print(f"==> {self.device.name}: {part}", flush=True)
        with open(os.path.join(self.out, part + ".log"), "w") as log:
            try:
                if kind in ("speed", "parallel"):
                    result = getattr(self, kind)(log, *rest.split("-"))
                elif kind in ("eager", "compiled"):
                    result = self.torch(log, kind, rest)
                elif kind == "llama":
                    result = self.llama(log, rest)
                else:
                    result = getattr(self, "part_" + part.replace("-", "_"))(log)
            except Exception as error:  # one part's failure is a line of the table
                result = {"failed": str(error) or type(error).__name__}
                log.write(f"failed: {error!r}\n")
        result["took_s"] = round(time.monotonic() - start, 1)
        with open(path, "w") as file:
            json.dump(result, file, indent=1)
        print("    " + (f"failed: {result['failed']}" if "failed" in result else
                        f"done in {result['took_s']} s"), flush=True)
        return result.get("exact", kind not in ("exact", "tests"))

    def table(self):
        results = {}
        for part in self.device.parts():
            try:
                with open(os.path.join(self.out, part + ".json")) as file:
                    results[part] = json.load(file)
            except FileNotFoundError:
                pass
        with open(os.path.join(self.out, "results.json"), "w") as file:
            json.dump(results, file, indent=1)
        text = markdown(results, self.device)
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
    each = {"stored": 2, "bf16": 2, "f32": 4, "int8": 1 + 2 / 32, "int4": 0.5 + 2 / 32}[precision]
    of_head = {"int4": 1 + 2 / 32}.get(precision, each)
    return config["num_hidden_layers"] * layer * each + head * of_head


def compared(folder, precision, tests):
    """Which prompts have the next token of the CPU, that the bundle brings, and which another one."""
    try:
        with open(os.path.join(folder, "reference.json")) as file:
            expected = json.load(file).get(precision, {})
    except FileNotFoundError:
        expected = {}
    same, wrong = [], []
    for test in tests:
        name, token = test["test"], test["next_token"]
        if name not in expected:
            continue
        if token == expected[name]:
            same.append(name)
        else:
            wrong.append(f"{name}: {token}, not {expected[name]}")
    return same, wrong


def sizes(device):
    """Tokens of the long prompt, of what is generated, and before what is generated far behind."""
    return (PROMPT, GENERATE, DEPTH) if device.is_gpu else (64, 8, 64)


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


def markdown(results, device):
    about, lines = results.get("device", {}), []
    copy = results.get("copy", {}).get("bytes_per_second")
    who = [about.get("description", "not described"), about.get("nvidia_smi"), about.get("system"),
           f"{about.get('cores', '?')} cores", about.get("program"), about.get("date")]
    lines.append(f"iree-llm on `{device.name}`: {'; '.join(it for it in who if it)}.")
    if not device.is_gpu:
        lines.append("\nThis ran on the CPU with a tiny shape: a check of the script, no figures.")
    if copy:
        lines.append(f"\nMeasured copy bandwidth: {copy / 1e9:,.0f} GB/s (read and written).")
    for part, precision in (("exact", "f32"), ("exact-stored", "as stored in bf16")):
        exact = results.get(part, {})
        if "models" not in exact:
            continue
        wrong, missed = exact["wrong"], exact["not_reached"]
        verdict = "; ".join(wrong) if wrong else "every token is the reference's"
        lines.append(f"\nExactness, {precision}, {', '.join(map(str, TOGETHER))} sequences "
                     f"together: {exact['models']} models, {exact['cases']} prompts: {verdict}.")
        if missed:
            lines.append(f"There was no time for {', '.join(missed)}: `--part {part},table` again "
                         "gets further, as compiled graphs are kept, and `--limit` gives more.")
    for name, verdict in results.get("tests", {}).get("results", {}).items():
        lines.append(f"\nTests `{name}`: {verdict}.")
    prompt, generate, depth = sizes(device)
    ratios = [(kind, peer) for kind, peer in RATIOS if peer in device.peers]
    tests = {"tg": f"tg{generate}", "pp": f"pp{prompt}"}
    titles = {"eager": "transformers eager, bf16", "compiled": "transformers compiled, bf16",
              "llama": "llama.cpp, bf16"}
    for shape in device.shapes:
        lines.append(f"\n### {SHAPES[shape]}'s shape, random weights, batch 1, tokens a second\n")
        heads = ["", tests["tg"], "of copy bandwidth", f"{tests['tg']} @ d{depth}", "pp256",
                 tests["pp"], *(f"{kind} to {peer}" for kind, peer in ratios)]
        lines += ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
        peers = {peer: results.get(f"{peer}-{shape}") for peer in device.peers}
        ours = {it: results.get(f"speed-{shape}-{it}") for it in device.precisions}
        rows = [(f"iree-llm {precision}", result) for precision, result in ours.items()]
        rows += [(titles[peer], result) for peer, result in peers.items()]
        for name, result in rows:
            decode = rate(result, tests["tg"])
            share = None
            if decode and copy and (result or {}).get("bytes_per_token"):
                share = 100 * decode * result["bytes_per_token"] / copy
            cells = [name, number(decode), "–" if share is None else f"{share:.0f}%",
                     number(rate(result, tests["tg"], depth)), number(rate(result, "pp256")),
                     number(rate(result, tests["pp"]))]
            cells += [ratio(rate(result, tests[kind]), rate(peers[peer], tests[kind]))
                      for kind, peer in ratios]
            lines.append("| " + " | ".join(cells) + " |")
        lines.append("")
        for precision, result in ours.items():
            if (result or {}).get("wrong"):
                lines.append(f"{precision}: **wrong tokens** after {', '.join(result['wrong'])}.")
            elif (result or {}).get("same"):
                lines.append(f"{precision}: the tokens after {', '.join(result['same'])} are the CPU's.")
            if "start" in (result or {}):
                start, memory = result["start"], result["memory"]
                peak = (memory.get("peak") or 0) / 1e9
                lines.append(f"{precision}: ready after {start['ready_s']:.1f} s (weights "
                             f"{start['load_s']:.1f} s), peak host memory {peak:.2f} GB, "
                             f"{start['compiled_graphs']} graphs compiled here.")
    for shape in device.shapes:
        lines.append(f"\n### {SHAPES[shape]}'s shape, sequences together, tokens a second in total\n")
        lines.append("| | " + " | ".join(str(n) for n in TOGETHER) + " |")
        lines.append("|---|" + "---|" * len(TOGETHER))
        for precision in device.precisions:
            result = results.get(f"parallel-{shape}-{precision}")
            cells = [number(together(result, n)) for n in TOGETHER]
            lines.append(f"| {precision} | " + " | ".join(cells) + " |")
    missing = [f"- {part}: {result['failed']}" for part, result in results.items()
               if "failed" in result]
    missing += [f"- {part}: {what}" for part, result in results.items()
                if part.startswith("speed") for what in result.get("not_reached", [])]
    if missing:
        lines += ["\nNot measured:\n", *missing]
    return "\n".join(lines) + "\n"


def listed(environment):
    """What `iree-llm devices` says; nothing where it does not run."""
    try:
        done = subprocess.run([PROGRAM, "devices", "--json"], stdout=subprocess.PIPE,
                              stderr=subprocess.DEVNULL, timeout=60, check=True,
                              env={**os.environ, **environment})
        return json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError) as error:
        print(f"the devices of this machine are not known: {error}", file=sys.stderr)
        return []


def chosen(name, devices):
    """The device that `--device` names, or else every GPU; of those of one name the first."""
    first, gpus = {}, {}
    for it in (it for it in devices if it["usable"]):
        driver = it["device"].partition("://")[0]
        device = Device(it["device"], it, driver not in first)
        # A driver's name is its first device that can be used.
        first.setdefault(driver, device)
        if name == it["device"]:
            return [device]
        if it["gpu"]:
            gpus.setdefault((driver, it["gpu"]), device)
    if name:
        return [first.get(name) or Device(name, None)]
    # "cuda" comes before "vulkan".
    return sorted(gpus.values(), key=lambda device: device.driver)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", help="folder for results")
    parser.add_argument("--part", help="comma-separated: " + ", ".join(Device("cuda", None).parts()))
    parser.add_argument("--device", help="as `iree-llm devices` lists them [default: every GPU]")
    parser.add_argument("--limit", type=float, default=LIMIT, help="seconds for each part")
    options = parser.parse_args()
    options.out = os.path.abspath(options.out)
    os.makedirs(options.out, exist_ok=True)
    environment = driver_environment(options.out)
    devices = chosen(options.device, listed(environment))
    if not devices:
        sys.exit(f"there is no GPU here that can be used: `{PROGRAM} devices` says why; "
                 "`--device local-task` checks this script")
    wanted = options.part.split(",") if options.part else None
    known = list(dict.fromkeys(part for device in devices for part in device.parts()))
    unknown = [part for part in wanted or [] if part not in known]
    if unknown:
        parser.error(f"unknown part {unknown[0]}; known: {', '.join(known)}")
    exact = True
    for device in devices:
        check = Check(options, device, environment)
        for part in [part for part in device.parts() if not wanted or part in wanted]:
            exact &= check.do(part)
    return 0 if exact else 1


if __name__ == "__main__":
    sys.exit(main())

"""Measures llama.cpp as `iree-llm bench` measures us: same prompts, same tests, same JSON.

    python llama.py MODEL.gguf --threads 2 -r 3 -p 256 -n 32 --pg 2048,32 [--flash-attn on|off] [--no-mmap]

LLAMA_CPP_LIB_PATH is the folder of libllama, which `cargo xtask bench` builds (llama_cpp.rs).

llama-cpp-python's low-level API is llama.cpp's C API; a test is one `llama_decode` for a prompt
(llama.cpp cuts it into batches of 512 itself) or one for each generated token, until the logits of
the last token are there: what llama-bench does. All of them: of float weights ours makes only those
that may be the largest, and it goes on with its own tokens, where these here are random.
"""

import argparse
import json
import statistics
import sys
import time

import llama_cpp as lc

# ggml.h; not among the bindings.
GGML_LOG_LEVEL_ERROR = 4

WARM_UP = 512
FIRST_PROMPT = 5


def status(key):
    """A line of /proc/self/status in bytes, or None where there is none."""
    try:
        with open("/proc/self/status") as file:
            for line in file:
                if line.startswith(key + ":"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return None


def random_tokens(vocab):
    """The ids of `iree-llm bench`: SplitMix64 from 0."""
    state, mask = 0, (1 << 64) - 1
    while True:
        state = (state + 0x9E3779B97F4A7C15) & mask
        z = state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        z ^= z >> 31
        yield ((z >> 32) * vocab) >> 32


def with_fields(structure, **fields):
    """`structure` with `fields` set; a ctypes structure would silently take one it lacks."""
    for name, value in fields.items():
        if not hasattr(structure, name):
            sys.exit(f"error: {type(structure).__name__} of this llama.cpp has no field {name}")
        setattr(structure, name, value)
    return structure


class Llama:
    def __init__(self, path, options, context):
        lc.llama_backend_init()
        load_mode = lc.LLAMA_LOAD_MODE_NONE if options.no_mmap else lc.LLAMA_LOAD_MODE_MMAP
        parameters = with_fields(
            lc.llama_model_default_params(), load_mode=load_mode, n_gpu_layers=options.gpu_layers
        )
        self.model = lc.llama_model_load_from_file(path.encode(), parameters)
        if not self.model:
            sys.exit(f"error: llama.cpp cannot load {path}")
        parameters = with_fields(
            lc.llama_context_default_params(),
            n_ctx=context,
            n_batch=2048,
            n_ubatch=512,
            n_threads=options.threads,
            n_threads_batch=options.threads,
            no_perf=True,
            flash_attn_type=(
                lc.LLAMA_FLASH_ATTN_TYPE_ENABLED
                if options.flash_attn == "on"
                else lc.LLAMA_FLASH_ATTN_TYPE_DISABLED
            ),
        )
        self.context = lc.llama_init_from_model(self.model, parameters)
        if not self.context:
            sys.exit("error: llama.cpp cannot make a context")
        self.vocab = lc.llama_vocab_n_tokens(lc.llama_model_get_vocab(self.model))

    def decode(self, ids):
        """Appends `ids`, at most 2048 at a time; waits for the logits of the last one."""
        for begin in range(0, len(ids), 2048):
            part = ids[begin : begin + 2048]
            array = (lc.llama_token * len(part))(*part)
            code = lc.llama_decode(self.context, lc.llama_batch_get_one(array, len(part)))
            if code != 0:
                sys.exit(f"error: llama_decode failed with {code}")
        lc.llama_synchronize(self.context)
        return lc.llama_get_logits_ith(self.context, -1)

    def most_likely(self, logits):
        values = logits[: self.vocab]
        return values.index(max(values))

    def reset(self):
        lc.llama_memory_clear(lc.llama_get_memory(self.context), True)


def run_once(llama, depth, prompt, generate):
    ids = random_tokens(llama.vocab)
    take = lambda n: [next(ids) for _ in range(n)]
    llama.reset()
    if depth:
        llama.decode(take(depth))
    prompt_s, next_token, steps_s = None, None, []
    if prompt:
        tokens = take(prompt)
        start = time.perf_counter()
        logits = llama.decode(tokens)
        prompt_s = time.perf_counter() - start
        next_token = llama.most_likely(logits)
    for token in take(generate):
        start = time.perf_counter()
        llama.decode([token])
        steps_s.append(time.perf_counter() - start)
    return prompt_s, next_token, steps_s


def spread(values):
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def part(kind, tokens, depth, seconds, steps, next_token):
    return {
        "test": f"{kind}{tokens}",
        "depth": depth,
        "tokens": tokens,
        "seconds": seconds,
        "tokens_per_second": spread([tokens / s for s in seconds]),
        "step_seconds": spread(steps) if steps else None,
        "next_token": next_token,
    }


def measure(llama, depth, prompt, generate, repetitions):
    run_once(llama, min(depth, WARM_UP), min(prompt, WARM_UP), min(generate, 1))
    samples = [run_once(llama, depth, prompt, generate) for _ in range(repetitions)]
    tests = []
    if prompt:
        tests.append(part("pp", prompt, depth, [s[0] for s in samples], None, samples[0][1]))
    if generate:
        steps = [step for sample in samples for step in sample[2]]
        seconds = [sum(sample[2]) for sample in samples]
        tests.append(part("tg", generate, depth + prompt, seconds, steps, None))
    return tests


def main():
    numbers = lambda text: [int(it) for it in text.split(",")]
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("-p", type=numbers, default=[])
    parser.add_argument("-n", type=numbers, default=[])
    parser.add_argument("-r", type=int, default=5)
    parser.add_argument("--pg", type=numbers, action="append", default=[])
    parser.add_argument("--flash-attn", choices=["on", "off"], default="off")
    parser.add_argument("--no-mmap", action="store_true")
    parser.add_argument("--gpu-layers", type=int, default=0)
    options = parser.parse_args()
    passes = [(0, p, 0) for p in options.p if p] + [(0, 0, n) for n in options.n if n]
    passes += [(0, p, n) for p, n in options.pg]
    context = max(sum(it) for it in passes) + 256
    lc.llama_log_set(QUIET, None)

    # The interpreter's own memory is not llama.cpp's.
    python = status("VmRSS")
    held = lambda: None if python is None else status("VmHWM") - python
    start = time.perf_counter()
    llama = Llama(options.model, options, context)
    ready = time.perf_counter() - start
    load_peak = held()
    ids = random_tokens(llama.vocab)
    llama.decode([next(ids) for _ in range(FIRST_PROMPT)])
    first_token = time.perf_counter() - start
    tests = [test for it in passes for test in measure(llama, *it, options.r)]
    report = {
        "model": options.model,
        "engine": "llama.cpp",
        "device": "gpu" if options.gpu_layers else "cpu",
        "precision": "",
        "threads": options.threads,
        "start": {
            "ready_s": ready,
            "load_s": ready,
            "compile_s": 0.0,
            "compiled_graphs": 0,
            "first_prompt": FIRST_PROMPT,
            "first_token_s": first_token,
        },
        "memory": {
            "weights": lc.llama_model_size(llama.model),
            "load_peak": load_peak,
            "peak": held(),
        },
        "tests": tests,
        "version": lc.__version__,
    }
    print(json.dumps(report))


# Kept for as long as llama.cpp may call it: errors only.
@lc.llama_log_callback
def QUIET(level, text, _):
    if level == GGML_LOG_LEVEL_ERROR:
        sys.stderr.write(text.decode(errors="replace"))


if __name__ == "__main__":
    main()

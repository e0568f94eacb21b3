"""Hugging Face transformers on a model folder's shape, with random weights made here.

    python hf.py FOLDER eager|compiled cuda|cpu PROMPT LONG_PROMPT GENERATE

Prints the JSON of `iree-llm bench`: pp and tg in tokens a second. Batch 1, bf16, the most likely
token fed back on the device; the host waits once, at the end: the fastest way to drive it.
"""

import json
import statistics
import sys
import time

import torch
from transformers import AutoConfig, AutoModelForCausalLM, StaticCache


def main():
    folder, kind, device, prompt, long_prompt, generate = sys.argv[1:]
    short, long, count = int(prompt), int(long_prompt), int(generate)
    config = AutoConfig.from_pretrained(folder)
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
    model = model.eval().to(device=device, dtype=torch.bfloat16)
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    capacity = long + count + 8

    def new_cache():
        try:
            return StaticCache(config=config, max_batch_size=1, max_cache_len=capacity,
                               device=device, dtype=torch.bfloat16)
        except TypeError:  # newer versions place it by themselves
            return StaticCache(config=config, max_cache_len=capacity)

    forward = model.forward

    def step(tokens, position, cache):
        out = forward(input_ids=tokens, cache_position=position, past_key_values=cache,
                      use_cache=True, logits_to_keep=1)
        return out.logits[:, -1:].argmax(-1)

    decode = step
    if kind == "compiled":
        decode = torch.compile(step, mode="reduce-overhead" if device == "cuda" else "default",
                               fullgraph=False)

    @torch.inference_mode()
    def run(n, steps):
        """Seconds of a prompt of `n` tokens, and of `steps` tokens behind it."""
        cache = new_cache()
        tokens = torch.randint(0, config.vocab_size, (1, n), device=device)
        position = torch.arange(n, device=device)
        wait()
        start = time.perf_counter()
        token = step(tokens, position, cache)
        wait()
        prefill = time.perf_counter() - start
        position = position[-1:] + 1
        start = time.perf_counter()
        for _ in range(steps):
            if kind == "compiled" and device == "cuda":
                torch.compiler.cudagraph_mark_step_begin()
            token = decode(token.clone(), position, cache)
            position = position + 1
        wait()
        return prefill, time.perf_counter() - start

    run(8, 4)
    run(short, 4)
    tests = []

    def measured(name, n, depth, seconds):
        rates = [n / s for s in seconds]
        tests.append({"test": name, "depth": depth, "tokens": n, "seconds": seconds,
                      "tokens_per_second": {"median": statistics.median(rates),
                                            "min": min(rates), "max": max(rates)}})

    measured(f"tg{count}", count, 0, [run(1, count)[1] for _ in range(3)])
    run(long, 1)
    passes = [run(long, count) for _ in range(3)]
    measured(f"pp{long}", long, 0, [prefill for prefill, _ in passes])
    measured(f"tg{count}", count, long, [steps for _, steps in passes])
    measured(f"pp{short}", short, 0, [run(short, 0)[0] for _ in range(3)])
    import transformers
    versions = f"transformers {transformers.__version__}, torch {torch.__version__}"
    parameters = sum(p.numel() for p in model.parameters())
    if not config.tie_word_embeddings:
        parameters -= model.get_input_embeddings().weight.numel()
    print(json.dumps({"program": versions, "tests": tests, "bytes_per_token": 2 * parameters}))


if __name__ == "__main__":
    main()

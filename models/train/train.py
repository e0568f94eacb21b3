"""Trains tiny-tales from nothing: corpus, tokenizer, model, Hugging Face folder.

`python train.py` does it all again; the seed is fixed, though threads and library versions may move
the last bits. Weights and optimizer are float32, matrix products run in bfloat16 (autocast), and the
stored weights are bfloat16.
"""

import argparse
import json
import math
import random
import time
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch.nn.functional import cross_entropy
from transformers import LlamaConfig, LlamaForCausalLM

import tokenizer as tok
from chat import converse
from grammar import tell

HERE = Path(__file__).resolve().parent
STORY_SHARE = 0.55
PEAK_RATE, FLOOR, WARMUP = 3e-3, 0.02, 100
IGNORE = -100

# The older form of the file on purpose: every reader of Llama 3 checkpoints knows it.
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 192,
    "intermediate_size": 512,
    "num_hidden_layers": 6,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "hidden_act": "silu",
    "vocab_size": tok.VOCAB_SIZE,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "rope_scaling": {
        "rope_type": "llama3",
        "factor": 4.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 512,
    },
    "attention_bias": False,
    "attention_dropout": 0.0,
    "mlp_bias": False,
    "tie_word_embeddings": True,
    "initializer_range": 0.02,
    "bos_token_id": tok.BEGIN,
    "eos_token_id": [tok.END, tok.TURN_END],
    "pretraining_tp": 1,
    "torch_dtype": "bfloat16",
    "use_cache": True,
}
GENERATION = {"bos_token_id": tok.BEGIN, "eos_token_id": [tok.END, tok.TURN_END], "pad_token_id": tok.END}


def document(rng):
    """One training text, a bare story or a conversation, as `(text, is it to be learned)` pieces.

    What the user says is read but not learned: after the begin token alone, a story must come.
    """
    if rng.random() < STORY_SHARE:
        return [(tok.SPECIALS[tok.BEGIN], False), (tell(rng).text + tok.SPECIALS[tok.END], True)]
    return tok.render(converse(rng))


def rows(tokenizer, rng, length):
    """Endless pairs of `length` input ids and their targets (`IGNORE` where nothing is learned).

    Each row begins with a document; what is too long is cut.
    """
    ids, targets = [], []
    while True:
        for text, learned in document(rng):
            piece = tokenizer.encode(text, add_special_tokens=False).ids
            ids += piece
            targets += piece if learned else [IGNORE] * len(piece)
        if len(ids) > length:
            yield ids[:length], targets[1 : length + 1]
            ids, targets = [], []


def batch_of(source, size):
    """The next `size` rows as two tensors `[size, length]`: inputs and targets."""
    inputs, targets = zip(*(next(source) for _ in range(size)))
    return torch.tensor(inputs), torch.tensor(targets)


def rate(step, steps):
    """Learning rate: a short warm-up, then half a cosine."""
    if step < WARMUP:
        return PEAK_RATE * (step + 1) / WARMUP
    done = (step - WARMUP) / max(1, steps - WARMUP)
    return PEAK_RATE * (FLOOR + (1 - FLOOR) * 0.5 * (1 + math.cos(math.pi * done)))


def optimizer_for(model):
    """AdamW; only matrices decay."""
    matrices = [p for p in model.parameters() if p.dim() > 1]
    vectors = [p for p in model.parameters() if p.dim() == 1]
    groups = [{"params": matrices, "weight_decay": 0.05}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=PEAK_RATE, betas=(0.9, 0.98), fused=True)


@torch.no_grad()
def held_out_loss(model, tokenizer, length=512, count=32):
    """Mean loss in nats per token, in float32, on stories of a seed that training never sees."""
    source = rows(tokenizer, random.Random(990_001), length)
    total = 0.0
    for _ in range(count):
        ids, targets = batch_of(source, 1)
        logits = model(input_ids=ids).logits
        total += cross_entropy(logits[0].float(), targets[0], ignore_index=IGNORE).item()
    return total / count


def save(model, folder):
    """Writes configuration and bfloat16 weights (`lm_head` is the embedding and is not stored twice)."""
    tensors = {name: value.detach().to(torch.bfloat16).contiguous()
               for name, value in model.state_dict().items() if name != "lm_head.weight"}
    path = folder / "model.safetensors"
    save_file(tensors, path, metadata={"format": "pt"})
    path.chmod(0o644)  # it is written readable by its owner alone
    (folder / "config.json").write_text(json.dumps(CONFIG, indent=2) + "\n")
    (folder / "generation_config.json").write_text(json.dumps(GENERATION, indent=2) + "\n")


def main():
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=HERE.parent / "tiny-tales")
    parser.add_argument("--steps", type=int, default=3600, help="optimizer steps of 2048 tokens")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--compile", action="store_true", help="torch.compile; about twice as fast, needs a C++ compiler")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    args.out.mkdir(parents=True, exist_ok=True)

    rng = random.Random(args.seed)
    tokenizer = tok.train("".join(text for text, _ in document(rng)) for _ in range(8000))
    tok.save(tokenizer, args.out)

    model = LlamaForCausalLM(LlamaConfig(**CONFIG, attn_implementation="sdpa")).float()
    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.2f} M parameters", flush=True)
    optimizer = optimizer_for(model)
    forward = torch.compile(model, dynamic=False) if args.compile else model

    start, running = time.time(), None
    # Short rows first, since they are cheap; the last third sees whole conversations.
    turn = args.steps * 2 // 3
    for step in range(args.steps):
        if step in (0, turn):
            length, batch = (256, 8) if step < turn else (512, 4)
            source = rows(tokenizer, rng, length)
        ids, targets = batch_of(source, batch)
        for group in optimizer.param_groups:
            group["lr"] = rate(step, args.steps)
        with torch.autocast("cpu", torch.bfloat16):
            logits = forward(input_ids=ids, use_cache=False).logits
        loss = cross_entropy(logits.float().flatten(0, 1), targets.flatten(), ignore_index=IGNORE)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        value = loss.item()
        running = value if running is None else 0.95 * running + 0.05 * value
        if step % 50 == 0 or step + 1 == args.steps:
            print(f"step {step:5d}  loss {running:.4f}  {(time.time() - start) / 60:.1f} min", flush=True)
        if step % 600 == 599:
            save(model, args.out)
    save(model, args.out)

    stored = LlamaForCausalLM.from_pretrained(args.out, dtype=torch.float32).eval()
    print(f"held-out loss of the stored weights: {held_out_loss(stored, tokenizer):.4f} nats/token")
    from samples import show  # only after the folder exists

    show(args.out)


if __name__ == "__main__":
    main()

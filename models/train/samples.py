"""Prints greedy samples of a stored model, computed in float32: `python samples.py [FOLDER]`."""

import sys
from pathlib import Path

import torch
from transformers import AutoTokenizer, LlamaForCausalLM

PROMPTS = ["", "Once upon a time", "The little fox", "One day", "Anna was a brave girl"]
CHATS = [
    ["Tell me a story about a fox and a lamp."],
    ["tell me a story about an owl called Emma and a boat", "What happened in the story?", "Where did Emma live?", "Thank you."],
    ["Hello!", "Yes, please."],
    ["What is a rope for?", "What does a bear eat?"],
    ["What is the capital of Spain?"],
]


def load(folder):
    """The stored model in float32 with plain attention, and its tokenizer."""
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    return model, AutoTokenizer.from_pretrained(folder)


@torch.no_grad()
def greedy(model, ids, limit, stop=()):
    """The greedy continuation of `ids` (without the stop token) and the smallest top-two gap met."""
    out, gap, past, feed = [], float("inf"), None, torch.tensor([ids])
    for _ in range(limit):
        step = model(input_ids=feed, past_key_values=past, use_cache=True)
        past = step.past_key_values
        top = step.logits[0, -1].topk(2)
        gap = min(gap, (top.values[0] - top.values[1]).item())
        token = int(top.indices[0])
        if token in stop:
            break
        out.append(token)
        feed = torch.tensor([[token]])
    return out, gap


def chat_ids(tokenizer, messages):
    """Token ids of a conversation, ready for the assistant's turn."""
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    return tokenizer(text, add_special_tokens=False)["input_ids"]


def show(folder, limit=400):
    """Prints all samples."""
    model, tokenizer = load(folder)
    stop = set(model.config.eos_token_id)
    for prompt in PROMPTS:
        ids = tokenizer(prompt)["input_ids"]
        out, gap = greedy(model, ids, limit, stop)
        print(f"\n=== {prompt!r} (smallest gap {gap:.3f})\n{prompt}{tokenizer.decode(out)}")
    for turns in CHATS:
        print("\n=== chat")
        messages = []
        for user in turns:
            messages.append({"role": "user", "content": user})
            out, _ = greedy(model, chat_ids(tokenizer, messages), limit, stop)
            messages.append({"role": "assistant", "content": tokenizer.decode(out)})
            print(f"[user] {user}\n[assistant] {messages[-1]['content']}")


if __name__ == "__main__":
    show(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent / "tiny-tales")

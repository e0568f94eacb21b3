"""The tokenizer: byte-level BPE trained on the story grammar, its special tokens and its chat template."""

import json
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

VOCAB_SIZE = 1536
SPECIALS = ["<|begin|>", "<|end|>", "<|turn_end|>", "<|system|>", "<|user|>", "<|assistant|>"]
BEGIN, END, TURN_END = 0, 1, 2

CHAT_TEMPLATE = (
    "{{- bos_token }}"
    "{%- for message in messages %}"
    "{%- if message['role'] not in ['system', 'user', 'assistant'] %}"
    "{{- raise_exception('unknown role ' + message['role'] + ': use system, user or assistant') }}"
    "{%- endif %}"
    "{{- '<|' + message['role'] + '|>' + message['content'] | trim + '<|turn_end|>' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|assistant|>' }}{%- endif %}"
)


def render(messages):
    """What the chat template makes of `messages`, as `(text, is it the assistant's)` pieces cut at special tokens."""
    pieces = [(SPECIALS[BEGIN], False)]
    for message in messages:
        pieces.append((f"<|{message['role']}|>", False))
        pieces.append((message["content"].strip() + SPECIALS[TURN_END], message["role"] == "assistant"))
    return pieces


def train(texts):
    """Trains the tokenizer on plain texts."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=SPECIALS,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    ))
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{SPECIALS[BEGIN]} $A",
        pair=f"{SPECIALS[BEGIN]} $A $B",
        special_tokens=[(SPECIALS[BEGIN], BEGIN)],
    )
    return tokenizer


def save(tokenizer, folder: Path):
    """Writes `tokenizer.json` and `tokenizer_config.json`."""
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": True,
        "add_eos_token": False,
        "bos_token": SPECIALS[BEGIN],
        "eos_token": SPECIALS[TURN_END],
        "pad_token": SPECIALS[END],
        "clean_up_tokenization_spaces": False,
        "model_max_length": 2048,
        "added_tokens_decoder": {
            str(i): {"content": s, "lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True}
            for i, s in enumerate(SPECIALS)
        },
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")

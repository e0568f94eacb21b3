"""Trains small SentencePiece models on text made here, and records what they make of texts.

    pip install sentencepiece==0.2.1 protobuf
    python3 make_expected.py > expected.json

Each model is written as GGUF's converters write one: pieces, scores and types, and the switches of its
normalizer. `../sentencepiece.rs` demands the same ids.
"""

import io
import json
import random
import tempfile

import sentencepiece
from sentencepiece import sentencepiece_model_pb2 as proto

WORDS = """the a little old fox owl bear hedgehog river meadow lamp clock bridge under over through with
found lost mended carried wondered answered walked running runner runs singing sang songs quietly quickly
morning evening yesterday tomorrow one two three 12 345 6789 2026 3.14 don't it's we'll I'm (maybe) "yes"
naïve café Straße größer наш лес река 日本語 東京 猫 🦊 🦉 hello-world foo_bar x=y+1 // -- ...""".split()

TEXTS = [
    "", " ", "  ", "   ", "a", " a", "a ", "  a  ", "the fox", " the  fox", "the fox\nthe owl", "\n\n", "\t",
    "The little fox found a lamp under the bridge.", "running runner runs run", "123456789 12 345",
    "don't it's we'll", "aaaa aaaaa aaaaaa", "a a a  a   a    a", "naïve café", "Straße größer", "наш лес",
    "日本語 東京 猫 犬", "🦊🦉🐻", "hello-world foo_bar x=y+1", "unknown ∑ symbols ≠ here", "ﬁne ﬂow Ａ１",
    "ends with spaces   ", "<|turn|>the fox<|turn|>", "the<|turn|> fox", "mixed 日本語and latin", "e\u0301",
    "quietlyquicklyquietly", "thethethethe", "......------", "(maybe) \"yes\" 'no'", "\u00a0nbsp\u3000wide",
]


def sentences():
    """Lines of words, some of which come together often."""
    draw = random.Random(7)
    for _ in range(3000):
        yield " ".join(draw.choices(WORDS, weights=range(len(WORDS), 0, -1), k=draw.randint(3, 12)))


def train(**options):
    """A model's bytes."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=sentences(),
        model_writer=model,
        hard_vocab_limit=False,
        num_threads=1,
        minloglevel=2,
        **options,
    )
    return model.getvalue()


def expected(kind, model, texts):
    """What GGUF says of `model`, and its ids of `texts`."""
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    it = proto.ModelProto.FromString(model)
    return {
        "model": kind,
        "tokens": [piece.piece for piece in it.pieces],
        "scores": [piece.score for piece in it.pieces],
        "types": [piece.type for piece in it.pieces],
        "bos": processor.bos_id(),
        "eos": processor.eos_id(),
        "unknown": processor.unk_id(),
        "add_space_prefix": it.normalizer_spec.add_dummy_prefix,
        "remove_extra_whitespaces": it.normalizer_spec.remove_extra_whitespaces,
        "precompiled_charsmap": list(it.normalizer_spec.precompiled_charsmap),
        "cases": [{"text": text, "ids": processor.encode(text)} for text in texts],
    }


def main():
    plain = {"normalization_rule_name": "identity", "remove_extra_whitespaces": False}
    bare = [text for text in TEXTS if "<|" not in text]
    llama = train(model_type="bpe", vocab_size=500, byte_fallback=True, character_coverage=0.99, **plain)
    gemma = train(
        model_type="bpe",
        vocab_size=500,
        byte_fallback=True,
        add_dummy_prefix=False,
        user_defined_symbols=["<|turn|>", "▁▁", "▁▁▁"],
        **plain,
    )
    with tempfile.NamedTemporaryFile("w", suffix=".tsv") as rules:
        # Code points: ﬁ to fi, wide to plain, a no-break space to a space.
        rules.write("FB01\t66 69\nFF21\t41\nFF11\t31\nA0\t20\n3000\t20\n")
        rules.flush()
        t5 = train(model_type="unigram", vocab_size=260, normalization_rule_tsv=rules.name)
    bytes_too = train(model_type="unigram", vocab_size=500, byte_fallback=True, **plain)
    print("[")
    models = [
        expected("llama", llama, bare),
        expected("llama", gemma, TEXTS),
        expected("t5", t5, bare),
        expected("t5", bytes_too, bare),
    ]
    print(",\n".join(json.dumps(it, ensure_ascii=False, separators=(",", ":")) for it in models))
    print("]")


if __name__ == "__main__":
    main()

"""Makes the random tiny encoders of `llm/tests/encoders`: GGUF files as llama.cpp's own converter writes them, and what
transformers makes of texts with the models that they are of.

    pip install -r requirements.txt gguf sentencepiece protobuf
    python make_gguf_encoders.py LLAMA_CPP            # the folder with convert_hf_to_gguf.py; all, or those named
    python make_gguf_encoders.py LLAMA_CPP --check    # make them elsewhere and compare with those committed

`cargo xtask bench` brings llama.cpp's sources, as does the source distribution of `llama-cpp-python`. Tokenizers are trained
here, on the text below: they are real ones of each kind.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import zlib
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

from checkpoints import deterministic, write_json
from make_encoders import nomic_keys, nomic_names, random_tensor

FOLDER = Path(__file__).resolve().parents[3] / "llm" / "tests" / "encoders"

TEXTS = [
    "Vectors of texts are near where texts mean the same.",
    "A query asks, and 42 documents answer: some well, others not at all!",
    "Encoders read both ways; what comes later changes what was said before.",
    "Über den Bergen ist die Luft dünn, naïve cafés are élite.",
    " Two  spaces,\n\nand a line:\tencoders read them so. ",
]
#: A query, and documents.
PAIRS = [
    ("What do encoders read?", "Encoders read both ways."),
    ("How is the air?", "Über den Bergen ist die Luft dünn; so it is said, at least, in 42 documents."),
    ("texts", " Encoders  read\n\nboth ways.\t"),
]

SIZES = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 128,
}
CLASSIFIER = {"id2label": {"0": "score"}, "label2id": {"score": 0}}
BERT = SIZES | {"layer_norm_eps": 1e-12, "hidden_act": "gelu", "type_vocab_size": 2, "pad_token_id": 0}
ROBERTA = BERT | {
    "max_position_embeddings": 130,
    "layer_norm_eps": 1e-5,
    "type_vocab_size": 1,
    "pad_token_id": 1,
    "bos_token_id": 0,
    "eos_token_id": 2,
}
DECODER = SIZES | {"num_key_value_heads": 1, "head_dim": 16, "rms_norm_eps": 1e-6, "tie_word_embeddings": True}

#: By name: the class, the configuration, the tokenizer's kind, and the pooling.
ENCODERS = {
    "bert": ("BertModel", BERT | {"model_type": "bert"}, "wordpiece", "cls"),
    "xlm-roberta-ranks": (
        "XLMRobertaForSequenceClassification",
        ROBERTA | CLASSIFIER | {"model_type": "xlm-roberta"},
        "unigram",
        None,
    ),
    "nomic-bert": (
        "NomicBertModel",
        BERT
        | {
            "model_type": "nomic_bert",
            "hidden_act": "silu",
            "max_position_embeddings": 2048,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1000.0},
        },
        "wordpiece",
        "mean",
    ),
    "modern-bert-ranks": (
        "ModernBertForSequenceClassification",
        SIZES
        | CLASSIFIER
        | {
            "model_type": "modernbert",
            "local_attention": 8,
            "global_attn_every_n_layers": 2,
            "global_rope_theta": 160000.0,
            "local_rope_theta": 10000.0,
            "norm_eps": 1e-5,
            "layer_norm_eps": 1e-5,
            "norm_bias": False,
            "attention_bias": False,
            "mlp_bias": False,
            "classifier_pooling": "mean",
            "classifier_bias": False,
            "hidden_activation": "gelu",
            "pad_token_id": 1,
            "bos_token_id": 0,
            "cls_token_id": 0,
            "sep_token_id": 2,
            "eos_token_id": 2,
        },
        "bytes",
        None,
    ),
    "eurobert": (
        "EuroBertModel",
        DECODER
        | {
            "model_type": "eurobert",
            "hidden_act": "silu",
            "pad_token_id": 1,
            "bos_token_id": 0,
            "eos_token_id": 2,
            "mask_token_id": 3,
            "classifier_pooling": "mean",
            "rope_parameters": {"rope_type": "default", "rope_theta": 250000.0},
        },
        "bytes",
        "mean",
    ),
    # The converter knows it by its name.
    "qwen3-reranker": (
        "Qwen3ForCausalLM",
        DECODER
        | {
            "model_type": "qwen3",
            "hidden_act": "silu",
            "rope_theta": 1e6,
            "max_position_embeddings": 512,
            "tie_word_embeddings": False,
        },
        "chat",
        None,
    ),
    "gemma-embedding": (
        "Gemma3TextModel",
        DECODER
        | {
            "model_type": "gemma3_text",
            "use_bidirectional_attention": True,
            "sliding_window": 9,
            "layer_types": ["sliding_attention", "sliding_attention"],
            "query_pre_attn_scalar": 16,
            "hidden_activation": "gelu_pytorch_tanh",
            "rope_theta": 1e6,
            "rope_local_base_freq": 1e4,
            "pad_token_id": 0,
            "bos_token_id": 2,
            "eos_token_id": 1,
        },
        "sentencepiece",
        "mean",
    ),
}


def tokenizer_of(kind, folder):
    """Trains a tokenizer, and writes it as its makers do; what transformers would load."""
    if kind == "wordpiece":
        marks = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
        tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
        tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        tokenizer.train_from_iterator(TEXTS, trainers.WordPieceTrainer(vocab_size=160, special_tokens=marks))
        tokenizer.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]",
            pair="[CLS] $A [SEP] $B:1 [SEP]:1",
            special_tokens=[(it, tokenizer.token_to_id(it)) for it in ["[CLS]", "[SEP]"]],
        )
        tokenizer.decoder = decoders.WordPiece()
        names = {"unk_token": "[UNK]", "pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
        tokenizer_class = "BertTokenizer"
        names["mask_token"] = "[MASK]"
    elif kind in {"bytes", "chat"}:
        marks = ["<s>", "<pad>", "</s>", "<mask>", "<unk>"]
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        trainer = trainers.BpeTrainer(
            vocab_size=340, special_tokens=marks, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
        )
        tokenizer.train_from_iterator(TEXTS, trainer)
        if kind == "chat":
            tokenizer.add_special_tokens(["<|im_start|>", "<|im_end|>"])
            tokenizer.add_tokens(["yes", "no", "|", "<think>", "</think>"])
            write_json(folder / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast"})
            tokenizer.save(str(folder / "tokenizer.json"))
            return tokenizer
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<s> $A </s>", pair="<s> $A </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
        )
        tokenizer.decoder = decoders.ByteLevel()
        names = {"bos_token": "<s>", "eos_token": "</s>", "cls_token": "<s>", "sep_token": "</s>"}
        names |= {"pad_token": "<pad>", "mask_token": "<mask>", "unk_token": "<unk>"}
        tokenizer_class = "PreTrainedTokenizerFast"
    else:
        return sentencepiece(kind, folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    write_json(folder / "tokenizer_config.json", names | {"tokenizer_class": tokenizer_class})
    return tokenizer


def sentencepiece(kind, folder):
    """SentencePiece's own, as XLM-RoBERTa and Gemma have it."""
    import sentencepiece as spm

    of_gemma = kind == "sentencepiece"
    model = folder / ("tokenizer.model" if of_gemma else "sentencepiece.bpe.model")
    marks = dict(pad_id=0, eos_id=1, bos_id=2, unk_id=3) if of_gemma else dict(unk_id=0, bos_id=1, eos_id=2, pad_id=-1)
    spm.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXTS * 4),
        model_prefix=str(folder / "trained"),
        vocab_size=330 if of_gemma else 110,
        model_type="bpe" if of_gemma else "unigram",
        byte_fallback=of_gemma,
        add_dummy_prefix=not of_gemma,
        remove_extra_whitespaces=not of_gemma,
        normalization_rule_name="identity",
        hard_vocab_limit=False,
        **marks,
    )
    (folder / "trained.model").rename(model)
    (folder / "trained.vocab").unlink()
    if of_gemma:
        write_json(
            folder / "tokenizer_config.json",
            {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
            | {"add_bos_token": True, "add_eos_token": True, "tokenizer_class": "GemmaTokenizer"},
        )
        return AutoTokenizer.from_pretrained(folder)
    names = {"bos_token": "<s>", "eos_token": "</s>", "cls_token": "<s>", "sep_token": "</s>"}
    names |= {"pad_token": "<pad>", "mask_token": "<mask>", "unk_token": "<unk>"}
    write_json(folder / "tokenizer_config.json", names | {"tokenizer_class": "XLMRobertaTokenizer"})
    return AutoTokenizer.from_pretrained(folder)


def encoded(tokenizer, *texts):
    """The ids of one text or two, and which text each is of."""
    if callable(tokenizer):
        ids = tokenizer(*texts).input_ids
        return ids, [0] * len(ids)
    of = tokenizer.encode(*texts)
    return of.ids, of.type_ids


def make(name, llama_cpp, to):
    """Writes `name` into the folder `to`, and what transformers makes of it."""
    kind, config, tokenizer_kind, pooling = ENCODERS[name]
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / name
        folder.mkdir()
        tokenizer = tokenizer_of(tokenizer_kind, folder)
        ranks, asked = kind.endswith("ForSequenceClassification"), name == "qwen3-reranker"
        if pooling:
            write_pooling(folder, pooling)
        # Padded, as models mostly are.
        tokens = 352 if asked else 340 if tokenizer_kind in {"bytes", "sentencepiece"} else 168
        config = {"architectures": [kind], "vocab_size": tokens, "dtype": "float32"} | config
        write_json(folder / "config.json", config)
        load = AutoModelForSequenceClassification if ranks else AutoModelForCausalLM if asked else AutoModel
        with torch.device("meta"):
            model = load.from_config(AutoConfig.from_pretrained(folder))
        norm = 0.0 if name.startswith("gemma") else 1.0
        tensors = {}
        for key, tensor in sorted(model.state_dict().items()):
            if "position_ids" in key or "token_type_ids" in key or (not ranks and "pooler" in key):
                continue
            tensors[key] = torch.as_tensor(random_tensor(rng, key, tuple(tensor.shape), norm))
        if name == "nomic-bert":
            tensors = nomic_names(tensors)
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        model = load.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
        reference = {"pooling": pooling}
        if asked:
            reference["pairs"] = [answered(model, tokenizer, *pair) for pair in PAIRS]
        elif ranks:
            reference["pairs"] = [ranked(model, tokenizer, *pair) for pair in PAIRS]
        else:
            dense = write_dense(rng, folder) if name.startswith("gemma") else None
            reference["texts"] = [embedded(model, tokenizer, it, pooling, dense) for it in TEXTS]
        if name == "nomic-bert":
            # The converter reads it by transformers' own class, which does not know these keys.
            own = {"qkv_proj_bias": False, "mlp_fc1_bias": False, "mlp_fc2_bias": False}
            write_json(folder / "config.json", config | nomic_keys(config) | own)
        more = ["--sentence-transformers-dense-modules"] if name.startswith("gemma") else []
        file = to / f"{name}.gguf"
        pre = {"wordpiece": "bert-bge", "bytes": "gpt-2", "chat": "gpt-2"}.get(tokenizer_kind)
        run_converter(llama_cpp, pre, folder, "--outtype", "f32", "--outfile", file, *more)
    write_json(to / f"{name}.json", reference)


def run_converter(llama_cpp, pre, *arguments):
    """Runs llama.cpp's converter, which knows the tokenizers of models by what they make of a text, and is told here."""
    program = (
        f"import sys; sys.path.insert(0, {str(llama_cpp)!r})\n"
        "import conversion.base\n"
        f"conversion.base.TextModel.get_vocab_base_pre = lambda *_: {pre!r}\n"
        "import convert_hf_to_gguf; convert_hf_to_gguf.main()"
    )
    subprocess.run([sys.executable, "-c", program, *arguments], check=True)


def write_pooling(folder, pooling):
    """The modules of sentence-transformers."""
    modules = [("Transformer", ""), ("Pooling", "1_Pooling"), ("Normalize", "2_Normalize")]
    if pooling == "mean" and folder.name.startswith("gemma"):
        modules[2:2] = [("Dense", "2_Dense"), ("Dense", "3_Dense")]
    write_json(
        folder / "modules.json",
        [
            {"idx": at, "name": str(at), "path": path, "type": f"sentence_transformers.models.{it}"}
            for at, (it, path) in enumerate(modules)
        ],
    )
    (folder / "1_Pooling").mkdir()
    write_json(folder / "1_Pooling" / "config.json", {f"pooling_mode_{pooling}_token{'s' if pooling == 'mean' else ''}": True})


def write_dense(rng, folder):
    """Both layers behind EmbeddingGemma's pooling."""
    layers = []
    for name, inputs, outputs in [("2_Dense", 32, 48), ("3_Dense", 48, 32)]:
        weight = torch.as_tensor(random_tensor(rng, name, (outputs, inputs), 1.0))
        (folder / name).mkdir()
        save_file({"linear.weight": weight}, folder / name / "model.safetensors")
        activation = "torch.nn.modules.linear.Identity"
        write_json(
            folder / name / "config.json",
            {"in_features": inputs, "out_features": outputs, "bias": False, "activation_function": activation},
        )
        layers.append(weight)
    return layers


@torch.inference_mode()
def embedded(model, tokenizer, text, pooling, dense):
    """The vector of a text."""
    ids, _ = encoded(tokenizer, text)
    states = model(torch.tensor([ids])).last_hidden_state[0]
    vector = states[0] if pooling == "cls" else states.mean(0)
    for weight in dense or []:
        vector = weight @ vector
    return {"text": text, "tokens": ids, "vector": torch.nn.functional.normalize(vector, dim=0).tolist()}


@torch.inference_mode()
def ranked(model, tokenizer, query, document):
    """What is made of a query and a document."""
    ids, types = encoded(tokenizer, query, document)
    types = {"token_type_ids": torch.tensor([types])} if model.config.model_type == "bert" else {}
    logit = model(torch.tensor([ids]), **types).logits.item()
    return {"query": query, "document": document, "tokens": ids, "logit": logit}


@torch.inference_mode()
def answered(model, tokenizer, query, document):
    """What a model makes of the question whether a document answers a query."""
    prompt = (
        "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct provided. "
        'Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
        "<Instruct>: Given a web search query, retrieve relevant passages that answer the query\n"
        f"<Query>: {query}\n<Document>: {document}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    )
    ids = tokenizer.encode(prompt, add_special_tokens=False).ids
    logits = model(torch.tensor([ids])).logits[0, -1]
    yes, no = (tokenizer.token_to_id(it) for it in ["yes", "no"])
    return {"query": query, "document": document, "tokens": ids, "logit": (logits[yes] - logits[no]).item()}


def differences(name, llama_cpp):
    """Makes `name` elsewhere; yields what came out different."""
    with tempfile.TemporaryDirectory() as temporary:
        made = Path(temporary)
        make(name, llama_cpp, made)
        if (made / f"{name}.gguf").read_bytes() != (FOLDER / f"{name}.gguf").read_bytes():
            yield "the file"
        before, after = (json.loads((it / f"{name}.json").read_text()) for it in (FOLDER, made))
    for key, value in [("texts", "vector"), ("pairs", "logit")]:
        for a, b in zip(before.get(key, []), after.get(key, []), strict=True):
            # Another CPU may round otherwise.
            if a["tokens"] != b["tokens"] or np.abs(np.array(a[value]) - np.array(b[value])).max() > 2e-5:
                yield key


def main():
    """Makes or compares those that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("llama_cpp", type=Path, help="the folder with convert_hf_to_gguf.py")
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    parser.add_argument("names", nargs="*", help="encoders; all when none is given")
    arguments = parser.parse_args()
    deterministic()
    FOLDER.mkdir(exist_ok=True)
    wrong = 0
    for name in arguments.names or ENCODERS:
        if not arguments.check:
            make(name, arguments.llama_cpp, FOLDER)
            continue
        for difference in differences(name, arguments.llama_cpp):
            wrong += 1
            print(f"{name}: {difference}", file=sys.stderr)
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()

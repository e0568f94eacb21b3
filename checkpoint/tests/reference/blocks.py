"""Makes `../fixtures/blocks.gguf`: random blocks of every type, and what they stand for.

    pip install -r requirements.txt
    python blocks.py

Tensor `q4_k` has blocks of any bits, whose scales are finite; `q4_k.values` has what
`gguf.quants.dequantize` makes of them, in float32.
"""

from pathlib import Path

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFWriter
from gguf.quants import dequantize

OUT = Path(__file__).parent.parent / "fixtures" / "blocks.gguf"

# Where a block has its numbers in half precision, bytes.
HALVES = {
    "Q4_0": [0],
    "Q4_1": [0, 2],
    "Q5_0": [0],
    "Q5_1": [0, 2],
    "Q8_0": [0],
    "Q2_K": [80, 82],
    "Q3_K": [108],
    "Q4_K": [0, 2],
    "Q5_K": [0, 2],
    "Q6_K": [208],
    "IQ4_NL": [0],
    "IQ4_XS": [0],
    "MXFP4": [],
}
ROWS = 2
COLUMNS = 1024


def main():
    random = np.random.default_rng(18)
    writer = GGUFWriter(OUT, "blocks")
    writer.add_uint8("a.uint8", 200)
    writer.add_int8("a.int8", -100)
    writer.add_uint16("a.uint16", 60000)
    writer.add_int16("a.int16", -30000)
    writer.add_uint32("a.uint32", 4_000_000_000)
    writer.add_int32("a.int32", -2_000_000_000)
    writer.add_uint64("a.uint64", 2**64 - 1)
    writer.add_int64("a.int64", -(2**63))
    writer.add_float32("a.float32", 1e-5)
    writer.add_float64("a.float64", 0.1)
    writer.add_bool("a.bool", True)
    writer.add_string("a.string", "Grüße")
    writer.add_array("a.strings", ["", "ä", "bc"])
    writer.add_array("a.integers", [1, -2, 3])
    writer.add_array("a.floats", [0.5, -1.0])
    writer.add_array("a.booleans", [True, False])
    for name, halves in HALVES.items():
        kind = GGMLQuantizationType[name]
        elements, size = GGML_QUANT_SIZES[kind]
        blocks = random.integers(0, 256, (ROWS * COLUMNS // elements, size), dtype=np.uint8)
        for at in halves:
            bits = random.integers(0, 2**16, len(blocks), dtype=np.uint16)
            # No infinity and no NaN; a few zeros and subnormal numbers.
            bits = np.where(bits & 0x7C00 == 0x7C00, bits & 0x83FF, bits)
            bits[:2] = [0, 1]
            blocks[:, at : at + 2] = bits.astype("<u2").view(np.uint8).reshape(-1, 2)
        if name == "MXFP4":
            blocks[:4, 0] = [0, 1, 2, 255]
        data = blocks.reshape(ROWS, -1)
        writer.add_tensor(name.lower(), data, raw_dtype=kind)
        writer.add_tensor(f"{name.lower()}.values", dequantize(data, kind).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main()

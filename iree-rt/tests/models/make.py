"""Makes the models beside it, with what they answer: two that nobody wrote for IREE, but small.

    pip install iree-base-compiler[onnx]==3.13.0 onnxruntime jax
    python make.py

`recurrent.mlir` comes from ONNX, of the shape of a voice detector: a convolution along a line, and
an LSTM whose state goes in and out. `transformer.mlirbc` is what JAX exports of a vision
transformer: a portable artifact of StableHLO, in bytecode. Weights are random.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

# Or else the export says where this file is.
jax.config.update("jax_hlo_source_file_canonicalization_regex", ".*/")

HERE = Path(__file__).parent
RANDOM = np.random.default_rng(16)


def random(*shape):
    return RANDOM.normal(0, 0.5, shape).astype(np.float32)


def recurrent():
    """`main(x[1,16], state[2,1,8]) -> (probability[1,1], state[2,1,8])`."""
    hidden = 8
    constants = {
        "filters": random(hidden, 1, 4),
        "filters_bias": random(hidden),
        "weight": random(1, 4 * hidden, hidden),
        "recurrence": random(1, 4 * hidden, hidden),
        "bias": random(1, 8 * hidden),
        "out": random(hidden, 1),
        "channel": np.array([1]),
        "halves": np.array([1, 1]),
        "row": np.array([1, hidden]),
    }
    node = helper.make_node
    nodes = [
        node("Unsqueeze", ["x", "channel"], ["line"]),
        node("Conv", ["line", "filters", "filters_bias"], ["windows"], strides=[4]),
        node("Relu", ["windows"], ["positive"]),
        node("Transpose", ["positive"], ["steps"], perm=[2, 0, 1]),
        node("Split", ["state", "halves"], ["h", "c"], axis=0),
        node("LSTM", ["steps", "weight", "recurrence", "bias", "", "h", "c"],
             ["", "h_out", "c_out"], hidden_size=hidden),
        node("Concat", ["h_out", "c_out"], ["state_out"], axis=0),
        node("Reshape", ["h_out", "row"], ["last"]),
        node("MatMul", ["last", "out"], ["logit"]),
        node("Sigmoid", ["logit"], ["probability"]),
    ]
    value = helper.make_tensor_value_info
    state = [2, 1, hidden]
    graph = helper.make_graph(
        nodes,
        "main",
        [value("x", TensorProto.FLOAT, [1, 16]), value("state", TensorProto.FLOAT, state)],
        [
            value("probability", TensorProto.FLOAT, [1, 1]),
            value("state_out", TensorProto.FLOAT, state),
        ],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "recurrent.onnx"
        onnx.save(onnx.shape_inference.infer_shapes(model), file)
        importer = "iree.compiler.tools.import_onnx"
        subprocess.run(
            [sys.executable, "-m", importer, file, "-o", HERE / "recurrent.mlir"], check=True
        )
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    x, state, probabilities = random(3, 1, 16), np.zeros(state, np.float32), []
    for chunk in x:
        probability, state = session.run(None, {"x": chunk, "state": state})
        probabilities.append(probability)
    np.save(HERE / "recurrent_x.npy", x)
    np.save(HERE / "recurrent_probabilities.npy", np.array(probabilities))
    np.save(HERE / "recurrent_state.npy", state)


def transformer():
    """`main(image[1,16,16,3]) -> logits[1,10]`."""
    width, heads, patch, classes = 16, 2, 8, 10
    weights = {
        "patch": random(patch * patch * 3, width) / 4,
        "position": random(4, width),
        "qkv": random(width, 3 * width),
        "out": random(width, width),
        "up": random(width, 2 * width),
        "down": random(2 * width, width),
        "classes": random(width, classes),
    }

    def norm(x):
        return (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-6)

    def main(image):
        patches = image.reshape(2, patch, 2, patch, 3).swapaxes(1, 2).reshape(4, -1)
        x = patches @ weights["patch"] + weights["position"]
        q, k, v = jnp.split((norm(x) @ weights["qkv"]).reshape(4, heads, -1), 3, axis=-1)
        scores = jnp.einsum("qhd,khd->hqk", q, k) / np.sqrt(width // heads)
        mixed = jnp.einsum("hqk,khd->qhd", jax.nn.softmax(scores), v)
        x = x + mixed.reshape(4, width) @ weights["out"]
        x = x + jax.nn.gelu(norm(x) @ weights["up"]) @ weights["down"]
        return (norm(x).mean(0) @ weights["classes"])[None]

    image = random(1, 16, 16, 3)
    exported = jax.export.export(jax.jit(main), platforms=["cpu"])(image)
    (HERE / "transformer.mlirbc").write_bytes(exported.mlir_module_serialized)
    np.save(HERE / "transformer_image.npy", image)
    np.save(HERE / "transformer_logits.npy", np.asarray(jax.jit(main)(image)))


if __name__ == "__main__":
    recurrent()
    transformer()

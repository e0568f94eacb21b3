"""Makes an ONNX model ready for `iree-import-onnx`.

    python prepare.py model.onnx ready.onnx x=1,3,48,320 sr:=16000

`name=dims` gives an input its shape, `name:=integer` its value, after which it is no input any more.
ONNX Runtime then folds what is constant, in operators of the standard only, and what IREE 3.13
compiles slowly or not at all is written in operators that it compiles well. None of it changes what
the model computes. The function is called `main`. Needs `pip install onnx onnxruntime`.
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper


def main(source, destination, arguments):
    model = onnx.load(source)
    fix_inputs(model.graph, arguments)
    model = infer_shapes(fold(model))
    for node in list(model.graph.node):
        for rewrite in REWRITES:
            if replacement := rewrite(Graph(model.graph), node):
                at = list(model.graph.node).index(node)
                model.graph.node.remove(node)
                for new in reversed(replacement):
                    model.graph.node.insert(at, new)
                break
    model = infer_shapes(model)
    model.graph.name = "main"
    onnx.checker.check_model(model)
    onnx.save(model, destination)


def fix_inputs(graph, arguments):
    inputs = {value.name: value for value in graph.input}
    for argument in arguments:
        name, _, value = argument.partition("=")
        constant = name.endswith(":")
        name = name.removesuffix(":")
        if name not in inputs:
            sys.exit(f"no input `{name}`: the model has {', '.join(inputs)}")
        kind = inputs[name].type.tensor_type
        if constant:
            dtype = helper.tensor_dtype_to_np_dtype(kind.elem_type)
            graph.initializer.append(numpy_helper.from_array(np.array(int(value), dtype), name))
            graph.input.remove(inputs[name])
        else:
            kind.ClearField("shape")
            for dim in value.split(","):
                kind.shape.dim.add().dim_value = int(dim)


def fold(model):
    """The model as ONNX Runtime's basic optimisations leave it: no operators of its own."""
    for value in model.graph.output:
        value.type.tensor_type.ClearField("shape")
    del model.graph.value_info[:]
    with tempfile.TemporaryDirectory() as folder:
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
        options.optimized_model_filepath = str(Path(folder) / "folded.onnx")
        options.log_severity_level = 3
        onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        return onnx.load(options.optimized_model_filepath)


def infer_shapes(model):
    return onnx.shape_inference.infer_shapes(model, data_prop=True)


class Graph:
    """What the rewrites ask of a graph."""

    def __init__(self, graph):
        self.graph = graph
        values = [*graph.value_info, *graph.input, *graph.output]
        self.shapes = {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in values}
        self.constants = {t.name: t for t in graph.initializer}

    def shape(self, name):
        """The dimensions, or none if one of them is not known."""
        dims = self.shapes.get(name)
        return dims if dims and all(dims) else None

    def constant(self, name):
        return numpy_helper.to_array(self.constants[name]) if name in self.constants else None

    def add(self, node, what, array):
        name = f"{node.output[0]}_constant_{what}"
        self.graph.initializer.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
        return name


def attributes(node):
    return {a.name: helper.get_attribute_value(a) for a in node.attribute}


def trim_padding(graph, node):
    """Padding that no window reaches: IREE 3.13 does not compile it where the result has one row."""
    shape = graph.shape(node.input[0]) if node.op_type == "Conv" else None
    kind = attributes(node)
    if not shape or "pads" not in kind:
        return None
    rank = len(shape) - 2
    strides = kind.get("strides", [1] * rank)
    dilations = kind.get("dilations", [1] * rank)
    pads = list(kind["pads"])
    for i in range(rank):
        window = dilations[i] * (kind["kernel_shape"][i] - 1) + 1
        unused = (shape[2 + i] + pads[i] + pads[rank + i] - window) % strides[i]
        pads[rank + i] -= min(unused, pads[rank + i])
    if pads == list(kind["pads"]):
        return None
    trimmed = helper.make_node("Conv", node.input, node.output, node.name, **(kind | {"pads": pads}))
    return [trimmed]


def squeezed_convolution(graph, node):
    """A convolution of one pixel is a product: im2col leaves IREE 3.13 with what it cannot compile."""
    shape = graph.shape(node.input[0]) if node.op_type == "Conv" else None
    weight = graph.constant(node.input[1]) if shape else None
    kind = attributes(node)
    if weight is None or shape[2:] != [1] * len(shape[2:]) or kind.get("group", 1) != 1:
        return None
    if any(kind.get("pads", [])) or weight.shape[2:] != (1,) * (weight.ndim - 2):
        return None
    out, rank = node.output[0], len(shape)
    rows = graph.add(node, "rows", np.array([shape[0], shape[1]], np.int64))
    pixels = [shape[0], weight.shape[0]] + [1] * (rank - 2)
    pixels = graph.add(node, "pixels", np.array(pixels, np.int64))
    weight = graph.add(node, "weight", weight.reshape(weight.shape[0], -1).T)
    return [
        helper.make_node("Reshape", [node.input[0], rows], [out + "_in"]),
        helper.make_node("Gemm", [out + "_in", weight, *node.input[2:]], [out + "_out"]),
        helper.make_node("Reshape", [out + "_out", pixels], [out]),
    ]


def transposed_convolution(graph, node):
    """Where windows do not overlap, a product whose results are put beside each other: IREE spreads
    the input with zeros, and multiplies with them."""
    weight = graph.constant(node.input[1]) if node.op_type == "ConvTranspose" else None
    shape = graph.shape(node.input[0])
    kind = attributes(node)
    if weight is None or not shape or weight.ndim != 4 or kind.get("group", 1) != 1:
        return None
    inputs, outputs, height, width = weight.shape
    plain = not any(kind.get("pads", [])) and not any(kind.get("output_padding", []))
    if not plain or list(kind.get("strides", [])) != [height, width] or "output_shape" in kind:
        return None
    batch, _, rows, columns = shape
    out = node.output[0]
    # [in, out, h, w] becomes a 1x1 convolution to [out * h * w].
    weight = graph.add(node, "weight", weight.reshape(inputs, -1).T[:, :, None, None])
    bias = [graph.add(node, "bias", np.repeat(graph.constant(b), height * width))
            for b in node.input[2:]]
    apart = np.array([batch, outputs, height, width, rows, columns], np.int64)
    whole = np.array([batch, outputs, rows * height, columns * width], np.int64)
    return [
        helper.make_node("Conv", [node.input[0], weight, *bias], [out + "_product"],
                         kernel_shape=[1, 1]),
        helper.make_node("Reshape", [out + "_product", graph.add(node, "apart", apart)],
                         [out + "_apart"]),
        helper.make_node("Transpose", [out + "_apart"], [out + "_beside"],
                         perm=[0, 1, 4, 2, 5, 3]),
        helper.make_node("Reshape", [out + "_beside", graph.add(node, "whole", whole)], [out]),
    ]


def reflection(graph, node):
    """Reflected padding as a gather: IREE 3.13 does not compile the reflection."""
    if node.op_type != "Pad" or attributes(node).get("mode") != b"reflect":
        return None
    shape, pads = graph.shape(node.input[0]), graph.constant(node.input[1])
    if not shape or pads is None:
        return None
    nodes, name = [], node.input[0]
    for axis, dim in enumerate(shape):
        before, after = int(pads[axis]), int(pads[len(shape) + axis])
        if before or after:
            index = graph.add(node, f"index{axis}",
                              np.pad(np.arange(dim), (before, after), "reflect"))
            nodes.append(helper.make_node("Gather", [name, index], [f"{node.output[0]}_{axis}"],
                                          axis=axis))
            name = nodes[-1].output[0]
    if nodes:
        nodes[-1].output[0] = node.output[0]
    return nodes or None


# Elements that the windows of a line may take.
MOST_WINDOWS = 1 << 20


def line_convolution(graph, node):
    """A convolution along a line as a gather of its windows and one product: IREE 3.13 makes scalar
    code of convolutions of one dimension."""
    shape = graph.shape(node.input[0]) if node.op_type == "Conv" else None
    weight = graph.constant(node.input[1]) if shape else None
    kind = attributes(node)
    if weight is None or shape[0] != 1 or kind.get("group", 1) != 1:
        return None
    # A picture of one row or one column is a line, too.
    sizes, kernels = shape[2:], weight.shape[2:]
    along = [axis for axis, size in enumerate(kernels) if size > 1]
    if len(along) != 1 or any(n != 1 for axis, n in enumerate(sizes) if axis != along[0]):
        return None
    rank, along = len(sizes), along[0]
    pads = kind.get("pads", [0] * 2 * rank)
    before, after = pads[along], pads[rank + along]
    if sum(pads) != before + after:
        return None
    filters, channels, kernel = weight.shape[0], weight.shape[1], kernels[along]
    stride = kind.get("strides", [1] * rank)[along]
    dilation = kind.get("dilations", [1] * rank)[along]
    rows = (sizes[along] + before + after - dilation * (kernel - 1) - 1) // stride + 1
    if rows * channels * kernel > MOST_WINDOWS:
        return None
    out = node.output[0]

    def constant(what, array):
        return graph.add(node, what, array)

    def op(kind, inputs, output, **attributes):
        nodes.append(helper.make_node(kind, inputs, [output], **attributes))
        return output

    nodes, name = [], node.input[0]
    line = np.array([1, channels, sizes[along]], np.int64)
    if rank > 1:
        name = op("Reshape", [name, constant("line", line)], out + "_line")
    if before or after:
        zeros = [[constant(what, np.zeros((1, channels, size), np.float32))] if size else []
                 for what, size in (("before", before), ("after", after))]
        name = op("Concat", [*zeros[0], name, *zeros[1]], out + "_padded", axis=2)
    # [1, channels, rows, kernel], and then a row for each window.
    index = np.arange(rows)[:, None] * stride + np.arange(kernel) * dilation
    windows = op("Gather", [name, constant("index", index)], out + "_windows", axis=2)
    turned = op("Transpose", [windows], out + "_turned", perm=[0, 2, 1, 3])
    flat = constant("flat", np.array([rows, channels * kernel], np.int64))
    flat = op("Reshape", [turned, flat], out + "_rows")
    weight = constant("weight", weight.reshape(filters, channels * kernel).T)
    product = op("Gemm", [flat, weight, *node.input[2:]], out + "_product")
    back = op("Transpose", [product], out + "_back", perm=[1, 0])
    whole = [1, filters] + [rows if axis == along else 1 for axis in range(rank)]
    whole = np.array(whole, np.int64)
    op("Reshape", [back, constant("whole", whole)], out)
    return nodes


def lstm_step(graph, node):
    """An LSTM of one step, in its formulas: IREE 3.13 makes a loop of it on the host."""
    shape = graph.shape(node.input[0]) if node.op_type == "LSTM" else None
    kind = attributes(node)
    plain = {"direction": b"forward", "input_forget": 0, "layout": 0}
    if not shape or shape[0] != 1 or any(kind.get(k, v) != v for k, v in plain.items()):
        return None
    if {"activations", "clip"} & kind.keys() or len(node.input) < 7 or any(node.input[7:]):
        return None
    weight, recurrence, bias = (graph.constant(name) for name in node.input[1:4])
    if weight is None or recurrence is None or bias is None or node.input[4]:
        return None
    batch, hidden, out = shape[1], kind["hidden_size"], node.name or node.output[1]
    nodes = []

    def op(kind, inputs, output, **attributes):
        nodes.append(helper.make_node(kind, inputs, [f"{out}_{output}"], **attributes))
        return f"{out}_{output}"

    rows = graph.add(node, "rows", np.array([batch, -1], np.int64))
    x, h, c = (op("Reshape", [node.input[i], rows], name) for i, name in ((0, "x"), (5, "h"), (6, "c")))
    both = graph.add(node, "weights", np.concatenate([weight[0], recurrence[0]], axis=1).T)
    bias = graph.add(node, "bias", bias[0, : 4 * hidden] + bias[0, 4 * hidden :])
    gates = op("Gemm", [op("Concat", [x, h], "xh", axis=1), both, bias], "gates")
    parts = [f"{out}_{gate}" for gate in "iofg"]
    split = graph.add(node, "split", np.array([hidden] * 4, np.int64))
    nodes.append(helper.make_node("Split", [gates, split], parts, axis=1))
    i, o, f = (op("Sigmoid", [part], f"{part}_s") for part in parts[:3])
    g = op("Tanh", [parts[3]], "g_t")
    c = op("Add", [op("Mul", [f, c], "kept"), op("Mul", [i, g], "new")], "c_out")
    h = op("Mul", [o, op("Tanh", [c], "c_t")], "h_out")
    for index, (value, dims) in enumerate(
        ((h, [1, 1, batch, hidden]), (h, [1, batch, hidden]), (c, [1, batch, hidden]))
    ):
        if len(node.output) > index and node.output[index]:
            dims = graph.add(node, f"dims{index}", np.array(dims, np.int64))
            nodes.append(helper.make_node("Reshape", [value, dims], [node.output[index]]))
    return nodes


REWRITES = (
    squeezed_convolution,
    line_convolution,
    transposed_convolution,
    reflection,
    lstm_step,
    trim_padding,
)

if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    main(sys.argv[1], sys.argv[2], sys.argv[3:])

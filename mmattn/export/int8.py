"""Quantize ONNX files to 8 bits, and refuse what loses accuracy or gains no speed."""

import ast
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import numpy as np
import torch

from .errors import ExportError

MAX_DROP = 0.5  # points of AP, mIoU or accuracy, of 100
MIN_SPEEDUP = 1.3
MIN_IMAGES = 50  # on which the metric is measured, if there are as many
CALIBRATION_IMAGES = 32
ROUNDS = 15
OPERATORS = ('Conv', 'Gemm', 'MatMul')
SCOPES = 'pkg.torch.onnx.name_scopes'  # modules of a node, written by the exporter


def quantize(
    content: bytes,
    batches: Iterator[Sequence[np.ndarray]],
    keep_float: Sequence[str] = (),
) -> bytes:
    """Return an ONNX file whose convolutions and products of weights compute in int8.

    Products of two activations, as in attention, are left as they are. Their operands
    have 8 bits if they come from a quantized node.

    Args:
        content: an ONNX file of float32.
        batches: inputs of the graph, from which the ranges of activations are taken.
        keep_float: patterns of nodes or modules that stay in float32, such as
            'model.backbone.stages.*.attn'. `*` matches any text.

    Raises:
        ExportError: no node is left to quantize, or a pattern matches none.
    """
    import onnx
    from onnxruntime import quantization

    model = onnx.load_from_string(content)
    chosen = _chosen(model.graph, keep_float)
    names = [each.name for each in model.graph.input]

    class Reader(quantization.CalibrationDataReader):
        def get_next(self):
            inputs = next(batches, None)
            return inputs and dict(zip(names, inputs, strict=True))

    with TemporaryDirectory() as folder:
        path = Path(folder, 'model.onnx')
        quantization.quantize_static(
            model,
            path,
            Reader(),
            nodes_to_quantize=chosen,
            op_types_to_quantize=list(OPERATORS),
            per_channel=True,
            # Sums of two products overflow 16 bits on processors without VNNI.
            reduce_range=True,
            activation_type=quantization.QuantType.QUInt8,
            weight_type=quantization.QuantType.QInt8,
        )
        return path.read_bytes()


def _chosen(graph, keep_float: Sequence[str]) -> list[str]:
    """Return the names of the nodes to quantize."""
    weights = {each.name for each in graph.initializer}
    chosen, unused = [], set(keep_float)
    for node in graph.node:
        if node.op_type not in OPERATORS or node.input[1] not in weights:
            continue
        props = {each.key: each.value for each in node.metadata_props}
        places = [node.name, *ast.literal_eval(props.get(SCOPES, '[]'))]
        found = {p for p in keep_float if any(fnmatch(x, p) for x in places)}
        unused -= found
        if not found:
            chosen.append(node.name)
    if unused:
        raise ExportError(
            f'`keep_float`: no convolution or product of weights is in {min(unused)!r}'
        )
    if not chosen:
        raise ExportError('int8: the model has no node to quantize')
    return chosen


def speedup(run: Callable, other: Callable, inputs: Sequence) -> float:
    """Return how many times as fast the second function is, measured in turns."""
    seconds = [], []
    for i in range(ROUNDS + 1):
        for call, times in zip((run, other), seconds, strict=True):
            start = time.perf_counter()
            call(*inputs)
            if i:  # the first call prepares memory
                times.append(time.perf_counter() - start)
    return median(seconds[0]) / median(seconds[1])


def check(metrics: Mapping[str, tuple[float, float]], speed: float) -> str:
    """Return the figures of a quantized file as text.

    Args:
        metrics: value of PyTorch and of the quantized file by the name of the metric.

    Raises:
        ExportError: a metric drops by too much, the file is too slow, or there are no
            metrics.
    """
    if not metrics:
        raise ExportError(
            'int8: the accuracy is unknown, since the test set has no annotations here'
        )
    figures = (
        f'{speed:.2f} times as fast as float32 ({torch.get_num_threads()} threads)'
    )
    fails = [f'at least {MIN_SPEEDUP} times is required'] * (speed < MIN_SPEEDUP)
    for name, pair in metrics.items():
        expected, found = (100 * x if name.endswith('mAP') else x for x in pair)
        figures += f', {name} {found:.2f} for {expected:.2f}'
        if not expected - found <= MAX_DROP:
            fails.append(f'{name} may drop by {MAX_DROP} points')
    if fails:
        raise ExportError(f'int8 is refused: {figures}; {", ".join(fails)}')
    return f'int8: {figures}'

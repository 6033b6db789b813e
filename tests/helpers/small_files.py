"""Small exported files, made without an exporter."""

import numpy as np
import onnx

from mmattn.export.metadata import KEY, Metadata

RESIZE = dict(scale=[96, 64], keep_ratio=True, interpolation='bilinear', backend='cv2')
# The text format of ONNX, for graphs that need no exporter.
DETECTOR = """
<ir_version: 9, opset_import: ["" : 20]>
detector (float[2, 3, 64, 96] image, int64[2, 2] image_size)
    => (float[2, K, 5] dets, int64[2, K] labels) {
    size = Cast <to = 1> (image_size)
    height, width = Split <axis = 1, num_outputs = 2> (size)
    zero = Sub (height, height)
    mean = ReduceMean <keepdims = 0> (image)
    score = Add (zero, mean)
    row = Concat <axis = 1> (zero, zero, width, height, score)
    axis = Constant <value_ints = [1]> ()
    first = Unsqueeze (row, axis)
    minus = Constant <value_float = -1.0> ()
    ones = Sub (first, first)
    empty = Add (ones, minus)
    dets = Concat <axis = 1> (first, empty)
    last = Constant <value_ints = [4]> ()
    scores = Gather <axis = 2> (dets, last)
    last_axis = Constant <value_ints = [2]> ()
    flat = Squeeze (scores, last_axis)
    labels = Cast <to = 7> (flat)
}
"""
FEATURES = """
<ir_version: 9, opset_import: ["" : 20]>
features (float[B, 3, H, W] image) => (float[B, 3, h, w] feature0) {
    feature0 = AveragePool <kernel_shape = [8, 8], strides = [8, 8]> (image)
}
"""
SCORES = """
<ir_version: 9, opset_import: ["" : 20]>
scores (float[B, 3, 64, 96] image) => (float[B, 3] scores) {
    axes = Constant <value_ints = [2, 3]> ()
    scores = ReduceMean <keepdims = 0> (image, axes)
}
"""


def write(path, text, task, inputs=('image',), shape=(64, 96), **settings):
    model = onnx.parser.parse_model(text)
    onnx.checker.check_model(model)
    outputs = [each.name for each in model.graph.output]
    described = Metadata(task, list(inputs), outputs, list(shape), **settings)
    onnx.helper.set_model_props(model, {KEY: described.to_json()})
    onnx.save(model, path)
    return path


def noise(*shape, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (*shape, 3), np.uint8)

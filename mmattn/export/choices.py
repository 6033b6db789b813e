"""List what an export can be asked for. Importing it costs --help no time."""

SUFFIXES = {'onnx': '.onnx', 'pt2': '.pt2', 'openvino': '.xml'}  # of each format
PARTS = 'model', 'backbone'
DYNAMIC = None, 'batch', 'size'
DTYPES = 'float32', 'uint8'
# ONNX Runtime for browsers, from the npm registry.
ONNXRUNTIME_WEB = 'onnxruntime-web-1.30.0.tgz'

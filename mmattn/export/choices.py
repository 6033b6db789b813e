"""What an export can be asked for. It imports nothing, so that --help is fast."""

FORMATS = {'onnx': '.onnx', 'pt2': '.pt2', 'openvino': '.xml'}  # and their suffixes
PARTS = 'model', 'backbone'
DYNAMIC = None, 'batch', 'size'
DTYPES = 'float32', 'uint8'
# ONNX Runtime for browsers, from the npm registry.
ONNXRUNTIME_WEB = 'onnxruntime-web-1.30.0.tgz'

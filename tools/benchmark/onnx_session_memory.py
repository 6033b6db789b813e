"""Print the memory of an ONNX Runtime session in this process, for `onnx_memory.py`.

    python -m tools.benchmark.onnx_session_memory FILE [--arena]

The file has one input of fixed shape. Without --arena memory is allocated and freed for
each tensor, as needed.
"""

import json
import sys
from pathlib import Path

import numpy as np
import onnxruntime

MIB_OF_KIB = 1 / 1024
THREADS = 2


def resident(kind: str) -> float:
    """Return `VmRSS`, the resident memory, or `VmHWM`, its peak, in MiB."""
    for line in Path('/proc/self/status').read_text().splitlines():
        name, _, value = line.partition(':')
        if name == kind:
            return int(value.split()[0]) * MIB_OF_KIB
    raise OSError(f'/proc/self/status has no {kind}; this requires Linux')


def main(file: str, *flags: str):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = THREADS
    options.enable_cpu_mem_arena = options.enable_mem_pattern = '--arena' in flags
    session = onnxruntime.InferenceSession(
        file, options, providers=['CPUExecutionProvider']
    )
    (given,) = session.get_inputs()
    x = np.random.default_rng(0).standard_normal(given.shape, np.float32)
    Path('/proc/self/clear_refs').write_text('5')  # sets the peak to what is resident
    before = resident('VmRSS')
    session.run(None, {given.name: x})
    if 'torch' in sys.modules:
        raise RuntimeError('the memory of PyTorch would be counted')
    print(json.dumps(dict(session_mib=before, peak_mib=resident('VmHWM') - before)))


if __name__ == '__main__':
    main(*sys.argv[1:])

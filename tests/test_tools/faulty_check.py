"""Run `tools.benchmark.check` with a fault: `python -m faulty_check FAULT ...`."""

import sys
import time

from tools.benchmark import check

FAULT = sys.argv.pop(1)
FAULTY = 'ms_deform_attn, triton, float32, levels 1'  # starts the second of three


def compare(call, backend, dtype, device) -> dict:
    name = str(check.Comparison(call, backend, dtype))
    if not name.startswith(FAULTY):
        return {'error': 0.5, 'of': 'out', 'equal_runs': True, 'passed': True}
    if FAULT == 'resources':
        from triton.runtime.errors import OutOfResources

        raise OutOfResources(300_000, 232_448, 'shared memory')
    if FAULT == 'hang':
        time.sleep(1000)
    check.device_works = lambda: False
    raise RuntimeError('CUDA error: an illegal memory access was encountered')


check.compare = compare
sys.exit(check.main())

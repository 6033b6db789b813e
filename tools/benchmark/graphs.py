"""Device times through CUDA graphs, and the rates that bound them.

`python -m tools.benchmark.graphs` prints the rates of a GPU.
"""

import math
from collections.abc import Callable, Sequence

import torch
from torch.utils.benchmark import Timer

from mmattn.cli.terminal import run_main
from tools.benchmark import measure

COPIED = 1 << 28
MATRIX = 8192
WARM_UP = 3
REPLAYED = 16  # calls in a graph on the same tensors
MAX_COPIES = 256
EXPONENTIALS_PER_CLOCK = 16  # of a multiprocessor, by NVIDIA's programming guide


def copy_rate() -> float:
    """Measure the bytes per second of a large copy, counting reads and writes."""
    x = torch.empty(COPIED, dtype=torch.uint8, device='cuda')
    y = torch.empty_like(x)
    timer = Timer('y.copy_(x)', globals={'x': x, 'y': y})
    return 2 * x.numel() / timer.blocked_autorange(min_run_time=0.5).median


def matmul_rate(dtype: torch.dtype, precision: str = 'high') -> float:
    """Measure the FLOPs per second of a large product.

    float32 uses TF32, and with 'highest' no tensor cores.
    """
    x, y = torch.randn(2, MATRIX, MATRIX, device='cuda').to(dtype)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        timer = Timer('x @ y', globals={'x': x, 'y': y})
        return 2 * MATRIX**3 / timer.blocked_autorange(min_run_time=0.5).median
    finally:
        torch.set_float32_matmul_precision(before)


def exponential_rate() -> float:
    """Return exponentials per second of all special-function units at the top clock.

    It is infinite where PyTorch does not know the clock.
    """
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    clock = 1e3 * getattr(properties, 'clock_rate', math.inf)  # in kHz
    return EXPONENTIALS_PER_CLOCK * properties.multi_processor_count * clock


def rates_of(dtype: torch.dtype) -> dict[str, float]:
    """Return the rates that bound operators in a dtype, a second."""
    return {
        'bytes': copy_rate(),
        'flops': matmul_rate(dtype),
        'vector_flops': matmul_rate(torch.float32, precision='highest'),
        'exponentials': exponential_rate(),
    }


def num_copies(num_bytes: int) -> int:
    """Return how many inputs of a size a graph must visit to miss the cache."""
    cache = torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size
    return max(1, min(MAX_COPIES, -(-4 * cache // num_bytes)))


def capture(calls: Sequence[Callable[[], object]]) -> Callable[[], None]:
    """Record the kernels of the calls in order, and return their replay."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARM_UP):
            for call in calls:
                call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    return graph.replay


def main(argv: list[str] | None = None) -> int:
    args = measure.parse(measure.make_parser(__doc__, device='cuda'), argv)
    rates = rates_of(torch.bfloat16)
    for dtype in (torch.float16, torch.float32):
        rates[f'{dtype} flops'.removeprefix('torch.')] = matmul_rate(dtype)
    rows = ({'rate': name, 'per_second': rate} for name, rate in rates.items())
    measure.report(rows, args, title='Rates')
    return 0


if __name__ == '__main__':
    run_main(main)

"""Times operators beside their peers, forward and backward, in one run.

    python tools/benchmark/op.py --csv docs/benchmarks/landmark_attention_cpu.csv

Peers are interleaved and the median is kept. On CUDA the fraction of the physical floor
(least bytes over the measured copy rate) is reported too.
"""

import argparse
import csv
import platform
import sys
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.utils.benchmark import Timer

from mmattn.ops import landmark_attention

# (batch, tokens, heads, head width): the stages 3 of iViT-T at 224, 448 and 896 pixels.
SHAPES = [(8, 196, 10, 32), (2, 784, 10, 32), (1, 3136, 10, 32)]
LANDMARKS = 49


def landmark_case(shape, device, dtype) -> dict[str, tuple[Callable, list[Tensor]]]:
    """Callables and the tensors to differentiate, by the name of the peer."""
    B, N, M, D = shape
    generator = torch.Generator(device).manual_seed(0)

    def randn(*size, dtype=dtype):
        x = torch.randn(size, generator=generator, device=device, dtype=dtype)
        return x.requires_grad_()

    q, k, v = (randn(B, N, M, D) for _ in range(3))
    landmarks = [randn(B, LANDMARKS, M, D) for _ in range(2)]
    mixing = [randn(*s, dtype=torch.float32) for s in ((2 * M, M), (M, 2 * M)) * 2]
    inputs = [q, k, v, *landmarks]

    def sdpa(q, k, v):
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        return F.scaled_dot_product_attention(q, k, v)

    def run(backend):
        return lambda *tensors: landmark_attention(*tensors, backend=backend)

    fast = 'triton' if device == 'cuda' else 'cpu'
    return {
        f'landmark_attention, {fast}': (run(fast), inputs + mixing),
        'landmark_attention, reference': (run('reference'), inputs + mixing),
        f'landmark_attention, {fast}, no interaction': (run(fast), inputs),
        'scaled_dot_product_attention': (sdpa, [q, k, v]),
    }


def forward(call: Callable, tensors: list[Tensor]):
    with torch.no_grad():
        call(*tensors)


def forward_backward(call: Callable, tensors: list[Tensor]):
    torch.autograd.grad(call(*tensors).sum(), tensors)


def least_bytes(shape, dtype: torch.dtype) -> int:
    """q, k, v read and the output written once; landmarks beside them."""
    B, N, M, D = shape
    return B * (4 * N + 2 * LANDMARKS) * M * D * dtype.itemsize


def copy_rate(device: str) -> float:
    """Bytes a second of a large copy, read and write counted."""
    x = torch.empty(1 << 28, dtype=torch.uint8, device=device)
    y = torch.empty_like(x)
    timer = Timer('y.copy_(x)', globals={'x': x, 'y': y})
    return 2 * x.numel() / timer.blocked_autorange(min_run_time=0.5).median


def measure(device: str, dtype: torch.dtype, rounds: int, seconds: float):
    rate = copy_rate(device) if device == 'cuda' else None
    for shape in SHAPES:
        cases = landmark_case(shape, device, dtype)
        for mode in (forward, forward_backward):
            times: dict[str, list[float]] = {name: [] for name in cases}
            for _ in range(rounds):
                for name, (call, tensors) in cases.items():
                    timer = Timer(
                        'mode(call, tensors)',
                        globals={'mode': mode, 'call': call, 'tensors': tensors},
                        num_threads=torch.get_num_threads(),
                    )
                    run = timer.blocked_autorange(min_run_time=seconds)
                    times[name].append(run.median)
            for name, values in times.items():
                seconds_taken = sorted(values)[len(values) // 2]
                row = {
                    'operator': name,
                    'B x N x M x D': ' x '.join(map(str, shape)),
                    'pass': mode.__name__,
                    'ms': f'{1e3 * seconds_taken:.3f}',
                }
                if rate is not None:
                    floor = least_bytes(shape, dtype) / rate
                    row['floor / time'] = f'{floor / seconds_taken:.3f}'
                yield row


def machine(device: str) -> str:
    if device == 'cuda':
        return torch.cuda.get_device_name()
    return f'{platform.machine()} CPU, {torch.get_num_threads()} threads'


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('--device', default='cpu', choices=['cpu', 'cuda'])
    parser.add_argument(
        '--dtype', default='float32', choices=['float32', 'float16', 'bfloat16']
    )
    parser.add_argument('--rounds', type=int, default=5)
    parser.add_argument('--seconds', type=float, default=0.2, help='of each timing')
    parser.add_argument('--csv', type=Path, help='file to write the rows to')
    args = parser.parse_args()
    dtype = getattr(torch, args.dtype)
    rows = list(measure(args.device, dtype, args.rounds, args.seconds))
    about = {'dtype': args.dtype, 'torch': torch.__version__}
    about['on'] = machine(args.device)
    table = Table(title=', '.join(about.values()), box=None)
    for name in rows[0]:
        table.add_column(name)
    for row in rows:
        table.add_row(*row.values())
    Console().print(table)
    if args.csv is not None:
        args.csv.parent.mkdir(parents=True, exist_ok=True)
        with args.csv.open('w', newline='') as file:
            writer = csv.DictWriter(file, [*rows[0], *about])
            writer.writeheader()
            writer.writerows(row | about for row in rows)
    return 0


if __name__ == '__main__':
    sys.exit(main())

"""Measure the memory that exported attention layers need in ONNX Runtime.

    python -m tools.benchmark.onnx_memory --csv docs/benchmarks/onnx_memory.csv

Each layer is exported for each map and run once, in a process of its own that loads no
PyTorch. `session_mib` is the resident memory of that process with the loaded file and
the input. `peak_mib` is the most that the call adds to it, and `peak_arena_mib` the
same with ONNX Runtime's arena, its default, which allocates more at a time than is
needed. `growth` is `peak_mib` over the first map's, divided by the ratio of their
tokens: 1 is linear growth.

Resident memory is read from /proc, so this requires Linux.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from mmattn.cli.terminal import run_main
from mmattn.export import Metadata
from mmattn.export.write import export_program, serialize
from mmattn.models.layers import (
    InteractiveAttention,
    MaskedAttention,
    RelativeMaskedAttention,
)
from tools.benchmark import measure
from tools.benchmark.onnx_session_memory import THREADS

CHANNELS, HEADS = 96, 3  # as in the first stage of H-MaiT-T
LAYERS: dict[str, Callable[[], nn.Module]] = {
    'landmark attention': lambda: InteractiveAttention(CHANNELS, HEADS),
    'hard masks': lambda: MaskedAttention(CHANNELS, HEADS, HEADS),
    'hard masks, position bias': lambda: RelativeMaskedAttention(
        CHANNELS, HEADS, HEADS
    ),
}
MAPS = (56, 56), (100, 167), (200, 334)
QUICK_MAPS = (32, 32), (96, 96)
PROBE = Path(__file__).with_name('onnx_session_memory.py')
# The C library returns blocks from this size on to the system when they are freed.
BLOCK = {'MALLOC_MMAP_THRESHOLD_': str(2**16)}


class OnMap(nn.Module):
    """A layer on a map of tokens, shape (1, H, W, C) in and out."""

    task, input_names, output_names = 'features', ('map',), ('out',)

    def __init__(self, layer: nn.Module):
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        if isinstance(self.layer, MaskedAttention):
            return self.layer(x.flatten(1, 2), x.shape[1:3]).view_as(x)
        return self.layer(x)


def write_layer(name: str, size: Sequence[int], file: Path):
    """Export a layer for maps of one size."""
    module = OnMap(LAYERS[name]()).requires_grad_(False).eval()
    metadata = Metadata(
        module.task, list(module.input_names), list(module.output_names), list(size)
    )
    program = export_program(module, (torch.randn(1, *size, CHANNELS),))
    file.write_bytes(serialize(program, metadata, 'onnx'))


def probe(file: Path, *flags: str) -> dict:
    """Return the memory of a session in a new process."""
    command = [sys.executable, str(PROBE), str(file), *flags]
    environment = os.environ | BLOCK
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        raise RuntimeError(f'{PROBE} failed: {done.stderr}')
    return json.loads(done.stdout)


def rows(maps: Sequence[Sequence[int]], folder: Path) -> Iterator[dict]:
    for name in LAYERS:
        first = None
        for size in maps:
            measure.progress(f'{name}, {size[0]} x {size[1]}')
            file = folder / 'layer.onnx'
            write_layer(name, size, file)
            found, tokens = probe(file), size[0] * size[1]
            per_token = found['peak_mib'] / tokens
            first = first or per_token
            yield {
                'layer': name,
                'height': size[0],
                'width': size[1],
                'tokens': tokens,
                'session_mib': measure.rounded(found['session_mib']),
                'peak_mib': measure.rounded(found['peak_mib']),
                'growth': measure.rounded(per_token / first, 3),
                'peak_arena_mib': measure.rounded(probe(file, '--arena')['peak_mib']),
            }


def main(argv: list[str] | None = None) -> int:
    args = measure.parse(measure.make_parser(__doc__, device=None), argv)
    about = dict(dtype='float32', batch=1, threads=THREADS)
    title = f'{CHANNELS} channels, {HEADS} heads'
    with tempfile.TemporaryDirectory() as folder:
        found = rows(QUICK_MAPS if args.quick else MAPS, Path(folder))
        measure.report(found, args, 'onnxruntime', title=title, **about)
    return 0


if __name__ == '__main__':
    run_main(main)

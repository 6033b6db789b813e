"""Compare a model in each runtime with PyTorch, and write docs/runtimes.csv.

    python -m tools.dev.runtime_table CONFIG CHECKPOINT --shape 256 256
    python -m tools.dev.runtime_table CONFIG CHECKPOINT --shape 224 224 --images FILE...

The images come from the config's test set or from --images, which have no
annotations. `difference` is the largest one of an output over the largest value of that
output in PyTorch, for the boxes and scores of detectors apart. `ms` is the time of the
processor for an image, with one thread, the median of calls that take turns: other work
on the machine changes it little. A cell that has no figure has the reason.

The rows of other models are kept. The table of docs/export.md is written anew.
"""

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from statistics import median

import torch
from mmengine.registry import DefaultScope

from mmattn.cli.terminal import positive
from mmattn.engine.model import build_model
from mmattn.export import ExportError, Metadata
from mmattn.export.api import on_arrays
from mmattn.export.comparison import LabeledImages, compare
from mmattn.export.graphs import graph_of
from mmattn.export.inputs import padded
from mmattn.export.int8 import CALIBRATION_IMAGES, quantize
from mmattn.export.openvino_ir import convert
from mmattn.export.preprocessing import (
    class_names,
    image_steps,
    normalization,
    raw_channels,
)
from mmattn.export.runner import Runner
from mmattn.export.verification import (
    boxes_and_scores,
    in_order_of,
    is_detector,
    verification_inputs,
)
from mmattn.export.write import difference, export_program, open_session, serialize
from mmattn.files import read_config_file
from tools.benchmark.measure import read_csv, write_csv
from tools.dev.readme_tables import markdown, replace_between

DOCS = Path(__file__).parents[2] / 'docs'
MARKS = '<!-- runtimes -->\n', '<!-- end of runtimes -->'
FIELDS = 'model', 'runtime', 'difference', 'metric', 'ms', 'images', 'versions'
RUNTIMES = 'torch.export', 'ONNX Runtime', 'ONNX Runtime, int8', 'OpenVINO'
ROUNDS = 5
COMPARED = 10  # images whose outputs are compared


class Case:
    """A model in PyTorch, and the images on which it is compared."""

    def __init__(self, args: argparse.Namespace):
        self.cfg = read_config_file(args.config)
        self.model, loaded = build_model(self.cfg, args.checkpoint)
        self.graph = graph_of(self.model)
        pixels = normalization(self.model, raw_channels(self.cfg))
        self.metadata = Metadata(
            task=self.graph.task,
            inputs=list(self.graph.input_names),
            outputs=list(self.graph.output_names),
            shape=padded(args.shape, pixels['pad']['divisor']),
            **pixels,
            **image_steps(self.cfg),
            **class_names(self.cfg, loaded),
            **getattr(self.graph, 'metadata', {}),
        )
        self.labeled = None
        if args.images is None:
            with DefaultScope.overwrite_default_scope(self.cfg.get('default_scope')):
                self.labeled = LabeledImages(self.cfg, args.num_images)
        self.paths = args.images or self.labeled.paths
        self.batches = [self.inputs(path) for path in self.paths[:COMPARED]]
        self.program = export_program(self.graph, self.batches[0])
        with torch.no_grad():
            self.expected = [self.graph(*inputs) for inputs in self.batches]

    @cached_property
    def onnx(self) -> bytes:
        """Return the ONNX file. A second conversion of the program may fail."""
        return serialize(self.program, self.metadata, 'onnx')

    def inputs(self, path: str | Path) -> tuple[torch.Tensor, ...]:
        return verification_inputs(path, self.graph, self.metadata)

    def session(self, runtime: str) -> Callable:
        """Return what runs the model in a runtime."""
        if runtime == RUNTIMES[0]:
            return open_session(serialize(self.program, self.metadata, 'pt2'), 'pt2')
        if runtime == RUNTIMES[3]:
            return open_session(convert(self.onnx, self.metadata), 'openvino')
        content = self.onnx
        if runtime == RUNTIMES[2]:
            step = -(-len(self.paths) // CALIBRATION_IMAGES)
            content = quantize(content, map(self.inputs, self.paths[::step]))
        return open_session(content, 'onnx')

    def difference(self, session: Callable) -> str:
        """Return the largest difference of an output from PyTorch."""
        largest = 0.0
        for inputs, expected in zip(self.batches, self.expected, strict=True):
            found = session(*inputs)
            if is_detector(self.graph):
                found = boxes_and_scores(in_order_of(expected, found))
                expected = boxes_and_scores(expected)
            pairs = zip(found, expected, strict=True)
            largest = max(largest, *(difference(*pair) for pair in pairs))
        return f'{largest:.1e}'

    def metric(self, session: Callable) -> str:
        """Return each metric, with PyTorch's behind it."""
        if self.labeled is None:
            return 'no annotations'
        runner = Runner(on_arrays(session), self.metadata)
        found = compare(self.model, runner, self.cfg, self.labeled).metrics
        return '; '.join(f'{k} {b:.4f} ({a:.4f})' for k, (a, b) in found.items())

    @torch.no_grad()
    def milliseconds(self, session: Callable) -> str:
        """Return the time of an image, with PyTorch's behind it."""
        times = [], []
        for _ in range(ROUNDS + 1):
            for call, seconds in zip((session, self.graph), times, strict=True):
                start = time.process_time()
                call(*self.batches[0])
                seconds.append(time.process_time() - start)
        found, expected = (1e3 * median(seconds[1:]) for seconds in times)
        return f'{found:.1f} ({expected:.1f})'


def rows(case: Case, name: str, runtimes: Sequence[str]) -> Iterator[dict]:
    """Yield the row of each runtime."""
    for runtime in runtimes:
        row = dict.fromkeys(FIELDS, '') | dict(model=name, runtime=runtime)
        row['images'] = len(case.paths)
        row['versions'] = ', '.join(
            f'{package} {version(package)}'
            for package in ('torch', 'onnxruntime', 'openvino')
        )
        try:
            session = case.session(runtime)
            row['difference'] = case.difference(session)
            row['ms'] = case.milliseconds(session)
            row['metric'] = case.metric(session)
        except (ExportError, RuntimeError) as error:
            row['difference'] = ' '.join(str(error).split())[:200]
        yield row


def table(found: Sequence[dict]) -> str:
    """Return the table of the page."""
    head = 'model', 'runtime', 'difference', 'metric (PyTorch)', 'ms (PyTorch)'
    columns = FIELDS[:5]
    lines = [[row[column].replace('|', ' ') for column in columns] for row in found]
    kinds = sorted({row['versions'] for row in found})
    return f'Measured with {"; ".join(kinds)}.\n\n' + markdown([head, *lines])


def main(argv: list[str] | None = None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('config', type=Path)
    parser.add_argument('checkpoint')
    parser.add_argument('--shape', nargs=2, type=positive, required=True)
    parser.add_argument('--images', nargs='+', help='default: the test set')
    parser.add_argument('--num-images', type=positive, default=60)
    parser.add_argument('--runtimes', nargs='+', choices=RUNTIMES, default=RUNTIMES)
    parser.add_argument('--docs', type=Path, default=DOCS, help='default: docs/')
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    path, name = args.docs / 'runtimes.csv', args.config.stem
    kept = {
        (row['model'], row['runtime']): row
        for row in (read_csv(path) if path.is_file() else [])
    }
    for row in rows(Case(args), name, args.runtimes):
        print(row, flush=True)
        kept[name, row['runtime']] = row
        write_csv(path, list(kept.values()), {})
    replace_between(args.docs / 'export.md', *MARKS, table(read_csv(path)))


if __name__ == '__main__':
    main()

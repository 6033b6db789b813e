"""Export every backbone and write docs/export.csv and the tables of docs/export.md.

The smaller presets are exported at two sizes, one of them odd, and with dynamic sizes.
The largest preset of each family is exported only at the odd size. All have random
weights. A difference is the largest one of any feature map, relative to the map's
largest value in PyTorch.

The csv is written after each row, and rows in it are kept: delete them, or pass
--again, to measure them anew.
"""

import argparse
import copy
import io
import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import onnx
import onnxruntime
import torch
from torch import Tensor, nn

import mmattn.export
from mmattn.export import ExportError, Metadata
from mmattn.export.api import export_graph
from mmattn.export.graphs.backbone import Backbone
from mmattn.export.write import (
    difference,
    export_program,
    open_session,
    serialize,
)
from mmattn.models import backbones
from tools.benchmark.measure import read_csv, write_csv
from tools.dev.readme_tables import markdown, replace_between

SMALL = (
    *('DAT nano', 'DATPlusPlus nano', 'HMaiT nano', 'IViT nano'),
    *('LiSANet hybrid_nano', 'LiSANet isotropic', 'MaiT xtiny, sch1'),
    *('MaiT xtiny, soft', 'MaskedCaiT xxs24, sch1', 'PVT nano', 'PVTv2 b0'),
    *('PVTv2 b2_li', 'ViT tiny, mhsa', 'ViT tiny, imhsa'),
)
# The largest preset of each family.
LARGE = (
    *('DAT base', 'DATPlusPlus base', 'HMaiT small', 'IViT base', 'LiSANet base'),
    *('LiSANet hybrid_base', 'MaiT small, sch1', 'MaskedCaiT s24, sch1', 'PVT large'),
    *('PVTv2 b5', 'ViT small, imhsa'),
)
CASES = SMALL + LARGE
OPTIONS = {
    'isotropic': dict(out_indices=0),
    'sch1': dict(masking='sch1'),
    'soft': dict(masking='soft'),
    'mhsa': dict(attention='mhsa'),
    'imhsa': dict(attention='imhsa'),
}
SIZES = ((224, 224), (205, 235))
NOISE = 0.02  # added to parameters, since some start at 0
FIELDS = (
    *('model', 'height', 'width', 'torch.export', 'torch.export float64', 'pt2'),
    *('ONNX nodes', 'ONNX Runtime', 'dynamic batch', 'dynamic size', 'refused'),
    'versions',
)
SHOWN = 'pt2', 'ONNX Runtime'
DOCS = Path(__file__).parents[2] / 'docs'
MARKS = '<!-- exports -->\n', '<!-- end of exports -->'


def built(name: str) -> nn.Module:
    """Return a backbone of `CASES` with weights of which none is 0."""
    torch.manual_seed(0)
    kind, *words = re.split(', | ', name)
    options = OPTIONS.get(words[-1], {})
    model = getattr(backbones, kind)(arch=words[0], **options)
    with torch.no_grad():
        for param in model.parameters():
            param.add_(NOISE * torch.randn_like(param))
    return Backbone(model).requires_grad_(False).eval()


def largest(run: Callable, expected: Iterable[Tensor], *inputs: Tensor) -> str:
    """Return the largest difference of the maps that a function returns."""
    pairs = zip(run(*inputs), expected, strict=True)
    return f'{max(difference(*pair) for pair in pairs):.1e}'


def measure(name: str, size: tuple[int, int]) -> dict:
    """Return the row of a model at a size; `refused` has the first reason."""
    graph = built(name)
    row = dict.fromkeys(FIELDS, '') | dict(model=name, height=size[0], width=size[1])
    row['versions'] = (
        f'PyTorch {torch.__version__}, ONNX Runtime {onnxruntime.__version__}'
    )
    image = torch.randn(1, 3, *size)
    with torch.no_grad():
        expected = graph(image)
    metadata = Metadata(
        'features', ['image'], [f'feature{i}' for i in range(len(expected))], [*size]
    )
    try:
        program = export_program(graph, (image,))
        row['torch.export'] = largest(decomposed(program), expected, image)
        if name not in LARGE:
            row['torch.export float64'] = difference64(graph, image.double())
        content = serialize(program, metadata, 'pt2')
        row['pt2'] = largest(open_session(content, 'pt2'), expected, image)
        content = serialize(program, metadata, 'onnx')
        row['ONNX nodes'] = len(onnx.load(io.BytesIO(content)).graph.node)
        row['ONNX Runtime'] = largest(open_session(content, 'onnx'), expected, image)
    except (ExportError, RuntimeError, ValueError) as error:
        row['refused'] = str(error)
    if size == SIZES[0] and name not in LARGE:
        for dynamic in ('batch', 'size'):
            row[f'dynamic {dynamic}'] = dynamic_result(graph, metadata, dynamic)
    return row


def difference64(graph: nn.Module, image: Tensor) -> str:
    """Return the difference of torch.export in float64."""
    double = copy.deepcopy(graph).double()
    with torch.no_grad():
        expected = double(image)
    program = export_program(double, (image,))
    return largest(decomposed(program), expected, image)


def decomposed(program: torch.export.ExportedProgram) -> Callable:
    """Return the program in only PyTorch's operators."""
    return program.run_decompositions(mmattn.export.decompositions()).module()


def dynamic_result(graph: nn.Module, metadata: Metadata, dynamic: str) -> str:
    """Return what a dynamic ONNX file accepts, or the reason why none is written.

    This is 'yes', or with a dynamic size its least size. Writing includes a comparison
    with PyTorch at other sizes.
    """
    try:
        _, written = export_graph(graph, replace(metadata, dynamic=dynamic), 'onnx')
    except ExportError as error:
        return str(error)
    return f'from {written.least[0]} x {written.least[1]}' if written.least else 'yes'


def tables(rows: list[dict]) -> str:
    """Return the table of the page, a line for each model, and reasons of refusals."""
    models: dict[str, list[dict]] = {}
    for row in rows:
        models.setdefault(row['model'], []).append(row)
    lines = [['model', *SHOWN, 'dynamic batch', 'dynamic size']]
    reasons = []
    for model, group in models.items():
        dynamic = next((row for row in group if row['dynamic batch']), None)
        kinds = ['dynamic batch', 'dynamic size']
        cells = [cell(dynamic[kind]) if dynamic else 'not tried' for kind in kinds]
        lines.append([model, *(largest_cell(group, way) for way in SHOWN), *cells])
        for row in group:
            found = [('fixed sizes', row['refused'])]
            found += [(kind, row[kind]) for kind in kinds]
            reasons += [
                f'- {model} at {row["height"]} x {row["width"]}, {kind}: '
                f'{re.sub(r"[|<>`*_]", " ", text)[:200]}\n'
                for kind, text in found
                if cell(text) == 'refused'
            ]
    text = (
        f'Measured with {rows[0]["versions"]}. A dynamic size starts from the size in '
    )
    text += 'the table.\n\n' + markdown(lines)
    return text + ('\nRefused:\n\n' + ''.join(reasons) if reasons else '')


def largest_cell(group: list[dict], way: str) -> str:
    """Return the largest difference of a model at its sizes."""
    if any(row['refused'] for row in group):
        return 'refused'
    return max((row[way] for row in group), key=float)


def cell(text: str) -> str:
    """Return what a file accepts as it is, and 'refused' for a reason."""
    return text if re.fullmatch(r'|yes|from \d+ x \d+', text) else 'refused'


def main(argv: list[str] | None = None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        '--again', nargs='+', choices=CASES, default=[], help='models to measure anew'
    )
    parser.add_argument('--models', nargs='+', choices=CASES, default=CASES)
    parser.add_argument('--docs', type=Path, default=DOCS, help='default: docs/')
    args = parser.parse_args(argv)
    path = args.docs / 'export.csv'
    rows = {
        (row['model'], int(row['height']), int(row['width'])): row
        for row in (read_csv(path) if path.is_file() else [])
        if row['model'] not in args.again
    }
    for name in args.models:
        for size in SIZES[name in LARGE :]:
            if (name, *size) not in rows:
                row = rows[name, size[0], size[1]] = measure(name, size)
                print({key: str(value)[:150] for key, value in row.items()}, flush=True)
                write_csv(path, [rows[key] for key in sorted(rows)], {})
    replace_between(args.docs / 'export.md', *MARKS, tables(read_csv(path)))


if __name__ == '__main__':
    main()

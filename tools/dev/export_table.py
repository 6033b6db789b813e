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
import csv
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
from tools.dev.readme_tables import markdown, replace_between

CASES = {
    'DAT nano': dict(type='DAT', arch='nano'),
    'DATPlusPlus nano': dict(type='DATPlusPlus', arch='nano'),
    'HMaiT nano': dict(type='HMaiT', arch='nano'),
    'IViT nano': dict(type='IViT', arch='nano'),
    'LiSANet hybrid-nano': dict(type='LiSANet', arch='hybrid-nano'),
    'LiSANet isotropic': dict(type='LiSANet', arch='isotropic', out_indices=0),
    'MaiT xtiny, sch1': dict(type='MaiT', arch='xtiny', masking='sch1'),
    'MaiT xtiny, soft': dict(type='MaiT', arch='xtiny', masking='soft'),
    'MaskedCaiT xxs24, sch1': dict(type='MaskedCaiT', arch='xxs24', masking='sch1'),
    'PVT nano': dict(type='PVT', arch='nano'),
    'PVTv2 b0': dict(type='PVTv2', arch='b0'),
    'PVTv2 b2-li': dict(type='PVTv2', arch='b2-li'),
    'ViT tiny, mhsa': dict(type='ViT', arch='tiny', attention='mhsa'),
    'ViT tiny, imhsa': dict(type='ViT', arch='tiny', attention='imhsa'),
}
# The largest preset of each family.
LARGE = {
    'DAT base': dict(type='DAT', arch='base'),
    'DATPlusPlus base': dict(type='DATPlusPlus', arch='base'),
    'HMaiT small': dict(type='HMaiT', arch='small'),
    'IViT base': dict(type='IViT', arch='base'),
    'LiSANet base': dict(type='LiSANet', arch='base'),
    'LiSANet hybrid-base': dict(type='LiSANet', arch='hybrid-base'),
    'MaiT small, sch1': dict(type='MaiT', arch='small', masking='sch1'),
    'MaskedCaiT s24, sch1': dict(type='MaskedCaiT', arch='s24', masking='sch1'),
    'PVT large': dict(type='PVT', arch='large'),
    'PVTv2 b5': dict(type='PVTv2', arch='b5'),
    'ViT small, imhsa': dict(type='ViT', arch='small', attention='imhsa'),
}
CASES |= LARGE
SIZES = ((224, 224), (205, 235))
NOISE = 0.02  # added to parameters, since some start at 0
FIELDS = (
    *('model', 'height', 'width', 'torch.export', 'torch.export float64', 'pt2'),
    *(
        'ONNX nodes',
        'ONNX Runtime',
        'dynamic batch',
        'dynamic size',
        'refused',
        'versions',
    ),
)
SHOWN = ('torch.export', 'torch.export float64', 'pt2', 'ONNX Runtime')
DOCS = Path(__file__).parents[2] / 'docs'
MARKS = '<!-- table -->\n', '<!-- end of table -->'


def built(case: dict) -> nn.Module:
    """Return a backbone with weights of which none is 0."""
    torch.manual_seed(0)
    settings = dict(case)
    model = getattr(backbones, settings.pop('type'))(**settings)
    with torch.no_grad():
        for param in model.parameters():
            param.add_(NOISE * torch.randn_like(param))
    return Backbone(model).requires_grad_(False).eval()


def sizes_of(name: str) -> tuple[tuple[int, int], ...]:
    """Return the sizes that a model is exported at."""
    return SIZES[1:] if name in LARGE else SIZES


def largest(run: Callable, expected: Iterable[Tensor], *inputs: Tensor) -> str:
    """Return the largest difference of the maps that a function returns."""
    pairs = zip(run(*inputs), expected, strict=True)
    return f'{max(difference(*pair) for pair in pairs):.1e}'


def measure(name: str, size: tuple[int, int]) -> dict:
    """Return the row of a model at a size; `refused` has the first reason."""
    graph = built(CASES[name])
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


def read(path: Path) -> list[dict]:
    if not path.exists():
        return []
    with path.open(newline='') as file:
        return list(csv.DictReader(file))


def write(path: Path, rows: Iterable[dict]):
    with path.open('w', newline='') as file:
        writer = csv.DictWriter(file, FIELDS, lineterminator='\n')
        writer.writeheader()
        writer.writerows(rows)


def tables(rows: list[dict]) -> str:
    """Return the tables of the page, and the reasons of refusals."""
    head = ('model', 'size', *SHOWN, 'ONNX nodes')
    fixed = [
        [row['model'], f'{row["height"]} x {row["width"]}']
        + [row[name] or missing(row) for name in (*SHOWN, 'ONNX nodes')]
        for row in rows
    ]
    dynamic, reasons = [], []
    for row in rows:
        found = [('fixed sizes', row['refused'])]
        if row['dynamic batch']:
            kinds = ['batch', 'size']
            found += [(f'dynamic {kind}', row[f'dynamic {kind}']) for kind in kinds]
            cells = [cell(row[f'dynamic {kind}']) for kind in kinds]
            dynamic.append([row['model'], *cells])
        place = f'{row["model"]} at {row["height"]} x {row["width"]}'
        reasons += [
            f'- {place}, {kind}: {short(text)}\n'
            for kind, text in found
            if cell(text) == 'refused'
        ]
    text = f'Measured with {rows[0]["versions"]}.\n\n' + markdown([head, *fixed])
    text += (
        '\nFiles with a dynamic batch or size, run at other sizes. A dynamic size '
        'starts from\nthe size in the table:\n\n'
    )
    text += markdown([['model', 'dynamic batch', 'dynamic size'], *dynamic])
    return text + ('\nRefused:\n\n' + ''.join(reasons) if reasons else '')


def missing(row: dict) -> str:
    """Return what stands where a row has no number."""
    return 'refused' if row['refused'] else 'not tried'


def cell(text: str) -> str:
    """Return what a file accepts as it is, and 'refused' for a reason."""
    return text if re.fullmatch(r'|yes|from \d+ x \d+', text) else 'refused'


def short(text: str) -> str:
    """Return the beginning of a reason, without what Markdown would change."""
    return re.sub(r'[|<>`*_]', ' ', text)[:200]


def main(argv: list[str] | None = None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        '--again', nargs='+', choices=CASES, default=[], help='models to measure anew'
    )
    parser.add_argument('--models', nargs='+', choices=CASES, default=list(CASES))
    parser.add_argument('--docs', type=Path, default=DOCS, help='default: docs/')
    args = parser.parse_args(argv)
    path = args.docs / 'export.csv'
    rows = {
        (row['model'], int(row['height']), int(row['width'])): row
        for row in read(path)
        if row['model'] not in args.again
    }
    for name in args.models:
        for size in sizes_of(name):
            if (name, *size) not in rows:
                row = rows[name, size[0], size[1]] = measure(name, size)
                print({key: str(value)[:150] for key, value in row.items()}, flush=True)
                write(path, [rows[key] for key in sorted(rows)])
    replace_between(args.docs / 'export.md', *MARKS, tables(read(path)))


if __name__ == '__main__':
    main()

"""Tables in Markdown of what runs and benchmarks measured."""

import csv
import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from mmattn.errors import UserError

BLOCK = re.compile(
    r'(?P<begin><!-- (?P<kind>[a-z]+)(?P<arguments>[^>]*?) -->\n).*?'
    r'(?P<end><!-- end of (?P=kind) -->\n)',
    re.DOTALL,
)


def markdown(rows: Sequence[Sequence]) -> str:
    """Return a table in Markdown, with the first row as its head."""
    rows = [rows[0], ['---'] * len(rows[0]), *rows[1:]]
    return ''.join(f'| {" | ".join(map(str, row))} |\n' for row in rows)


def replace_between(page: Path, begin: str, end: str, text: str):
    """Replace what is between two marks of a page.

    Raises:
        ValueError: the page lacks a mark. It is not changed.
    """
    before, begins, rest = page.read_text().partition(begin)
    _, ends, after = rest.partition(end)
    if not begins or not ends:
        raise UserError(f'{page} must have the marks {begin!r} and {end!r}')
    page.write_text(f'{before}{begin}{text}{end}{after}')


def filled(page: Path, tables: Mapping[str, Callable[[list[str]], str]]) -> str:
    """Return a page's text with the tables of these kinds that it asks for.

    It asks by `<!-- KIND ARGUMENTS -->`, which `<!-- end of KIND -->` closes.
    """

    def fill(found: re.Match) -> str:
        if found['kind'] not in tables:
            return found.group()
        table = tables[found['kind']](found['arguments'].split())
        return f'{found["begin"]}\n{table}\n{found["end"]}'

    return BLOCK.sub(fill, page.read_text())


def write_pages(pages: Mapping[Path, str], check: bool) -> list[Path]:
    """Return which files have another text, after writing them unless `check`."""
    stale = []
    for path, text in pages.items():
        if not path.is_file() or path.read_text() != text:
            stale.append(path)
            if not check:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
    return stale


def run_table(folder: Path) -> str:
    """Return a table with one row for each summary of a run in the folder."""
    runs = [json.loads(path.read_text()) for path in sorted(folder.glob('*.json'))]
    names = list(dict.fromkeys(name for run in runs for name in run['metrics']))
    rows = [['run', *names, 'iterations', 'minutes', 'on']]
    for run in runs:
        values = [f'{run["metrics"].get(name, "")}' for name in names]
        facts = [str(run.get(key, '')) for key in ('iterations', 'minutes')]
        on = [run[key] for key in ('machine', 'torch') if key in run]
        rows.append([f'`{run["config"]}`', *values, *facts, ', torch '.join(on)])
    return markdown(rows)


def speed_table(path: Path) -> str:
    """Return a table of speeds over the baseline's, from the csv file of a benchmark.

    A figure is the lower of those with both instruction sets, if both were measured.
    """
    speeds, params, shares = {}, {}, {}
    paths = path, path.with_stem(f'{path.stem}_avx2')
    for each in filter(Path.is_file, paths):
        with each.open(newline='') as file:
            for row in csv.DictReader(file):
                params[row['model']] = float(row['params_m'])
                key = row['model'], row['pass']
                speeds.setdefault(key, []).append(float(row['speedup']))
                if share := row.get('product_share'):
                    shares[row['model']] = row['flops_g'], f'{float(share):.0%}'
    passes = list(dict.fromkeys(which for _, which in speeds))
    rows = [['model', 'parameters (M)', *passes]]
    if shares:
        rows[0] += ['FLOPs (G)', 'of peak']
    for model in sorted(params, key=lambda model: -min(speeds[model, passes[0]])):
        figures = [f'{min(speeds[model, which]):.2f}' for which in passes]
        figures += shares.get(model, ())
        rows.append([f'`{model}`', f'{params[model]:.1f}', *figures])
    return markdown(rows)


def runtime_table(rows: list[dict]) -> str:
    """Return a table of exported models, from rows of `onnx_model.py`."""
    times = {(row['model'], row['pass']): row for row in rows}
    table = [['model', 'ONNX Runtime', 'PyTorch', 'ratio', 'over Swin-T', 'difference']]
    exported = [row for row in rows if row['over_pytorch']]
    for row in sorted(exported, key=lambda row: -float(row['images_per_s'])):
        in_pytorch = times[row['model'], 'PyTorch']['images_per_s']
        columns = 'images_per_s', 'over_pytorch', 'speedup', 'difference'
        speed, ratio, speedup, difference = (row[column] for column in columns)
        cells = [speed, in_pytorch, ratio, speedup, difference]
        table.append([f'`{row["model"]}`', *cells])
    return markdown(table)


def memory_table(rows: list[dict]) -> str:
    """Return a table of memory, from rows of `onnx_memory.py`."""
    table = [['layer', 'map', 'tokens', 'MiB', 'growth', 'MiB with arena']]
    for row in rows:
        place = f'{row["height"]} x {row["width"]}', f'{int(row["tokens"]):,}'
        columns = 'peak_mib', 'growth', 'peak_arena_mib'
        table.append([row['layer'], *place, *(row[column] for column in columns)])
    return markdown(table)


def operator_table(rows: list[dict]) -> str:
    """Return a table of operators in ONNX Runtime, from rows of `onnx_operators.py`."""
    forms = list(dict.fromkeys(row['form'] for row in rows))
    ours, onnx = forms[:2]
    table = [['case', *(f'{form}, ms' for form in forms), 'speedup', 'error']]
    table[0].append(f'error {onnx}')
    found = {(row['case'], row['form']): row for row in rows}
    for case in dict.fromkeys(row['case'] for row in rows):
        times = [found[case, form]['ms'] for form in forms]
        errors = [found[case, form]['error'] for form in (ours, onnx)]
        table.append([case, *times, found[case, ours]['speedup'], *errors])
    return markdown(table)


def csv_table(path: Path) -> str:
    """Return the table of a benchmark's csv file."""
    with path.open(newline='') as file:
        rows = list(csv.DictReader(file))
    if 'over_pytorch' in rows[0]:
        return runtime_table(rows)
    if 'peak_arena_mib' in rows[0]:
        return memory_table(rows)
    if 'form' in rows[0]:
        return operator_table(rows)
    return speed_table(path)

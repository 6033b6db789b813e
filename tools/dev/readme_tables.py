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


def speed_table(rows: list[dict]) -> str:
    """Return a table of speeds over the baseline's, from rows of `model.py`."""
    passes = list(dict.fromkeys(row['pass'] for row in rows))
    models = {}
    for row in rows:
        models.setdefault(row['model'], {})[row['pass']] = row
    table = [['model', 'parameters (M)', *passes, 'FLOPs (G)', 'of peak']]
    for model, of in sorted(
        models.items(), key=lambda model: -float(model[1][passes[0]]['speedup'])
    ):
        first = of[passes[0]]
        speeds = [f'{float(of[which]["speedup"]):.2f}' for which in passes]
        share = f'{float(first["product_share"]):.0%}'
        params = f'{float(first["params_m"]):.1f}'
        table.append([f'`{model}`', params, *speeds, first['flops_g'], share])
    return markdown(table)


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
    return speed_table(rows)

"""Tables of measured speeds, each with what it was measured on.

Speeds come from the csv files of docs/benchmarks, whose rows name machine, instruction
set, threads, day and commit.
"""

from pathlib import Path

from mmattn.errors import UserError
from tools.benchmark.measure import read_csv
from tools.dev.choose import (
    BENCHMARKS,
    OURS,
    PEERS,
    accuracy,
    isa_of,
    measured,
    rows_of,
    threads_of,
)
from tools.dev.markdown import markdown

ACCELERATED = 'accelerate', 'accelerate_2_threads', 'accelerate_avx512_2_threads'
FILES = {  # of README's columns
    '224 x 224, AVX2': 'models_cpu',
    '224 x 224, AVX-512': 'models_avx512_cpu',
    '800 x 1333, AVX2': 'maps_cpu',
    '800 x 1333, AVX-512': 'maps_avx512_cpu',
}


def speeds(_: list[str]) -> str:
    """Return the speeds of README: both sizes and both instruction sets."""
    found = {column: rows_of(file) for column, file in FILES.items()}
    large = found['800 x 1333, AVX2']
    lines = [['backbone', 'Top-1, paper', *FILES]]
    for name in sorted(large, key=lambda name: -float(large[name]['speedup'])):
        classifier = OURS.get(name, name)
        shown = f'**`{name.removeprefix("mmattn_")}`**'
        line = [shown, accuracy(classifier)] if name in OURS else [*PEERS[name][:2]]
        keys = (classifier if '224' in column else name for column in FILES)
        picked = [of[key] for of, key in zip(found.values(), keys, strict=True)]
        lines.append([*line, *(f'{float(of["speedup"]):.2f}' for of in picked)])
    on = measured(next(iter(of.values())) for of in found.values())
    return f'{markdown(lines)}\nMeasured on: {on}.\n'


def speed(names: list[str]) -> str:
    """Return the measured images per second of models, beside the baseline's."""
    passes = {}
    for row in read_csv(BENCHMARKS / 'models_cpu.csv'):
        if row['model'] in names:
            passes.setdefault(row['model'], {})[row['pass']] = row
    if not passes:
        raise UserError(f'the benchmarks have none of {names}')
    head = ['model', 'pixels', 'inference (images/s)', 'beside Swin-T']
    head += ['training step (images/s)', 'beside Swin-T']
    rows = [head]
    for model, of in passes.items():
        first = of['inference']
        row = [model, f'{first["size"]} x {first["size"]}']
        for which in ('inference', 'training step'):
            row += [of[which]['images_per_s'], of[which]['speedup']]
        rows.append(row)
    on = measured(row for of in passes.values() for row in of.values())
    return f'{markdown(rows)}\nMeasured on: {on}.\n'


def accelerated(_: list[str]) -> str:
    """Return the speeds in the csv files as a table, a line for each model."""
    lines, found = {}, []
    for name in ACCELERATED:
        for row in read_csv(BENCHMARKS / f'{name}_cpu.csv'):
            found.append(row)
            line = lines.setdefault(row['model'], dict(modules=row['modules']))
            if row['attention']:
                share = f'{float(row["attention"]):.0%}'
                line.setdefault('share of the sampling', share)
            line[f'{row["phase"]}, {isa_of(row)}, {threads_of(row)}'] = row['speedup']
    head = ['model', *next(iter(lines.values()))]
    table = markdown([head, *([name, *line.values()] for name, line in lines.items())])
    return f'{table}\nMeasured on: {measured(found)}.\n'


def runtimes(_: list[str]) -> str:
    """Return speeds over PyTorch's in float32, a line for each backbone."""
    found, lines = read_csv(BENCHMARKS / 'runtimes_cpu.csv'), {}
    for row in found:
        line = lines.setdefault(row['model'], {})
        line[row['runtime']] = f'{float(row["speedup"]):.2f}'
    ways = list(dict.fromkeys(row['runtime'] for row in found))
    table = [['backbone', *ways]]
    for name, line in lines.items():
        table.append([f'`{name}`', *(line.get(way, '–') for way in ways)])
    return f'{markdown(table)}\nMeasured on: {measured(found)}.\n'


def compiled(_: list[str]) -> str:
    """Return the speeds of compiled models over the same models' without."""
    lines, columns, found = {}, [], []
    for path in sorted(BENCHMARKS.glob('compiled_*_cpu.csv')):
        for row in read_csv(path):
            found.append(row)
            column = f'{row["pass"]}, {row["dtype"]}'
            columns.append(column)
            line = lines.setdefault(row['model'], {})
            line[column] = f'{float(row["compiled_speedup"]):.2f}'
    columns = list(dict.fromkeys(columns))
    table = [['model', *columns]]
    for model, line in lines.items():
        table.append([f'`{model}`', *(line.get(column, '') for column in columns)])
    return f'{markdown(table)}\nMeasured on: {measured(found)}.\n'


def speed_table(path: Path) -> str:
    """Return a table of speeds over the baseline's, from a csv file of `model.py`."""
    rows = read_csv(path)
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
    return f'{markdown(table)}\nMeasured on: {measured(rows)}.\n'

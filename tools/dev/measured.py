"""Tables of what was measured, each with what it was measured on.

    python -m tools.dev.measured    # draws docs/images/choose.png

The rows of the csv files in docs/benchmarks and docs/evidence name machine, instruction
set, threads, day and commit.
"""

import re
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from statistics import mean

import timm
from matplotlib.figure import Figure

from mmattn.data.archs import find_arch
from mmattn.images.draw import styled
from tools.benchmark.measure import ROOT, read_csv
from tools.dev.markdown import markdown
from tools.dev.metafiles import read_models

BENCHMARKS, EVIDENCE = ROOT / 'docs/benchmarks', ROOT / 'docs/evidence'
PICTURE = ROOT / 'docs/images/choose.png'
METAFILE = ROOT / 'configs/classification/metafile.yml'
# Virtual machines hide the generation of a CPU; those of rows without it are here.
GENERATIONS = {'b2dd0f9+': 'Zen 5'}
# By the name in the benchmarks of maps: the classifier of the benchmarks at 224 pixels.
OURS = {
    'mmattn_ivit_tiny': 'ivit_t',
    'mmattn_lisanet_small': 'lisanet_s',
    'mmattn_lisanet_hybrid_small': 'lisanet_hybrid_s',
    'mmattn_hmait_tiny': 'hmait_t',
    'mmattn_pvt_small': 'pvt_s',
    'mmattn_pvt_v2_b2': 'pvt_v2_b2',
    'mmattn_dat_tiny': 'dat_t',
    'mmattn_dat_plus_plus_tiny': 'dat_plus_plus_t',
}
# Name, accuracy and its source: timm has weights of each.
PEERS = {
    'resnet50': ('ResNet-50', 79.8, 'arXiv 2110.00476 (A2)'),
    'swin_tiny_patch4_window7_224': ('Swin-T', 81.3, 'arXiv 2103.14030'),
    'convnext_tiny': ('ConvNeXt-T', 82.1, 'arXiv 2201.03545'),
    'caformer_s18': ('CAFormer-S18', 83.6, 'arXiv 2210.13452'),
}
SPEEDS = {  # file and whether its images have 224 pixels, by column
    'speed at 224, AVX2': ('models_cpu', True),
    '224, AVX-512': ('models_avx512_cpu', True),
    '800 x 1333, AVX2': ('maps_cpu', False),
    '800 x 1333, AVX-512': ('maps_avx512_cpu', False),
    'in bfloat16': ('maps_autocast_cpu', False),
}
MEMORY = 'maps_avx512_cpu', 'maps_autocast_cpu'  # float32, bfloat16
LICENSES = {'apache-2.0': 'Apache-2.0', 'mit': 'MIT'}  # as timm has them
# Files, the name of a row, of a column and of its value, by kind of table.
RATIOS = {
    'accelerate': ('accelerate*_cpu', '{phase}, {isa}, {threads}', 'speedup'),
    'compiled': ('compiled_*_cpu', '{pass}, {dtype}', 'compiled_speedup'),
    'runtimes': ('runtimes_cpu', '{runtime}', 'speedup'),
}
FACTS = {  # further columns of a benchmark's file
    'params_m': 'parameters (M)',
    'flops_g': 'FLOPs (G)',
    'product_share': 'of peak',
    'forward_ms': 'forward (ms)',
    'backward_ms': 'backward (ms)',
    'step_ms': 'step (ms)',
    'peak_mib': 'memory (MiB)',
}
PLACE = 'data', 'images', 'factor', 'minutes', 'parts', 'metric'
NETWORK = 'network', 'start', 'lr'
NAMES = {
    'hela': 'HeLa nuclei, 256 x 256',
    'blood': 'blood cells, 480 x 640',
    'scenes': 'scenes of clothes, 128 x 128',
    'landcover': 'land cover, 192 x 192',
}
METRICS = {
    'coco/segm_mAP': (100, 'AP of masks'),
    'coco/bbox_mAP': (100, 'AP of boxes'),
    'mIoU': (1, 'mIoU'),
}


def measured(found: Iterable[Mapping]) -> str:
    """Return a sentence on what rows of csv files were measured on."""
    places = {}
    for row in found:
        cpu = row['machine']
        if 'family' not in cpu:
            cpu += f' ({GENERATIONS.get(row["commit"], "generation not recorded")})'
        facts = cpu, isa_of(row), threads_of(row), f'PyTorch {row["torch"]}'
        places.setdefault(', '.join((*facts, row['date'])), {})[row['commit']] = None
    return '; '.join(f'{on}, commit {" and ".join(x)}' for on, x in places.items())


def isa_of(row: Mapping) -> str:
    """Return the instruction set of PyTorch's own operators, as CPUs call it."""
    name = row['isa'].split()[0].removeprefix('ATen:')
    return re.sub('AVX512', 'AVX-512', name)


def threads_of(row: Mapping) -> str:
    return f'{row["threads"]} thread{"s" * (row["threads"] != "1")}'


def with_origin(table: list[list], rows: Iterable[Mapping]) -> str:
    return f'{markdown(table)}\nMeasured on: {measured(rows)}.\n'


def ratios(kind: str) -> str:
    """Return speeds as a table: a line for each model, a column for each way."""
    pattern, column, value = RATIOS[kind]
    found, columns, lines = [], {}, {}
    for path in sorted(BENCHMARKS.glob(f'{pattern}.csv'), key=lambda x: len(x.name)):
        found += read_csv(path)
    for row in found:
        facts = row | dict(isa=isa_of(row), threads=threads_of(row))
        name = column.format(**facts)
        columns[name] = None
        lines.setdefault(row['model'], {})[name] = f'{float(row[value]):.2f}'
    table = [['model', *columns]]
    for model, line in lines.items():
        table.append([f'`{model}`', *(line.get(name, '–') for name in columns)])
    return with_origin(table, found)


def speed_table(path: Path) -> str:
    """Return the speeds over the baseline's and other facts in a benchmark's file."""
    rows = read_csv(path)
    key = 'model' if 'model' in rows[0] else 'config'
    passes = list(dict.fromkeys(row.get('pass', 'speed') for row in rows))
    lines = {}
    for row in rows:
        line = lines.setdefault(row[key], {})
        line[row.get('pass', 'speed')] = f'{float(row["speedup"]):.2f}'
        line.setdefault('facts', row)
    facts = [name for name in FACTS if name in rows[0]]
    if passes != ['speed']:
        facts = [name for name in facts if name != 'peak_mib']
    table = [[key, *passes, *(FACTS[name] for name in facts)]]
    for name, line in sorted(lines.items(), key=lambda x: -float(x[1][passes[0]])):
        cells = [fact_text(fact, line['facts'][fact]) for fact in facts]
        table.append([f'`{name}`', *(line[which] for which in passes), *cells])
    return with_origin(table, rows)


def fact_text(name: str, text: str) -> str:
    if name == 'product_share':
        return f'{float(text):.0%}'
    return f'{float(text):.1f}' if name == 'params_m' else f'{float(text):g}'


@cache
def rows_of(file: str, which: str = 'inference') -> dict[str, dict[str, str]]:
    """Return the rows of a pass, by model."""
    rows = read_csv(BENCHMARKS / f'{file}.csv')
    return {row['model']: row for row in rows if row['pass'] == which}


def memory_of(name: str, which: str) -> str:
    """Return the peaks of a pass in MiB, of the files in `MEMORY`."""
    found = (rows_of(file, which).get(name) for file in MEMORY)
    return ' / '.join(f'{float(row["peak_mib"]):.0f}' if row else '–' for row in found)


def license_of(name: str) -> str:
    """Return the license of weights of timm's."""
    return LICENSES[timm.get_pretrained_cfg(name).license]


def facts_of(name: str) -> tuple[str, float, float, float, str]:
    """Return the name, the accuracy, the counts and the start of a backbone."""
    if name in PEERS:
        row = rows_of('models_cpu')[name]
        counts = float(row['params_m']), float(row['flops_g'])
        return *PEERS[name][:2], *counts, f'its own, {license_of(name)}'
    models = {model['Name']: model for model in read_models(METAFILE)}
    model = models[f'{OURS[name]}_300e_in1k']
    counts = (model['Metadata'][key] for key in ('Parameters', 'FLOPs'))
    top1 = model['Paper Results'][0]['Metrics']['Top 1 Accuracy']
    preset = name.removeprefix('mmattn_')
    arch = find_arch(preset)
    start = 'random'
    if arch.start is not None:
        kind = 'parts of a related network' if arch.related else 'its own'
        license = arch.license or license_of(arch.start.removeprefix('timm://'))
        start = f'{kind}, {license}'
    params, flops = counts
    return f'**`{preset}`**', top1, params / 1e6, flops / 1e9, start


@cache
def speeds_of(name: str) -> dict[str, float]:
    """Return the speeds over Swin-T's that were measured, by column."""
    found = {}
    for column, (file, at_224) in SPEEDS.items():
        key = OURS.get(name, name) if at_224 else name
        if row := rows_of(file).get(key):
            found[column] = float(row['speedup'])
    return found


def by_speed() -> list[str]:
    """Return the backbones, the fastest on large images first."""
    return sorted(
        (*OURS, *PEERS), key=lambda name: -speeds_of(name).get('800 x 1333, AVX2', 0)
    )


def choose(columns: str = '') -> str:
    """Return the table of docs/choose.md, or its first columns without its origins."""
    table = [['backbone', 'Top-1, paper', *SPEEDS]]
    table[0] += ['memory at 800 x 1333 (MiB)', 'in training', 'parameters (M)']
    table[0] += ['FLOPs at 224 (G)', 'starts from']
    for name in by_speed():
        shown, top1, params, flops, start = facts_of(name)
        speeds = speeds_of(name)
        if columns and len(speeds) < len(SPEEDS):
            continue
        line = [shown, f'{top1:.1f}']
        line += [f'{speeds[x]:.2f}' if x in speeds else '–' for x in SPEEDS]
        line += [memory_of(name, which) for which in ('inference', 'training step')]
        table.append([*line, f'{params:.1f}', f'{flops:.2f}', start])
    if columns:
        return markdown([line[: int(columns)] for line in table])
    sources = '; '.join(f'{name} {source}' for name, _, source in PEERS.values())
    runs = {column: file for column, (file, _) in SPEEDS.items()}
    runs |= dict(zip(('memory', 'bfloat16'), MEMORY, strict=True))
    origins = '; '.join(
        f'{what}: {measured(rows_of(file).values())}' for what, file in runs.items()
    )
    return (
        f'{markdown(table)}\nSpeeds are over Swin-T in the same run; a dash was not '
        'measured. Memory is what PyTorch holds at most in inference and in training, '
        'float32 / autocast to bfloat16. Accuracies of our networks are in '
        f'[the model zoo](model_zoo.md), of the others in {sources}. Licenses of their '
        f'weights are what timm says.\n\nRuns: {origins}.\n'
    )


@styled
def draw(path: Path):
    """Draw the papers' accuracy over the speed on large images."""
    figure = Figure((5.5, 4))
    axis = figure.subplots()
    points = {}
    for name in by_speed():
        if speed := speeds_of(name).get('800 x 1333, AVX2'):
            points[name] = speed, facts_of(name)[1]
    for name, (speed, top1) in points.items():
        color, marker = ('C0', 'o') if name in OURS else ('0.5', 's')
        axis.scatter(speed, top1, 50, color, marker=marker)
        # A label would hide a point that is a little higher and to the right.
        is_free = not any(
            0.1 < x - speed < 0.45 and 0 < y - top1 < 0.5 for x, y in points.values()
        )
        offset = dict(xytext=(6, 5 if is_free else -13), textcoords='offset points')
        axis.annotate(
            facts_of(name)[0].strip('*`'), (speed, top1), **offset, color=color
        )
    axis.set_xlabel('speed over Swin-T at 800 x 1333, one thread, AVX2')
    axis.set_ylabel('ImageNet Top-1 of the papers (%)')
    axis.margins(0.2, 0.12)
    axis.grid(alpha=0.3)
    figure.savefig(path)


def spread(rows: Iterable[Mapping]) -> str:
    """Return the mean of the seeds, and their range if there are several."""
    values = [METRICS[row['metric']][0] * float(row['value']) for row in rows]
    if not values:
        return '–'
    text = f'{mean(values):.1f}'
    if len(values) > 1:
        text += f' ({min(values):.1f} to {max(values):.1f}, {len(values)} seeds)'
    return text


def expected(*files: str, folder: Path = EVIDENCE) -> str:
    """Return what small data sets give after some CPU minutes, by data and recipe.

    `python -m projects.evidence.small_data` writes the csv files.
    """
    rows, found = [row for name in files for row in read_csv(folder / name)], {}
    for row in rows:
        line = found.setdefault(tuple(row[name] for name in PLACE), {})
        line.setdefault(tuple(row[name] for name in NETWORK), []).append(row)
    networks = dict.fromkeys(tuple(row[name] for name in NETWORK) for row in rows)
    table = [['data', 'images', 'CPU minutes', 'recipe', 'metric']]
    table[0] += [f'`{name}`, {start}, {lr}' for name, start, lr in networks]
    for (data, images, factor, minutes, parts, metric), values in found.items():
        size = '' if factor == '1.0' else f', resized by {factor}'
        line = [NAMES[data] + size, images, f'{float(minutes):g}']
        line += [parts.replace(' ', ', ') or 'none', METRICS[metric][1]]
        table.append([*line, *(spread(values.get(x, ())) for x in networks)])
    return with_origin(table, rows)


if __name__ == '__main__':
    draw(PICTURE)

"""Put the backbones and their peers side by side, for docs/choose.md.

    python -m tools.dev.choose    # draws docs/images/choose.png

Speeds and memory come from the csv files of docs/benchmarks, accuracies of our networks
from the metafiles, and weights with their licenses from the published files.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import timm
from matplotlib.figure import Figure

from mmattn.data.archs import find_arch
from mmattn.images.draw import styled
from tools.benchmark.measure import read_csv
from tools.dev.markdown import markdown
from tools.dev.metafiles import ROOT, read_models

BENCHMARKS = ROOT / 'docs/benchmarks'
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
LARGE = {'AVX2': 'maps_cpu', 'AVX-512': 'maps_avx512_cpu'}
MEMORY = 'maps_zen4_cpu', 'maps_autocast_cpu'  # float32, bfloat16
PASSES = 'inference', 'training step'
LICENSES = {'apache-2.0': 'Apache-2.0', 'mit': 'MIT'}  # as timm has them


@dataclass
class Row:
    """A backbone. Speeds are over Swin-T's: at 224 pixels, and by instruction set."""

    name: str
    is_ours: bool
    top1: float
    params: float
    flops: float
    start: str
    small: float | None
    large: dict[str, float]
    memory: list[str]  # MiB of the passes, float32 / bfloat16


def rows_of(file: str, which: str = 'inference') -> dict[str, dict[str, str]]:
    """Return the rows of a pass, by model."""
    rows = read_csv(BENCHMARKS / f'{file}.csv')
    return {row['model']: row for row in rows if row['pass'] == which}


def model_of(classifier: str) -> dict:
    names = {model['Name']: model for model in read_models(METAFILE)}
    return names[f'{classifier}_300e_in1k']


def accuracy(classifier: str) -> float:
    """Return the Top-1 accuracy of the paper."""
    (result,) = model_of(classifier)['Paper Results']
    return result['Metrics']['Top 1 Accuracy']


def of_ours(preset: str, classifier: str) -> tuple[str, bool, float, float, float, str]:
    """Return the first fields of a row: accuracy is the paper's, counts are ours."""
    counts = model_of(classifier)['Metadata']
    params, flops = counts['Parameters'] / 1e6, counts['FLOPs'] / 1e9
    return preset, True, accuracy(classifier), params, flops, start_of(preset)


def of_peer(
    name: str, row: dict[str, str]
) -> tuple[str, bool, float, float, float, str]:
    counts = float(row['params_m']), float(row['flops_g'])
    return (
        PEERS[name][0],
        False,
        PEERS[name][1],
        *counts,
        f'its own, {license_of(name)}',
    )


def license_of(name: str) -> str:
    """Return the license of weights of timm's."""
    return LICENSES[timm.get_pretrained_cfg(name).license]


def start_of(preset: str) -> str:
    """Return the weights that a dense config starts from, with their license."""
    arch = find_arch(preset)
    if arch.start is None:
        return 'random'
    kind = 'parts of a related network' if arch.related else 'its own'
    return f'{kind}, {arch.license or license_of(arch.start.removeprefix("timm://"))}'


def memory_of(name: str, which: str) -> str:
    """Return the peaks of a pass in MiB, of the files in `MEMORY`."""
    found = (rows_of(file, which).get(name) for file in MEMORY)
    return ' / '.join(text_of(row and float(row['peak_mib']), 0) for row in found)


@cache
def rows() -> list[Row]:
    """Return the backbones, the fastest on large images first."""
    small = rows_of('models_cpu')
    maps = {isa: rows_of(file) for isa, file in LARGE.items()}
    found = []
    for name in (*OURS, *PEERS):
        classifier = OURS.get(name, name)
        at_224 = small.get(classifier)
        preset = name.removeprefix('mmattn_')
        is_ours = name in OURS
        facts = of_ours(preset, classifier) if is_ours else of_peer(name, at_224)
        large = {
            isa: float(of[name]['speedup']) for isa, of in maps.items() if name in of
        }
        found.append(
            Row(
                *facts,
                at_224 and float(at_224['speedup']),
                large,
                [memory_of(name, which) for which in PASSES],
            )
        )
    return sorted(found, key=lambda row: -row.large.get('AVX2', 0))


def text_of(value: float | None, digits: int) -> str:
    return '–' if value is None else f'{value:.{digits}f}'


def choose(words: list[str]) -> str:
    """Return the table of docs/choose.md, or as many of its columns as `words` says."""
    lines = [['backbone', 'Top-1, paper', 'speed at 224']]
    lines[0] += [f'at 800 x 1333, {isa}' for isa in LARGE]
    lines[0] += ['memory at 800 x 1333 (MiB)', 'in training', 'parameters (M)']
    lines[0] += ['FLOPs at 224 (G)', 'starts from']
    for row in rows():
        name = f'**`{row.name}`**' if row.is_ours else row.name
        speeds = row.small, *(row.large.get(isa) for isa in LARGE)
        line = [name, f'{row.top1:.1f}', *(text_of(speed, 2) for speed in speeds)]
        line += [*row.memory, f'{row.params:.1f}', f'{row.flops:.2f}']
        lines.append([*line, row.start])
    if words:
        return markdown([line[: int(words[0])] for line in lines])
    sources = '; '.join(f'{name} {source}' for name, _, source in PEERS.values())
    runs = {'at 224': 'models_cpu', **LARGE, 'memory': 'maps_zen4_cpu'}
    runs['bfloat16'] = 'maps_autocast_cpu'
    origins = '; '.join(
        f'{what}: {measured(rows_of(file).values())}' for what, file in runs.items()
    )
    return (
        f'{markdown(lines)}\nSpeeds are over Swin-T in the same run; a dash was not '
        'measured. Memory is what PyTorch holds at most in inference and in training, '
        'float32 / autocast to bfloat16. Accuracies of our networks are in '
        f'[the model zoo](model_zoo.md), of the others in {sources}. Licenses of their '
        f'weights are what timm says.\n\nRuns: {origins}.\n'
    )


def measured(found: Iterable[Mapping]) -> str:
    """Return a sentence on what rows of csv files were measured on."""
    places = {}
    for row in found:
        generation = GENERATIONS.get(row['commit'], 'generation not recorded')
        cpu = row['machine'] if 'family' in row['machine'] else ''
        cpu = cpu or f'{row["machine"]} ({generation})'
        facts = (
            cpu,
            isa_of(row),
            threads_of(row),
            f'PyTorch {row["torch"]}',
            row['date'],
        )
        places[', '.join(facts)] = [*places.get(', '.join(facts), ()), row['commit']]
    return '; '.join(
        f'{facts}, commit {" and ".join(dict.fromkeys(commits))}'
        for facts, commits in places.items()
    )


def isa_of(row: Mapping) -> str:
    """Return the instruction set of PyTorch's own operators, as CPUs call it."""
    name = row['isa'].split()[0].removeprefix('ATen:')
    return re.sub('AVX512', 'AVX-512', name)


def threads_of(row: Mapping) -> str:
    return f'{row["threads"]} thread{"s" * (row["threads"] != "1")}'


@styled
def draw(path: Path):
    """Draw the papers' accuracy over the speed on large images."""
    figure = Figure((5.5, 4))
    axis = figure.subplots()
    shown = [row for row in rows() if 'AVX2' in row.large]
    for row in shown:
        color, marker = ('C0', 'o') if row.is_ours else ('0.5', 's')
        speed = row.large['AVX2']
        axis.scatter(speed, row.top1, 50, color, marker=marker)
        # A label would hide a point that is a little higher and to the right.
        is_free = not any(
            0.1 < other.large['AVX2'] - speed < 0.45 and 0 < other.top1 - row.top1 < 0.5
            for other in shown
        )
        offset = dict(xytext=(6, 5 if is_free else -13), textcoords='offset points')
        axis.annotate(row.name, (speed, row.top1), **offset, color=color)
    axis.set_xlabel('speed over Swin-T at 800 x 1333, one thread, AVX2')
    axis.set_ylabel('ImageNet Top-1 of the papers (%)')
    axis.margins(0.2, 0.12)
    axis.grid(alpha=0.3)
    figure.savefig(path)


if __name__ == '__main__':
    draw(PICTURE)

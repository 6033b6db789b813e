"""Put the backbones and their peers side by side, for docs/choose.md.

    python -m tools.dev.choose    # draws docs/images/choose.png

Speeds and memory come from the csv files of docs/benchmarks, accuracies of our networks
from the metafiles, and weights with their licenses from the published files.
"""

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from mmattn.data.archs import find_arch
from tools.benchmark.measure import read_csv
from tools.dev.markdown import markdown
from tools.dev.metafiles import ROOT, read_models

BENCHMARKS = ROOT / 'docs/benchmarks'
PICTURE = ROOT / 'docs/images/choose.png'
METAFILE = ROOT / 'configs/classification/metafile.yml'
# By the name in the benchmarks of maps: the classifier of the benchmarks at 224 pixels.
OURS = {
    'mmattn_ivit_tiny': 'ivit_t',
    'mmattn_lisanet_small': 'lisanet_s',
    'mmattn_lisanet_hybrid_small': 'lisanet_hybrid_s',
    'mmattn_hmait_tiny': 'hmait_t',
    'mmattn_pvt_v2_b2': 'pvt_v2_b2',
    'mmattn_dat_plus_plus_tiny': 'dat_plus_plus_t',
}
# Name, accuracy and its source: timm has weights of each.
PEERS = {
    'resnet50': ('ResNet-50', 79.8, 'arXiv 2110.00476 (A2)'),
    'swin_tiny_patch4_window7_224': ('Swin-T', 81.3, 'arXiv 2103.14030'),
    'convnext_tiny': ('ConvNeXt-T', 82.1, 'arXiv 2201.03545'),
    'caformer_s18': ('CAFormer-S18', 83.6, 'arXiv 2210.13452'),
}
LARGE = 'AVX2', 'AVX-512'


@dataclass
class Row:
    """A backbone. Speeds are over Swin-T's: at 224 pixels, and by instruction set."""

    name: str
    is_ours: bool
    top1: float
    params: float
    flops: float
    small: float
    large: dict[str, float]
    memory: float
    start: str


def inference(file: str) -> dict[str, dict[str, str]]:
    rows = read_csv(BENCHMARKS / f'{file}.csv')
    return {row['model']: row for row in rows if row['pass'] == 'inference'}


def accuracy(classifier: str) -> float:
    """Return the Top-1 accuracy of the paper."""
    (model,) = (
        model
        for model in read_models(METAFILE)
        if model['Name'] == f'{classifier}_300e_in1k'
    )
    (result,) = model['Paper Results']
    return result['Metrics']['Top 1 Accuracy']


def start_of(preset: str) -> str:
    """Return the weights that a dense config starts from, with their license."""
    arch = find_arch(preset)
    if arch.start is None:
        return 'random'
    kind = 'of a related network' if arch.related else 'its own'
    return f'{kind}, {arch.license or "license unknown"}'


@cache
def rows() -> list[Row]:
    """Return the backbones, the fastest on large images first."""
    small, maps = inference('models_cpu'), inference('maps_cpu')
    wide = inference('maps_avx512_cpu')
    found = []
    for name, row in maps.items():
        classifier = OURS.get(name, name)
        if name in OURS:
            preset = name.removeprefix('mmattn_')
            known = preset, accuracy(classifier), start_of(preset)
        else:
            known = *PEERS[name][:2], 'its own, see timm'
        pair = zip(LARGE, (row, wide[name]), strict=True)
        found.append(
            Row(
                known[0],
                name in OURS,
                known[1],
                float(row['params_m']),
                float(small[classifier]['flops_g']),
                float(small[classifier]['speedup']),
                {isa: float(each['speedup']) for isa, each in pair},
                float(row['peak_mib']),
                known[2],
            )
        )
    return sorted(found, key=lambda row: -row.large['AVX2'])


def choose(words: list[str]) -> str:
    """Return the table of docs/choose.md, or as many of its columns as `words` says."""
    lines = [['backbone', 'Top-1, paper', 'speed at 224']]
    lines[0] += [f'at 800 x 1333, {isa}' for isa in LARGE]
    lines[0] += ['memory at 800 x 1333 (MiB)', 'parameters (M)', 'FLOPs at 224 (G)']
    lines[0] += ['starts from']
    for row in rows():
        name = f'**`{row.name}`**' if row.is_ours else row.name
        speeds = [f'{speed:.2f}' for speed in (row.small, *row.large.values())]
        line = [name, f'{row.top1:.1f}', *speeds, f'{row.memory:.0f}']
        lines.append([*line, f'{row.params:.2f}', f'{row.flops:.2f}', row.start])
    if words:
        return markdown([line[: int(words[0])] for line in lines])
    row = next(iter(inference('maps_cpu').values()))
    facts = row['machine'], f'{row["threads"]} thread', row['dtype']
    facts += f'PyTorch {row["torch"]}', row['date'], f'commit {row["commit"]}'
    sources = '; '.join(f'{name} {source}' for name, _, source in PEERS.values())
    return (
        f'{markdown(lines)}\nSpeeds are over Swin-T in the same run ({", ".join(facts)}'
        f'). Accuracies of our networks are in [the model zoo](model_zoo.md), '
        f'accuracies of the others in {sources}.\n'
    )


def draw(path: Path):
    """Draw the papers' accuracy over the speed on large images."""
    from matplotlib.figure import Figure

    from tools.benchmark.plot import WIDTH

    figure = Figure(figsize=(WIDTH, 4), layout='constrained')
    axis = figure.subplots()
    for row in rows():
        color, marker = ('#0072b2', 'o') if row.is_ours else ('#777777', 's')
        speed = row.large['AVX2']
        axis.scatter(speed, row.top1, 50, color, marker=marker)
        # A label would hide a point that is a little higher and to the right.
        is_free = not any(
            0.1 < other.large['AVX2'] - speed < 0.45 and 0 < other.top1 - row.top1 < 0.5
            for other in rows()
        )
        offset = dict(xytext=(6, 5 if is_free else -13), textcoords='offset points')
        axis.annotate(row.name, (speed, row.top1), **offset, color=color)
    axis.set_xlabel('speed over Swin-T at 800 x 1333, one thread, AVX2')
    axis.set_ylabel('ImageNet Top-1 of the papers (%)')
    axis.set_xlim(0.35, 1.95)
    axis.margins(y=0.12)
    axis.grid(alpha=0.3)
    figure.savefig(path, dpi=160)


if __name__ == '__main__':
    draw(PICTURE)

"""Print parameters and FLOPs of the networks for clips beside the paper's Tables 8, 14.

PYTHONPATH=. python projects/video/counts.py
"""

from dataclasses import dataclass
from pathlib import Path

from mmengine.config import Config

from mmattn.analysis import count
from mmattn.analysis.flops import build
from mmattn.models import LiSANet

CONFIGS = Path(__file__).with_name('configs')
CLIP = {'k400': (3, 16, 224, 224), 'ssv2': (3, 8, 224, 224)}
CONVENTION = 'with transforms and norms'  # gives Table 14 and HyLiSANet-S as printed


@dataclass(frozen=True)
class Row:
    """A row of the paper.

    Args:
        name: as in the paper.
        config: name of a file in `configs/`.
        mixer: mixer of the network.
        params: printed millions of parameters; None if the table prints none.
        flops: printed billions of multiply-accumulates of a test.
        clips: clips of a test.
        depths: blocks of the stages, if they differ from the config's.
    """

    name: str
    config: str
    mixer: str
    params: float | None
    flops: float
    clips: int = 1
    depths: tuple[int, ...] | None = None

    def count(self) -> tuple[float, float]:
        """Return our millions of parameters and billions of FLOPs."""
        cfg = Config.fromfile(CONFIGS / f'{self.config}.py')
        cfg.model.backbone.mixer = self.mixer
        if self.depths is not None:
            arch = LiSANet.arch_zoo[cfg.model.backbone.arch]
            cfg.model.backbone.arch = dict(arch, depths=self.depths)
        shape = CLIP[self.config.rpartition('_')[2]]
        counted = count(build(cfg), shape)
        flops = self.clips * counted.flops_in(CONVENTION)
        return counted.params / 1e6, flops / 1e9


HYBRID_BASE = 'lisanet_hybrid_b_16x4_110e_k400'
TABLE_8 = [
    Row('HyLiSANet-S', 'lisanet_hybrid_s_16x4_110e_k400', 'lisa', None, 165, 4),
    Row('HyLiSANet-B', HYBRID_BASE, 'lisa', None, 428, 4),
    # A reading that prints as the paper's, see README.md.
    Row(
        'HyLiSANet-B, 19 blocks in stage 3',
        HYBRID_BASE,
        'lisa',
        None,
        428,
        4,
        (3, 12, 19, 3),
    ),
]
ISOTROPIC = 'lisanet_i_8_60e_ssv2'
TABLE_14 = [
    Row('Self-attention', ISOTROPIC, 'self_attention', 5.82, 7.36),
    Row('Self-attention w/ RPE', ISOTROPIC, 'self_attention_rpe', 5.87, 7.36),
    Row('Depthwise conv 3x7x7', ISOTROPIC, 'depthwise', 4.82, 3.75),
    Row('GF layer', ISOTROPIC, 'global_filter', 6.54, 3.53),
    Row('Lambda convolution', ISOTROPIC, 'lambda', 6.34, 26.87),
    Row('RSA', ISOTROPIC, 'rsa', 23.45, 72.58),
    Row('LiSA', ISOTROPIC, 'lisa', 8.37, 5.16),
]


def table(rows: list[Row]) -> str:
    """Return Markdown with the paper's figures, ours and the deviations."""
    lines = [
        '| row | params (M), paper | ours | FLOPs (G), paper | ours | deviation |',
        '|---|---|---|---|---|---|',
    ]
    for row in rows:
        params, flops = row.count()
        printed = '-' if row.params is None else f'{row.params:.2f}'
        deviation = round(100 * (flops / row.flops - 1), 1) + 0.0  # no -0
        lines.append(
            f'| {row.name} | {printed} | {params:.3f} | {row.flops:g} | {flops:.3f} | '
            f'{deviation:+.1f} % |'
        )
    return '\n'.join(lines) + '\n'


def main() -> None:
    for rows in (TABLE_8, TABLE_14):
        print(table(rows))


if __name__ == '__main__':
    main()

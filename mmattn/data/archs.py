"""The backbones that a converted config may have, with the weights they start from."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import torch

from mmattn.errors import UserError

from ..models.presets import all_presets, find_preset
from ..weights.names import SCHEME, published_files
from .inputs import Inputs

STRIDES = 4, 8, 16, 32  # that the necks of converted configs take
RANDOM = 'none'


@dataclass(frozen=True)
class Arch:
    """A backbone with maps at strides 4 to 32.

    Attributes:
        name: of the preset, as `mmattn.list_models` has it.
        type: of the backbone in a config.
        preset: value of the backbone's `arch`.
        channels: of the four maps.
        parameters: number of parameters.
        start: name of weights from ImageNet, None if there are no public ones.
        license: of the weights, None if it is unknown.
        related: whether `start` belongs to another network, of which parts fit.
    """

    name: str
    type: str
    preset: str
    channels: tuple[int, ...]
    parameters: int
    start: str | None
    license: str | None
    related: bool

    @property
    def is_small(self) -> bool:
        return self.parameters < 5e6


@cache
def find_arch(name: str) -> Arch:
    """Return the backbone of a preset, as `mmattn.list_models` names it.

    Raises:
        ValueError: there is no such preset, or it has a single map.
    """
    cls, arch = find_preset(name)
    with torch.device('meta'):
        backbone = cls(arch)
    if backbone.strides != STRIDES:
        raise UserError(
            f'--arch {name} has maps at strides {backbone.strides}, but converted '
            f'configs need {STRIDES}; `mmattn models --backbones` lists those'
        )
    kind = f'mmattn.{cls.__name__}'
    published = {
        key: entry
        for key, entry in published_files().items()
        if entry.get('type') == kind and entry.get('args') == dict(arch=arch)
    }
    # A file of a detector has other figures, and a related network another license.
    own = [
        key
        for key, entry in published.items()
        if str(entry.get('figures', '')).startswith('classification/')
    ]
    related = cls.starts.get(arch)
    start = SCHEME + own[0] if own else related
    known = published_files().get((start or '').partition('://')[2], {})
    return Arch(
        name,
        kind,
        arch,
        backbone.out_channels,
        sum(p.numel() for p in backbone.parameters()),
        start,
        known.get('license'),
        start is not None and start == related,
    )


def archs() -> Iterator[Arch]:
    """Yield every backbone that converted configs may have."""
    for name, (cls, arch) in all_presets().items():
        widths = cls.arch_zoo[arch].get('embed_dims')
        if isinstance(widths, tuple | list) and len(widths) == len(STRIDES):
            yield find_arch(name)


def backbone_text(arch: Arch, inputs: Inputs, pretrained: str | None = None) -> str:
    """Return the lines of a config, in a `model`, of a backbone and its start.

    Args:
        arch: the backbone.
        inputs: how images are read.
        pretrained: weights to start from, 'none' for random ones; None takes the
            published ones where there are some.
    """
    start = arch.start if pretrained is None else pretrained
    given = f'type={arch.type!r}, arch={arch.preset!r}, {inputs.backbone}'
    lines = [
        f'# {inputs.about}',
        'data_preprocessor=dict(',
        *(f'    {line}' for line in inputs.preprocessor),
        f'    mean={list(inputs.mean)!r},',
        f'    std={list(inputs.std)!r},',
        '),',
    ]
    if start in (None, RANDOM):
        lines += [
            '# Without published weights the network starts from random ones.',
            f'backbone=dict({given.rstrip(", ")}),',
        ]
    else:
        known = arch.license and start == arch.start
        terms = f' License: {arch.license}.' if known else ''
        lines += [
            f'# `mmattn train --pretrained {RANDOM}` takes random weights.{terms}',
            'backbone=dict(',
            f'    {given.rstrip()}',
            f"    init_cfg=dict(type='Pretrained', checkpoint={start!r}),",
            '),',
        ]
    return '\n'.join(f'    {line}' for line in lines)

"""The backbones that checkpoints are converted for, and what is known of each."""

import inspect
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType

from torch import Tensor

import mmattn.models  # noqa: F401  registers the backbones
from mmattn.analysis.flops import build
from mmattn.models.backbones.base_backbone import BaseBackbone
from mmattn.registry import MODELS


@dataclass(frozen=True)
class Model:
    """A backbone in one of its sizes."""

    backbone: type[BaseBackbone]
    arch: str

    @property
    def module(self) -> ModuleType:
        return sys.modules[self.backbone.__module__]

    @property
    def file(self) -> str:
        return self.module.__name__.rpartition('.')[2]

    @property
    def name(self) -> str:
        return f'{self.file}_{self.arch}'.replace('-', '_')

    def build(
        self, options: Mapping, init_cfg: dict | None = None, *, device: str = 'cpu'
    ) -> BaseBackbone:
        """With other arguments than its default ones in `options`; fast on 'meta'.

        Raises:
            ValueError: it has no such arguments.
        """
        known = set(inspect.signature(self.backbone).parameters) - {'arch', 'init_cfg'}
        if unknown := sorted(options.keys() - known):
            raise ValueError(
                f'{self.backbone.__name__} has no arguments {unknown}; it has '
                f'{sorted(known)}'
            )
        cfg = dict(type=f'mmattn.{self.backbone.__name__}', arch=self.arch, **options)
        backbone = build(cfg, device)
        backbone.init_cfg = init_cfg
        return backbone

    def layout_of(self, weights: Mapping[str, Tensor]) -> str:
        """Whose names these are; ValueError where that is not known."""
        if hasattr(self.module, 'layout_of'):
            return self.module.layout_of(weights)
        return f'one that {self.backbone.__name__} reads'

    def convert(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """From a known layout to our names."""
        if hasattr(self.module, 'convert_state_dict'):
            return self.module.convert_state_dict(weights)
        return dict(weights)


def known_models() -> dict[str, Model]:
    """The registered backbones in all their sizes, as their file and the size."""
    backbones = {
        cls for cls in MODELS.module_dict.values() if issubclass(cls, BaseBackbone)
    }
    found = [Model(cls, arch) for cls in backbones for arch in cls.arch_zoo]
    return {model.name: model for model in sorted(found, key=lambda m: m.name)}

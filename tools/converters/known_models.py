"""Models that checkpoints are converted for, with their names and layouts."""

import inspect
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from mmengine.config import Config
from torch import Tensor, nn

import mmattn.models  # noqa: F401  registers the backbones
from mmattn.analysis.flops import build
from mmattn.compat.mmengine_scopes import config_folder
from mmattn.errors import UserError
from mmattn.models.backbones.base_backbone import BaseBackbone
from mmattn.registry import MODELS
from mmattn.weights.layouts import deformable_detr

DEFORMABLE_DETR = 'deformable_detr'
SCHEDULE = '_50e_coco'


@dataclass(frozen=True)
class Model:
    """A backbone in one of its sizes."""

    backbone: type[BaseBackbone]
    arch: str

    @property
    def family(self) -> object:
        """Return what identifies the network, whatever its size."""
        return self.backbone

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
        """Build the backbone with the arguments in `options`; fast on 'meta'.

        Raises:
            ValueError: the backbone does not accept these arguments.
        """
        known = set(inspect.signature(self.backbone).parameters) - {'arch', 'init_cfg'}
        if unknown := sorted(options.keys() - known):
            raise UserError(
                f'{self.backbone.__name__} does not accept {unknown}; it accepts '
                f'{sorted(known)}'
            )
        cfg = dict(type=f'mmattn.{self.backbone.__name__}', arch=self.arch, **options)
        backbone = build(cfg, device)
        backbone.init_cfg = init_cfg
        return backbone

    def layout_of(self, weights: Mapping[str, Tensor]) -> str:
        """Return whose names these are; raise ValueError if they are unknown."""
        if hasattr(self.module, 'layout_of'):
            return self.module.layout_of(weights)
        return f'one that {self.backbone.__name__} reads'

    def convert(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Rename weights of a known layout to our names."""
        if hasattr(self.module, 'convert_state_dict'):
            return self.module.convert_state_dict(weights)
        return dict(weights)

    def fit(self, options: Mapping, weights: Mapping[str, Tensor]) -> dict:
        """Return the options, with those that follow from weights with our names."""
        return dict(options)

    def misfit(self, options: Mapping, weights: Mapping[str, Tensor]) -> str | None:
        """Return why weights of the right names and shapes do not fit, or None."""
        return None


@dataclass(frozen=True)
class Detector:
    """A Deformable DETR of our configs whose weights its authors published."""

    config: Path

    family = file = DEFORMABLE_DETR

    @property
    def name(self) -> str:
        return f'{self.file}_{self.config.stem.removesuffix(SCHEDULE)}'

    def build(
        self, options: Mapping, init_cfg: dict | None = None, *, device: str = 'cpu'
    ) -> nn.Module:
        """Build the detector with settings in `options`: `decoder.num_queries=100`."""
        detector = build(self._with(options), device)
        detector.init_cfg = init_cfg
        return detector

    def layout_of(self, weights: Mapping[str, Tensor]) -> str:
        return deformable_detr.layout_of(weights)

    def convert(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        converted = deformable_detr.convert_state_dict(weights)
        return deformable_detr.with_neck_biases(converted)

    def fit(self, options: Mapping, weights: Mapping[str, Tensor]) -> dict:
        """Return the options with as many classes as in the file."""
        classes = len(weights['bbox_head.cls_branches.0.bias'])
        return {'bbox_head.num_classes': classes, **options}

    def misfit(self, options: Mapping, weights: Mapping[str, Tensor]) -> str | None:
        given = deformable_detr.refines_boxes(weights)
        expected = self._with(options).model.decoder.with_box_refine
        if given == expected:
            return None
        return (
            f'{self.name} has with_box_refine={expected}, but the branches of the '
            f'layers {"differ" if given else "are all the same"}'
        )

    def _with(self, options: Mapping) -> Config:
        cfg = Config.fromfile(self.config)
        cfg.merge_from_dict({f'model.{key}': value for key, value in options.items()})
        return cfg


def known_models() -> dict[str, Model | Detector]:
    """Return registered backbones in all sizes, and detectors, by file and size."""
    backbones = {
        cls for cls in MODELS.module_dict.values() if issubclass(cls, BaseBackbone)
    }
    found = [Model(cls, arch) for cls in backbones for arch in cls.arch_zoo]
    configs = (config_folder() / DEFORMABLE_DETR).glob(f'r50*{SCHEDULE}.py')
    found += map(Detector, configs)
    return {model.name: model for model in sorted(found, key=lambda m: m.name)}

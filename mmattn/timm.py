"""Our backbones in timm.

After `import mmattn.timm`, timm knows each preset of `mmattn.list_models()` under the
prefix `mmattn_`:

    timm.create_model('mmattn_ivit_tiny', num_classes=10, in_chans=4)
    timm.create_model('mmattn_ivit_tiny', features_only=True, out_indices=(1, 2, 3))

Models are `PooledClassifier`s and have no weights to download. As in timm's own models,
the maps of `features_only` come without norms; `mmattn.IViT('tiny')` returns normed
maps. Other arguments, such as `landmarks` of `IViT`, go to the backbone.
"""

from collections.abc import Mapping
from functools import partial

from torch import Tensor, nn

try:
    from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
    from timm.models import (
        build_model_with_cfg,
        generate_default_cfgs,
        register_model,
    )
except ImportError as error:
    raise ImportError(
        f'mmattn.timm requires timm 1.0.9 or newer ({error}): pip install "timm>=1.0.9"'
    ) from error

from mmattn.models.backbones.base_backbone import BaseBackbone
from mmattn.models.classifiers.pooled import PREFIX, PooledClassifier
from mmattn.models.presets import all_presets

__all__: list[str] = []  # timm adds the names of the models
CLASSIFIER_ARGUMENTS = 'num_classes', 'global_pool', 'drop_rate'
HEAD = 'head.weight', 'head.bias', 'fc_norm.weight', 'fc_norm.bias'


def build(
    cls: type[BaseBackbone], arch: str, in_chans: int = 3, **settings
) -> PooledClassifier:
    """Build a classifier from timm's arguments."""
    head = {k: settings.pop(k) for k in CLASSIFIER_ARGUMENTS if k in settings}
    backbone = cls(arch, in_channels=in_chans, out_indices=-1, **settings)
    return PooledClassifier(backbone, **head)


def filter_weights(
    weights: Mapping[str, Tensor], model: nn.Module
) -> dict[str, Tensor]:
    """Give weights our names: of a backbone, or of a classifier of timm or mmpretrain.

    The backbone renames its own, such as those of timm's `pvt_v2`, when it loads them.
    """
    whole = any(name.startswith(PREFIX) for name in weights)
    renamed = {}
    for name, value in weights.items():
        name = name.replace('head.fc.', 'head.')  # of mmpretrain
        if name in HEAD or name.startswith(PREFIX):
            renamed[name] = value
        elif not whole:
            renamed[PREFIX + name] = value
    return renamed


def timm_name(name: str) -> str:
    """Return timm's name of a preset."""
    return f'mmattn_{name}'


def num_levels(cls: type[BaseBackbone], arch: str) -> int:
    """Return the number of stages of a pyramid, or of blocks of a plain network."""
    preset = cls.arch_zoo[arch]
    return len(preset['depths']) if 'depths' in preset else preset['depth']


def default_cfg(cls: type[BaseBackbone], arch: str) -> dict:
    """Return timm's record of a preset."""
    side = 7 if num_levels(cls, arch) == 4 else 14  # strides of 32 and 16
    return dict(
        url='',
        num_classes=1000,
        input_size=(3, 224, 224),
        pool_size=(side, side),
        crop_pct=0.9,
        interpolation='bicubic',
        mean=IMAGENET_DEFAULT_MEAN,
        std=IMAGENET_DEFAULT_STD,
        first_conv=PREFIX + cls.stem_conv,
        classifier='head',
        license='apache-2.0',
    )


def register(name: str, cls: type[BaseBackbone], arch: str):
    """Register a preset; timm reads the module and the name of the function."""
    levels = num_levels(cls, arch)

    def create(pretrained: bool = False, **settings) -> nn.Module:
        # As in timm: all maps of a pyramid, the last three of a plain network.
        default = levels if levels <= 4 else 3
        out_indices = settings.pop('out_indices', default)
        return build_model_with_cfg(
            partial(build, cls, arch),
            timm_name(name),
            pretrained,
            pretrained_filter_fn=filter_weights,
            feature_cfg=dict(out_indices=out_indices, feature_cls='getter'),
            **settings,
        )

    create.__name__ = create.__qualname__ = timm_name(name)
    create.__doc__ = f'Build {cls.__name__}({arch!r}) with the interface of timm.'
    globals()[timm_name(name)] = register_model(create)


default_cfgs = generate_default_cfgs(
    {timm_name(name): default_cfg(*preset) for name, preset in all_presets().items()}
)
for _name, _preset in all_presets().items():
    register(_name, *_preset)

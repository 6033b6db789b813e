"""Our backbones in timm.

After `import mmattn.integrations.timm`, timm knows each preset of
`mmattn.list_models()` under the prefix `mmattn_`:

    timm.create_model('mmattn_ivit_tiny', num_classes=10, in_chans=4)
    timm.create_model('mmattn_ivit_tiny', features_only=True, out_indices=(1, 2, 3))

Models are `TimmClassifier`s. As in timm's own models, the maps of `features_only` come
without norms; `mmattn.IViT('tiny')` returns normed maps. Other arguments, such as
`landmarks` of `IViT`, go to the backbone.

`pretrained=True` loads the file of the preset's name in `mmattn/weights/names.yml`,
such as `pvt_v2_b2`. `timm.list_pretrained('mmattn_*')` lists these presets.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial

import torch
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
        f'mmattn.integrations.timm requires timm 1.0.9 or newer ({error}): '
        'pip install "timm>=1.0.9"'
    ) from error

from mmattn.errors import UserError
from mmattn.models.backbones.base_backbone import BaseBackbone, channels_first
from mmattn.models.classifiers import PooledClassifier
from mmattn.models.layers import undecayed_names
from mmattn.models.layers.checks import check_images
from mmattn.models.presets import all_presets
from mmattn.weights.layouts.classifier import to_classifier
from mmattn.weights.load import find_weights
from mmattn.weights.names import SCHEME, published_files
from mmattn.weights.resolve import read_named

__all__: list[str] = []  # timm adds the names of the models
PREFIX = 'backbone.'
CLASSIFIER_ARGUMENTS = 'num_classes', 'global_pool', 'drop_rate'
NUM_CLASSES = 1000  # of ImageNet
SOURCES = 'url', 'file', 'hf_hub_id', 'source', 'state_dict'  # of weights, in timm
HEAD = 'head.weight', 'head.bias', 'fc_norm.weight', 'fc_norm.bias'


class TimmClassifier(PooledClassifier):
    """`PooledClassifier` with the methods and attributes of timm's models.

    A level is a stage of a pyramid or a block of another network.
    """

    output_fmt = 'NCHW'

    def __init__(self, backbone: BaseBackbone, num_classes: int = 1000, **settings):
        super().__init__(backbone, num_classes, **settings)
        self.in_chans = backbone.in_channels
        self.head_hidden_size = self.num_features
        name = 'blocks' if hasattr(backbone, 'blocks') else 'stages'
        levels = zip(backbone.level_channels, backbone.level_strides, strict=True)
        self.feature_info = [
            dict(num_chs=channels, reduction=stride, module=f'{PREFIX}{name}.{i}')
            for i, (channels, stride) in enumerate(levels)
        ]

    def get_classifier(self) -> nn.Module:
        """Return the linear layer, or an identity if there are no classes."""
        return self.head

    def reset_classifier(self, num_classes: int, global_pool: str | None = None):
        """Put in a new linear layer, and another pooling unless that is None."""
        self.set_head(
            num_classes, self.global_pool if global_pool is None else global_pool
        )

    def forward_features(self, x: Tensor) -> Tensor:
        """Return the last map (B, C, h, w)."""
        return self.backbone(x)[0]

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        """Return scores of the last map, or with `pre_logits` what they come from."""
        x = self.pool(x)
        x = x if pre_logits else self.head(x)
        return x if self.global_pool else x.permute(0, 3, 1, 2)

    def forward_intermediates(
        self,
        x: Tensor,
        indices: int | Sequence[int] | None = None,
        norm: bool = False,
        stop_early: bool = False,
        output_fmt: str = 'NCHW',
        intermediates_only: bool = False,
    ) -> list[Tensor] | tuple[Tensor, list[Tensor]]:
        """Return maps of any levels.

        Args:
            x: images (B, C, H, W).
            indices: levels; None takes all, a number as many of the last.
            norm: apply the norms of the levels that have one, which is the last.
            stop_early: run no level after the last of `indices`.
            output_fmt: must be 'NCHW'.
            intermediates_only: return only the maps.

        Returns:
            The last map with its norm, and the maps (B, C_i, H_i, W_i).
        """
        if output_fmt != 'NCHW':
            raise UserError(f"output_fmt must be 'NCHW', got {output_fmt!r}")
        backbone = self.backbone
        check_images(backbone, x)
        count = len(backbone.levels)
        taken = resolve_levels(indices, count)
        end = max(taken) if stop_early or intermediates_only else count - 1
        run = sorted({*taken, end})
        maps = dict(zip(run, backbone.forward_levels(x, run), strict=True))
        final = backbone.to_output(maps[end], end)
        maps = [
            backbone.to_output(maps[i], i) if norm else channels_first(maps[i])
            for i in run
            if i in taken
        ]
        return maps if intermediates_only else (final, maps)

    def prune_intermediate_layers(
        self,
        indices: int | Sequence[int] = 1,
        prune_norm: bool = False,
        prune_head: bool = True,
    ) -> list[int]:
        """Remove what the maps of `indices` do not need, and return the indices."""
        backbone, count = self.backbone, len(self.backbone.levels)
        taken = resolve_levels(indices, count)
        last = max(taken)
        cut = last < count - 1
        del backbone.levels[last + 1 :]
        backbone.out_indices = (last,)
        if cut or prune_norm:
            backbone.out_norms.clear()
        if cut:
            self.num_features = self.head_hidden_size = backbone.out_channels[0]
        if prune_head or cut:
            self.fc_norm = nn.Identity()
            self.reset_classifier(0, '')
        return taken

    def set_grad_checkpointing(self, enable: bool = True):
        """Recompute each block's activations in the backward."""
        self.backbone.with_cp = enable

    def no_weight_decay(self) -> set[str]:
        """Return the names of parameters that their layers exempt from decay."""
        return undecayed_names(self)

    def group_matcher(self, coarse: bool = False) -> Callable[[str], int]:
        """Return timm's function from a parameter's name to its layer.

        Args:
            coarse: group the stages instead of their blocks.
        """

        def layer_of(name: str) -> int:
            match name.split('.'):
                case ['backbone', 'stem', *_] if coarse:
                    return 0
                case ['backbone', 'stages' | 'blocks', level, *_] if coarse:
                    return int(level) + 1
            if coarse:
                return len(self.backbone.levels) + 1
            return self.backbone.get_layer_depth(name, PREFIX)[0]

        return layer_of


def resolve_levels(indices: int | Sequence[int] | None, count: int) -> list[int]:
    """Return indices below `count`, as timm reads them.

    None takes all, a number as many of the last; negative indices count from the end.

    Raises:
        ValueError: one is out of range.
    """
    if isinstance(indices, int):
        given = range(count - indices, count) if 0 < indices <= count else None
    else:
        given = range(count) if indices is None else indices
    if not given or any(not -count <= index < count for index in given):
        raise UserError(
            f'indices must be a number in [1, {count}], or a list of numbers in '
            f'[-{count}, {count - 1}], got {indices}'
        )
    return [index % count for index in given]


def build(
    cls: type[BaseBackbone],
    arch: str,
    in_chans: int = 3,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
    **settings,
) -> TimmClassifier:
    """Build a classifier from timm's arguments."""
    head = {k: settings.pop(k) for k in CLASSIFIER_ARGUMENTS if k in settings}
    with nullcontext() if device is None else torch.device(device):
        backbone = cls(arch, in_channels=in_chans, out_indices=-1, **settings)
        return TimmClassifier(backbone, **head).to(dtype=dtype)


def filter_weights(
    weights: Mapping[str, Tensor], model: nn.Module
) -> dict[str, Tensor]:
    """Give weights our names: of a backbone, or of a classifier of timm or mmpretrain.

    The backbone renames its own weights, such as timm's `pvt_v2`, when it loads them.
    """
    return {
        name: value
        for name, value in to_classifier(weights).items()
        if name in HEAD or name.startswith(PREFIX)
    }


def timm_name(name: str) -> str:
    """Return timm's name of a preset."""
    return f'mmattn_{name}'


def num_levels(cls: type[BaseBackbone], arch: str) -> int:
    """Return the number of stages of a pyramid, or of blocks of a plain network."""
    preset = cls.arch_zoo[arch]
    depths = preset.get('depths', (preset.get('depth'),))
    return len(depths) if len(depths) > 1 else depths[0]


def default_cfg(name: str, cls: type[BaseBackbone], arch: str) -> dict:
    """Return timm's record of a preset."""
    side = 7 if num_levels(cls, arch) == 4 else 14  # strides of 32 and 16
    return dict(
        url=published_files().get(name, {}).get('url', ''),
        num_classes=NUM_CLASSES,
        input_size=(3, 224, 224),
        pool_size=(side, side),
        crop_pct=0.9,
        interpolation='bicubic',
        mean=IMAGENET_DEFAULT_MEAN,
        std=IMAGENET_DEFAULT_STD,
        first_conv=f'{PREFIX}stem.proj',
        classifier='head',
        license='apache-2.0',
    )


def published_weights(name: str, num_classes: int) -> dict[str, Tensor]:
    """Return the weights in the published file of a preset, by the file's names.

    Raises:
        ValueError: there is no such file, or its linear layer is of another kind.
        OSError: the file is neither in the cache nor in reach.
    """
    if name not in published_files():
        raise UserError(
            f'no file is published for {timm_name(name)}. `mmattn weights list` lists '
            'files that backbones read as `checkpoint` of `mmattn.create_model`; '
            'pretrained_cfg_overlay=dict(file=...) loads your own'
        )
    weights = find_weights(read_named(SCHEME + name), SCHEME + name)
    if 'cls_token' in weights and num_classes == NUM_CLASSES:
        raise UserError(
            f'the linear layer in the file of {name} reads a class token, and '
            f"{timm_name(name)}'s reads the mean of the map: pass features_only=True, "
            'num_classes=0, or the number of classes that you train'
        )
    return dict(weights)


def register(name: str, cls: type[BaseBackbone], arch: str):
    """Register a preset; timm reads the module and the name of the function."""
    levels = num_levels(cls, arch)

    def create(pretrained: bool = False, **settings) -> nn.Module:
        # As in timm: all maps of a pyramid, the last three of a plain network.
        default = levels if levels <= 4 else 3
        out_indices = settings.pop('out_indices', default)
        overlay = dict(settings.pop('pretrained_cfg_overlay', None) or {})
        given = settings.get('pretrained_cfg') or any(map(overlay.get, SOURCES))
        if pretrained and not given:
            features = settings.get('features_only', False)
            num_classes = 0 if features else settings.get('num_classes', NUM_CLASSES)
            overlay['state_dict'] = published_weights(name, num_classes)
        model = build_model_with_cfg(
            partial(build, cls, arch),
            timm_name(name),
            pretrained,
            pretrained_filter_fn=filter_weights,
            feature_cfg=dict(out_indices=out_indices, feature_cls='getter'),
            pretrained_cfg_overlay=overlay,
            **settings,
        )
        for part in (model, getattr(model, 'model', model)):  # free the file's tensors
            part.pretrained_cfg.pop('state_dict', None)
        return model

    create.__name__ = create.__qualname__ = timm_name(name)
    create.__doc__ = f'Build {cls.__name__}({arch!r}) with the interface of timm.'
    globals()[timm_name(name)] = register_model(create)


default_cfgs = generate_default_cfgs(
    {
        timm_name(name): default_cfg(name, *preset)
        for name, preset in all_presets().items()
    }
)
for _name, _preset in all_presets().items():
    register(_name, *_preset)

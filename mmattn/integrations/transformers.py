"""Our backbones in Hugging Face's transformers.

After `import mmattn.integrations.transformers`, transformers knows the model type
`mmattn`:

    config = MMAttnConfig(backbone='ivit_tiny', out_indices=[0, 1, 2, 3])
    model = AutoBackbone.from_config(config)
    model.save_pretrained(folder)  # safetensors
    model = MMAttnBackbone.from_pretrained(folder)

`AutoBackbone.from_pretrained` reads a repository on the hub; transformers 5.23 does not
let it read folders.

Models with a `backbone_config`, such as `UperNetForSemanticSegmentation`, take a
`MMAttnConfig` there.
"""

from itertools import chain

import torch
from torch import Tensor, nn

try:
    from transformers import AutoBackbone, AutoConfig, PreTrainedConfig, PreTrainedModel
    from transformers.backbone_utils import BackboneConfigMixin, BackboneMixin
    from transformers.modeling_outputs import BackboneOutput
except ImportError as error:
    raise ImportError(
        'mmattn.integrations.transformers requires transformers 5.23 or newer '
        f'({error}): '
        'pip install "mmattn[transformers]"'
    ) from error

from mmattn.errors import UserError
from mmattn.models.backbones.base_backbone import BaseBackbone
from mmattn.models.layers.checks import check_images
from mmattn.models.presets import create_model

__all__ = ['MMAttnBackbone', 'MMAttnConfig']


class MMAttnConfig(BackboneConfigMixin, PreTrainedConfig):
    """Config of one of our backbones.

    Args:
        backbone: one of `mmattn.list_models()`.
        num_channels: channels of the images.
        settings: other arguments of the backbone, such as `dict(drop_path_rate=0.1)`.
        out_indices: levels whose maps are returned; the last one by default.
        out_features: the same by name, 'stage1' and so on. A plain network has as many
            stages as blocks.

    Attributes:
        hidden_sizes: channels of the levels.
    """

    model_type = 'mmattn'

    backbone: str = 'ivit_tiny'
    num_channels: int = 3
    settings: dict | None = None
    _out_features: list[str] | None = None
    _out_indices: list[int] | None = None

    def __post_init__(self, **kwargs):
        with torch.device('meta'):
            self.hidden_sizes = list(self.build(out_indices=-1).level_channels)
        kwargs.pop('stage_names', None)
        self.stage_names = [f'stage{i + 1}' for i in range(len(self.hidden_sizes))]
        self.set_output_features_output_indices(
            out_indices=kwargs.pop('out_indices', None),
            out_features=kwargs.pop('out_features', None),
        )
        kwargs.pop('hidden_sizes', None)
        super().__post_init__(**kwargs)

    def build(self, out_indices: int | tuple[int, ...]) -> BaseBackbone:
        """Build the backbone of plain PyTorch."""
        settings = self.settings or {}
        return create_model(
            self.backbone,
            in_channels=self.num_channels,
            out_indices=out_indices,
            **settings,
        )


class MMAttnBackbone(BackboneMixin, PreTrainedModel):
    """One of our backbones, with the interface of transformers' backbones.

    Forward:
        Takes images (B, C, H, W) and returns a `BackboneOutput` with the maps of
        `out_indices`, after their norms. `hidden_states` are the maps of all levels up
        to the last of them, without norms. Attention maps are not available:
        `mmattn.analysis` computes them.
    """

    config: MMAttnConfig
    config_class = MMAttnConfig
    main_input_name = 'pixel_values'
    input_modalities = ('image',)
    supports_gradient_checkpointing = True
    has_attentions = False
    _supports_sdpa = True

    def __init__(self, config: MMAttnConfig):
        super().__init__(config)
        self.num_features = config.hidden_sizes
        self.backbone = config.build(tuple(config.out_indices))
        self._is_empty = next(self.backbone.parameters()).is_meta
        self._new = ()  # in a tuple, a module is no submodule
        self.post_init()

    def initialize_weights(self):
        super().initialize_weights()
        self._new = ()

    def _init_weights(self, module: nn.Module):
        """Give what a checkpoint lacks the values of a new backbone.

        transformers builds on the device `meta` before it loads, and calls this for
        each module afterwards. Without a checkpoint, the constructor's values stay.
        """
        if not self._is_empty:
            return
        own = chain(
            module.named_parameters(recurse=False), module.named_buffers(recurse=False)
        )
        lacking = {
            name: value
            for name, value in own
            if not getattr(value, '_is_hf_initialized', False)
        }
        if not lacking:
            return
        name = next(name for name, part in self.named_modules() if part is module)
        if not self._new:
            self._new = (self.config.build(tuple(self.config.out_indices)),)
        new = self._new[0].get_submodule(name.removeprefix('backbone').lstrip('.'))
        values = dict(chain(new.named_parameters(), new.named_buffers()))
        with torch.no_grad():
            for name, value in lacking.items():
                value.copy_(values[name])

    def _set_gradient_checkpointing(self, enable: bool = True, **kwargs):
        self.gradient_checkpointing = enable
        self.backbone.with_cp = enable

    def forward(
        self,
        pixel_values: Tensor,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        return_dict: bool | None = None,
        **kwargs,
    ) -> BackboneOutput | tuple:
        if output_attentions:
            raise UserError(
                'MMAttnBackbone: output_attentions must be False; '
                '`mmattn.analysis.attention_maps` computes attention maps'
            )
        if output_hidden_states is None:
            output_hidden_states = self.config.output_hidden_states
        if return_dict is None:
            return_dict = self.config.return_dict
        hidden_states = None
        if output_hidden_states:
            maps, hidden_states = self._all_levels(pixel_values)
        else:
            maps = self.backbone(pixel_values)
        output = BackboneOutput(feature_maps=maps, hidden_states=hidden_states)
        return output if return_dict else output.to_tuple()

    def _all_levels(self, x: Tensor) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        backbone = self.backbone
        check_images(backbone, x)
        hidden = backbone.forward_levels(x, range(backbone.out_indices[-1] + 1))
        maps = tuple(backbone.to_output(hidden[i], i) for i in backbone.out_indices)
        return maps, tuple(x.movedim(-1, 1) for x in hidden)


AutoConfig.register(MMAttnConfig.model_type, MMAttnConfig)
AutoBackbone.register(MMAttnConfig, MMAttnBackbone)

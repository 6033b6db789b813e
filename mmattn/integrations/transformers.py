"""Our backbones in Hugging Face's transformers.

After `import mmattn.integrations.transformers`, transformers knows the model type
`mmattn`:

    config = MMAttnConfig(backbone='ivit_tiny', out_indices=[1, 2, 3, 4])
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
        out_indices: places in `stage_names` of the maps that are returned, as in
            transformers: 0 is the stem and 1 the first stage, which is `out_indices=0`
            of our own backbones. Defaults to the last stage.
        out_features: the same by name: 'stem', 'stage1' and so on.

    Attributes:
        num_hidden_layers: number of stages. A plain network has as many as blocks.
        hidden_sizes: channels of the stages.
        stage_names: 'stem' and the names of the stages.
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
        self.num_hidden_layers = len(self.hidden_sizes)
        stages = range(1, self.num_hidden_layers + 1)
        self.stage_names = ['stem', *(f'stage{i}' for i in stages)]
        self.set_output_features_output_indices(
            out_indices=kwargs.pop('out_indices', None),
            out_features=kwargs.pop('out_features', None),
        )
        for derived in ('hidden_sizes', 'num_hidden_layers', 'stage_names'):
            kwargs.pop(derived, None)
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
        `out_features`. Maps of stages are normed. `hidden_states` are the maps of the
        stem and of all stages up to the last of `out_features`, without norms.
        Attention maps are not available: `mmattn.analysis` computes them.
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
        self.num_features = [config.hidden_sizes[0], *config.hidden_sizes]
        self.backbone = self._build()
        self._is_empty = next(self.backbone.parameters()).is_meta
        self._new = ()  # in a tuple, a module is no submodule
        self.post_init()

    @property
    def _levels(self) -> list[int]:
        """Return our levels of `out_features`, of which -1 is the stem."""
        return [self.stage_names.index(name) - 1 for name in self.out_features]

    def _build(self) -> BaseBackbone:
        # A backbone has at least one level, also where only the stem is read.
        levels = [level for level in self._levels if level >= 0]
        return self.config.build(tuple(levels or [0]))

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
            self._new = (self._build(),)
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
        backbone, levels = self.backbone, self._levels
        if tuple(levels) == backbone.out_indices and not output_hidden_states:
            output = BackboneOutput(feature_maps=backbone(pixel_values))
            return output if return_dict else output.to_tuple()
        check_images(backbone, pixel_values)
        run = range(-1, levels[-1] + 1) if output_hidden_states else levels
        maps = dict(zip(run, backbone.forward_levels(pixel_values, run), strict=True))
        output = BackboneOutput(
            feature_maps=tuple(backbone.to_output(maps[i], i) for i in levels)
        )
        if output_hidden_states:
            output.hidden_states = tuple(x.movedim(-1, 1) for x in maps.values())
        return output if return_dict else output.to_tuple()


AutoConfig.register(MMAttnConfig.model_type, MMAttnConfig)
AutoBackbone.register(MMAttnConfig, MMAttnBackbone)

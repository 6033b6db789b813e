"""The frame of all backbones: a stem, levels, and norms of the returned maps.

A *level* is what one of `out_indices` names: a stage of a pyramid, or a block where all
blocks see one grid. As in timm, a pyramid has `stages`, the other networks `blocks`.
"""

from collections.abc import Callable, Mapping, Sequence
from inspect import Parameter, Signature, signature

import torch
from torch import Size, Tensor, nn
from torch.utils.checkpoint import checkpoint

from mmattn.errors import UserError
from mmattn.models.layers import Initializable, drop_path_rates, fit_image_channels
from mmattn.models.layers.checks import check_images, resolve_compile, resolve_indices
from mmattn.ops.common.derivatives import runs_eagerly
from mmattn.weights.layouts.load_hook import load_hook

STEM = 'stem.proj.weight'  # of the convolution that reads the images


class _ChannelsFirst(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        return x.movedim(-1, 1).contiguous()

    @staticmethod
    def backward(ctx, grad: Tensor) -> Tensor:
        return grad.movedim(1, -1).contiguous()


def channels_first(x: Tensor) -> Tensor:
    """Return (B, ..., C) as (B, C, ...): a view, or a copy in training on a CPU.

    With channels last, oneDNN computes gradients of the convolutions that follow
    slowly. With channels first, PyTorch adds the map's gradients slowly to those of
    the next level, so they are copied, too.
    """
    if not x.requires_grad or x.device.type != 'cpu' or torch.jit.is_tracing():
        return x.movedim(-1, 1)
    if not runs_eagerly(x):
        return x.movedim(-1, 1).contiguous()
    return _ChannelsFirst.apply(x)


class Stage(nn.ModuleDict):
    """Downsampling, blocks and norm of a stage; an absent part is an identity.

    It has no forward, which FSDP expects of everything but lists and dicts of modules.
    """

    def __init__(
        self,
        downsample: nn.Module | None,
        blocks: Sequence[nn.Module],
        norm: nn.Module | None = None,
    ):
        super().__init__()
        self.downsample = nn.Identity() if downsample is None else downsample
        self.blocks = nn.ModuleList(blocks)
        self.norm = nn.Identity() if norm is None else norm


class BaseBackbone(Initializable):
    """Plain `nn.Module` that mmengine models can own.

    A subclass passes `**frame` on, the settings below that it has no need of. It builds
    a `stem`, which takes channels last, `blocks` up to the last returned level or
    `stages` (`build_stages`), and `out_norms` (`build_out_norms`). It calls `freeze`
    last.

    Settings of the backbones:
        arch: name of a preset of `arch_zoo`, or a dict with the keys of a preset.
        drop_path_rate: stochastic depth of the last block, growing linearly from 0.
        out_indices: levels whose maps are returned, -1 for the last; None returns all.
        out_norm: whether a layer norm ends each returned map.
        frozen_stages: 0 freezes the stem, n the stem and n levels; -1 freezes nothing.
        in_channels: channels of the images. Weights of RGB images are adapted on load.
        with_cp: recompute each block's activations in the backward.
        compile: whether calls go through `torch.compile`, or a dict of its options.
        init_cfg: mmengine initialization, for example `dict(type='Pretrained', ...)`.
    """

    arch_zoo: Mapping[str, Mapping] = {}
    # By arch, public weights of a related network, as `checkpoint` takes them: a start
    # where there are none of this network.
    starts: Mapping[str, str] = {}
    image_sides: Sequence[str] = ('H', 'W')
    min_side = 1  # pixels
    out_type = 'featmap'
    # Of the weights that were loaded last, by our names, before they are fitted to the
    # channels and the sizes of this network. `mmattn.weights.load` reports them.
    given_shapes: Mapping[str, Size] = {}

    def __init_subclass__(cls):
        """Show the settings of the frame in the signature, in place of `**frame`."""
        super().__init_subclass__()
        _, *own = signature(cls.__init__).parameters.values()
        if not own or own.pop().kind is not Parameter.VAR_KEYWORD:
            return
        names = {parameter.name for parameter in own}
        frame = (
            parameter
            for parameter in signature(cls.__base__).parameters.values()
            if parameter.kind is Parameter.KEYWORD_ONLY and parameter.name not in names
        )
        cls.__signature__ = Signature([*own, *frame])

    def __init__(
        self,
        channels: Sequence[int],  # of each level
        strides: Sequence[int] | None = None,  # 4, 8, 16 and so on by default
        *,
        out_indices: int | Sequence[int] | None = None,
        in_channels: int = 3,
        drop_path_rate: float = 0.0,
        frozen_stages: int = -1,
        with_cp: bool = False,
        compile: bool | Mapping = False,
        init_cfg: dict | list[dict] | None = None,
    ):
        super().__init__()
        name = type(self).__name__
        if in_channels < 1:
            raise UserError(f'in_channels must be 1 or more, got {in_channels}')
        self.level_channels = tuple(channels)
        self.level_strides = tuple(strides or (4 << i for i in range(len(channels))))
        self.out_indices = resolve_indices(out_indices, len(channels), name)
        self.in_channels = in_channels
        self.drop_path_rate = drop_path_rate
        self.frozen_stages = frozen_stages
        self.with_cp = with_cp
        self.init_cfg = init_cfg
        self.compile_options = resolve_compile(compile, name)
        if self.compile_options is not None:
            self.compile(**self.compile_options)
        self.register_load_state_dict_pre_hook(convert_loaded)

    @classmethod
    def resolve_arch(cls, arch: str | Mapping) -> Mapping:
        """Return the preset called `arch`, or a dict that has a preset's keys."""
        if isinstance(arch, str) and arch in cls.arch_zoo:
            return cls.arch_zoo[arch]
        keys = sorted(next(iter(cls.arch_zoo.values())))
        if isinstance(arch, str) or sorted(arch) != keys:
            raise UserError(
                f'{cls.__name__}: arch must be one of {list(cls.arch_zoo)} or a dict '
                f'with the keys {keys}, got {arch!r}'
            )
        return arch

    def __setstate__(self, state: dict):
        super().__setstate__(state)
        if self.compile_options is not None:  # copies come without compiled code
            self.compile(**self.compile_options)

    def build_stages(
        self,
        depths: Sequence[int],
        downsample: Callable[[int, int], nn.Module],
        block: Callable[[int, float], nn.Module],
        norm: Callable[[int], nn.Module | None] = lambda channels: None,
    ):
        """Build `stages` up to the last returned one.

        Args:
            depths: blocks of each stage.
            downsample: builds the start of a stage after the first, from the channels
                of the stage before and its own.
            block: builds a block from the stage's index and the rate of its drop path.
            norm: builds the norm at the end of a stage, if any, from its channels.
        """
        channels = self.level_channels
        rates = iter(drop_path_rates(self.drop_path_rate, sum(depths)))
        self.stages = nn.ModuleList()
        for i in range(self.out_indices[-1] + 1):
            start = downsample(*channels[i - 1 : i + 1]) if i else None
            blocks = [block(i, next(rates)) for _ in range(depths[i])]
            self.stages.append(Stage(start, blocks, norm(channels[i])))

    def build_out_norms(self, wanted: bool = True, **settings):
        """Build `out_norms`: a layer norm of each returned map, or none."""
        channels = zip(self.out_indices, self.out_channels, strict=True)
        norms = {str(i): nn.LayerNorm(width, **settings) for i, width in channels}
        self.out_norms = nn.ModuleDict(norms if wanted else {})

    @property
    def levels(self) -> nn.ModuleList:
        """The stages, or the blocks of a network without stages."""
        return self.blocks if hasattr(self, 'blocks') else self.stages

    @property
    def out_channels(self) -> tuple[int, ...]:
        """Channels of the returned maps."""
        return tuple(self.level_channels[i] for i in self.out_indices)

    @property
    def strides(self) -> tuple[int, ...]:
        """Pixels of the image between neighboring pixels of the returned maps."""
        return tuple(self.level_strides[i] for i in self.out_indices)

    def forward(self, x: Tensor) -> tuple:
        check_images(self, x)
        maps = self.forward_levels(x, self.out_indices)
        return tuple(map(self.to_output, maps, self.out_indices))

    def forward_levels(self, x: Tensor, indices: Sequence[int]) -> list[Tensor]:
        """Return the maps (B, H, W, C) of ascending levels, without their out norms.

        Level -1 is the stem.
        """
        x = self.stem(x.movedim(1, -1))
        maps = [x] if -1 in indices else []
        for level, part in enumerate(self.levels[: indices[-1] + 1]):
            if isinstance(part, Stage):
                x = part.downsample(x)
                for block in part.blocks:
                    x = self.run(block, x) if self.with_cp else block(x)
                x = part.norm(x)
            else:
                x = self.run(part, x)
            if level in indices:
                maps.append(x)
        return maps

    def to_output(self, x: Tensor, level: int) -> Tensor:
        """Return a level's map as (B, C, H, W), after its out norm if it has one."""
        x = self.out_norms[str(level)](x) if str(level) in self.out_norms else x
        return channels_first(x)

    def run(self, block: nn.Module, x: Tensor, *args) -> Tensor:
        """Return `block(x, *args)`, as `with_cp` says."""
        if self.with_cp and x.requires_grad:
            return checkpoint(block, x, *args, use_reentrant=False)
        return block(x, *args)

    def get_layer_depth(self, param_name: str, prefix: str = '') -> tuple[int, int]:
        """Return a parameter's depth and the number of depths, as mmpretrain does.

        0 is the stem; the last has all after the blocks. `prefix` is the backbone's.
        """
        depths = [len(getattr(stage, 'blocks', [1])) for stage in self.levels]
        depth = last = 1 + sum(depths)
        if param_name.startswith(prefix):
            match param_name.removeprefix(prefix).split('.'):
                case ['stem', *_]:
                    depth = 0
                case ['blocks', block, *_]:
                    depth = 1 + int(block)
                case ['stages', stage, 'downsample', *_]:
                    depth = 1 + sum(depths[: int(stage)])
                case ['stages', stage, 'blocks', block, *_]:
                    depth = 1 + sum(depths[: int(stage)]) + int(block)
                case ['stages', stage, 'norm', *_]:
                    depth = sum(depths[: int(stage) + 1])
        return depth, last + 1

    def freeze(self):
        """Freeze the stem and the first `frozen_stages` levels; -1 freezes nothing."""
        if not -1 <= self.frozen_stages <= len(self.levels):
            raise UserError(
                f'{type(self).__name__}: frozen_stages must be in '
                f'[-1, {len(self.levels)}], got {self.frozen_stages}'
            )
        for part in [self.stem, *self.levels][: self.frozen_stages + 1]:
            part.requires_grad_(False)
        self.train(self.training)

    def train(self, mode: bool = True):
        """Set the mode; frozen parts stay in eval mode, so their drop paths are off."""
        super().train(mode)
        for part in [self.stem, *self.levels][: self.frozen_stages + 1]:
            part.eval()
        return self

    def convert_weights(self, weights: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Give published weights our names; other names stay, for the load report."""
        return weights


@load_hook
def convert_loaded(backbone: BaseBackbone, weights: dict) -> dict:
    """Convert published weights, also from RGB images to other channels."""
    weights = dict(backbone.convert_weights(weights))
    backbone.given_shapes = {
        name: value.shape for name, value in weights.items() if hasattr(value, 'shape')
    }
    if STEM in weights:
        weights[STEM] = fit_image_channels(weights[STEM], backbone.in_channels)
    return weights

"""Base of every backbone: presets, maps, frozen stages, weight decay, compilation."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from mmattn.errors import UserError
from mmattn.models.layers import Initializable, fit_image_channels

from .calls import check_images, take_indices

if TYPE_CHECKING:
    from timm.models import FeatureInfo

# Parts of the names of parameters that weight decay would harm: special tokens, tables
# that are looked up, the mixing weights of a few heads, which start near the identity,
# and the logits of soft masks, which decay would pull to an alpha of a half.
NO_WEIGHT_DECAY = frozenset(
    {
        'cls_token',
        'dist_token',
        'pos_embed',
        'bias_table',
        'rpe_table',
        'attention.w1',
        'attention.w2',
        'w1_q',
        'w2_q',
        'w1_k',
        'w2_k',
        'alpha_logit',
    }
)


class BaseBackbone(Initializable):
    """Plain `nn.Module` that mmengine models can own.

    It requires mmengine only to load what `init_cfg` names. Subclasses set `arch_zoo`
    and `stem_conv`, build their layers, call `freeze` last, and list their modules from
    the input upwards in `stages()`.

    A *level* is what one of `out_indices` names: a stage of a pyramid, or a block of a
    plain network.

    Args:
        init_cfg: mmengine initialization, for example `dict(type='Pretrained', ...)`.
        compile: whether calls go through `torch.compile`, or a dict of its options. The
            module is compiled in place: names in the state dict stay, and copies are
            compiled as well.
        in_channels: channels of the images. Weights of 3 channels are adapted to others
            on load.
    """

    arch_zoo: Mapping[str, Mapping] = {}
    stem_conv = 'patch_embed.proj'  # the convolution that reads the images
    image_sides: Sequence[str] = ('H', 'W')
    out_type = 'featmap'
    out_indices: tuple[int, ...]
    out_norms: Mapping[str, nn.Module]

    def __init__(
        self,
        init_cfg: dict | list[dict] | None,
        compile: bool | Mapping = False,
        in_channels: int = 3,
    ):
        super().__init__()
        if in_channels < 1:
            raise UserError(f'in_channels must be 1 or more, got {in_channels}')
        self.init_cfg = init_cfg
        self.in_channels = in_channels
        self.frozen_stages = -1
        self.compile_options = self._resolve_compile(compile)
        self._compile_calls()

    def resolve_arch(self, arch: str | Mapping) -> Mapping:
        """Return the preset called `arch`, or a dict that has a preset's keys."""
        if isinstance(arch, str):
            if arch not in self.arch_zoo:
                raise UserError(
                    f'{type(self).__name__}: arch must be one of '
                    f'{list(self.arch_zoo)} or a dict, got {arch!r}'
                )
            return self.arch_zoo[arch]
        keys = set(next(iter(self.arch_zoo.values())))
        if set(arch) != keys:
            raise UserError(
                f'{type(self).__name__}: a custom arch must have the keys '
                f'{sorted(keys)}, '
                f'got {sorted(arch)}'
            )
        return arch

    def resolve_out_indices(
        self, out_indices: int | Sequence[int], count: int
    ) -> tuple[int, ...]:
        """Return ascending indices below `count`; negative ones count from the end."""
        given = (out_indices,) if isinstance(out_indices, int) else tuple(out_indices)
        resolved = tuple(i + count if i < 0 else i for i in given)
        if not given or any(not 0 <= i < count for i in resolved):
            raise UserError(
                f'{type(self).__name__}: out_indices must be in '
                f'[-{count}, {count - 1}], got {out_indices}'
            )
        if list(resolved) != sorted(set(resolved)):
            raise UserError(
                f'{type(self).__name__}: out_indices must ascend, got {out_indices}'
            )
        return resolved

    def _resolve_compile(self, compile: bool | Mapping) -> dict | None:
        """Return the options of `torch.compile`, or None if nothing is compiled."""
        if isinstance(compile, Mapping):
            return dict(compile)
        if not isinstance(compile, bool):
            raise UserError(
                f'{type(self).__name__}: compile must be a bool or a dict of options '
                f'of torch.compile, got {compile!r}'
            )
        return {} if compile else None

    def _compile_calls(self):
        if self.compile_options is not None:
            self.compile(**self.compile_options)

    def __setstate__(self, state: dict):
        """Compile copies and unpickled backbones, which come without compiled code."""
        super().__setstate__(state)
        self._compile_calls()

    @property
    def min_side(self) -> int:
        """Least side of an image, in pixels."""
        return 1

    def forward(self, x: Tensor) -> tuple:
        check_images(self, x)
        return self.walk(x, self.out_indices, self.output)

    def walk(
        self, x: Tensor, indices: Collection[int], take: Callable[[Any, int], Any]
    ) -> tuple:
        """Run the network up to the last of `indices` and return what `take` makes.

        Args:
            x: images (B, C, H, W).
            indices: levels.
            take: function of a level's state and index, called for each of `indices`
                as soon as the state exists. Only `output` and `raw_map` know what a
                state is.
        """
        raise NotImplementedError

    def output(self, state: Any, index: int) -> Tensor:
        """Return the map (B, C, H, W) of a level, after its norm if it has one."""
        raise NotImplementedError

    def ends_in_norm(self) -> bool:
        """Return whether a norm ends the last map."""
        return str(len(self.levels()) - 1) in self.out_norms

    def raw_map(self, state: Any) -> Tensor:
        """Return the map (B, C, H, W) of a level without its norm."""
        return state.movedim(-1, 1)

    def levels(self) -> list[tuple[int, int]]:
        """Return the channels and the stride of the map of each level."""
        raise NotImplementedError

    @property
    def out_channels(self) -> tuple[int, ...]:
        """Channels of the returned maps."""
        levels = self.levels()
        return tuple(levels[index][0] for index in self.out_indices)

    @property
    def strides(self) -> tuple[int, ...]:
        """Pixels of the image between neighboring pixels of the returned maps."""
        levels = self.levels()
        return tuple(levels[index][1] for index in self.out_indices)

    @property
    def feature_info(self) -> 'FeatureInfo':
        """timm's description of the levels.

        `feature_info.channels()` and `feature_info.reduction()` are `out_channels` and
        `strides` as lists.
        """
        from timm.models import FeatureInfo

        return FeatureInfo(self.describe_levels(), self.out_indices)

    def describe_levels(self) -> list[dict]:
        """Return timm's record of each level: channels, stride and last module."""
        names = {module: name for name, module in self.named_modules()}
        modules = [
            [part for part in stage if isinstance(part, nn.Module)]
            for stage in self.stages()[1:]
        ]
        ends = [
            parts[-1][-1] if isinstance(parts[-1], nn.ModuleList) else parts[-1]
            for parts in modules
        ]
        return [
            dict(num_chs=channels, reduction=stride, module=names[end])
            for (channels, stride), end in zip(self.levels(), ends, strict=True)
        ]

    def forward_intermediates(
        self,
        x: Tensor,
        indices: int | Sequence[int] | None = None,
        norm: bool = False,
        stop_early: bool = False,
        output_fmt: str = 'NCHW',
        intermediates_only: bool = False,
    ) -> list[Tensor] | tuple[Tensor, list[Tensor]]:
        """Return maps of any levels, as timm's models do.

        Args:
            x: images (B, C, H, W).
            indices: levels; None takes all, a number as many of the last.
            norm: apply the norms of the levels that have one. A backbone has norms for
                its `out_indices`.
            stop_early: run no level after the last of `indices`.
            output_fmt: must be 'NCHW'.
            intermediates_only: return only the maps.

        Returns:
            The last map with its norm, and the maps (B, C_i, H_i, W_i).
        """
        if output_fmt != 'NCHW' or self.out_type != 'featmap':
            raise UserError(
                f"{type(self).__name__}: output_fmt must be 'NCHW' and out_type "
                f"'featmap', got {output_fmt!r} and {self.out_type!r}"
            )
        check_images(self, x)
        count = len(self.levels())
        taken = take_indices(indices, count)
        end = max(taken) if stop_early or intermediates_only else count - 1

        def take(state: Any, index: int) -> tuple[Tensor | None, Tensor | None]:
            final = self.output(state, index) if index == end else None
            if index not in taken:
                return None, final
            return self.output(state, index) if norm else self.raw_map(state), final

        states = self.walk(x, sorted({*taken, end}), take)
        maps = [features for features, _ in states if features is not None]
        return maps if intermediates_only else (states[-1][1], maps)

    def level_lists(self) -> list[nn.ModuleList]:
        """Return the lists with one entry for each level."""
        raise NotImplementedError

    def prune(self, last: int, keep_norms: bool = True):
        """Remove the levels above `last`, their norms, and all norms if asked to."""
        for modules in self.level_lists():
            del modules[last + 1 :]
        self.out_indices = tuple(i for i in self.out_indices if i <= last) or (last,)
        for name in list(self.out_norms):
            if int(name) > last or not keep_norms:
                del self.out_norms[name]

    def set_grad_checkpointing(self, enable: bool = True):
        """Recompute each block's activations in the backward, as `with_cp` does."""
        self.with_cp = enable

    def _load_from_state_dict(self, state_dict: dict, prefix: str, *args):
        # The hooks, which this call runs, give weights of other projects our names.
        super()._load_from_state_dict(state_dict, prefix, *args)
        key = f'{prefix}{self.stem_conv}.weight'
        if key in state_dict:
            state_dict[key] = fit_image_channels(state_dict[key], self.in_channels)

    def stages(self) -> list[list[nn.Module | nn.Parameter]]:
        """Return the parts that are frozen together: the stem, then each stage.

        A `ModuleList` among a stage's parts holds its blocks. Each block is a layer of
        `get_layer_depth`; a stage without blocks is a single layer.
        """
        raise NotImplementedError

    def get_layer_depth(
        self, param_name: str, prefix: str = '', coarse: bool = False
    ) -> tuple[int, int]:
        """Return a parameter's depth and the number of depths.

        Layer-wise learning rates use them. As in mmpretrain, 0 is the stem, then come
        the blocks, and the last depth has all that follows, also in the rest of the
        model. `prefix` is this backbone's prefix in `param_name`. With `coarse` each
        stage is a single layer.
        """
        layers = self.stages() if coarse else self._layers()
        depths = {
            id(part): depth for depth, layer in enumerate(layers) for part in layer
        }
        if param_name.startswith(prefix):
            part = self
            for name in param_name[len(prefix) :].split('.'):
                part = getattr(part, name)
                if id(part) in depths:
                    return depths[id(part)], len(layers) + 1
        return len(layers), len(layers) + 1

    def _layers(self) -> list[list[nn.Module | nn.Parameter]]:
        """Return the blocks; other parts of a stage join its first or last block."""
        layers = []
        for stage in self.stages():
            layers.append([])
            blocks = 0
            for part in stage:
                if not isinstance(part, nn.ModuleList):
                    layers[-1].append(part)
                    continue
                for block in part:
                    if blocks:
                        layers.append([])
                    layers[-1].append(block)
                    blocks += 1
        return layers

    def no_weight_decay(self) -> set[str]:
        """Return the names of parameters without decay, for timm's optimizers."""
        keywords = self.no_weight_decay_keywords()
        return {
            name
            for name, _ in self.named_parameters()
            if any(keyword in name for keyword in keywords)
        }

    def no_weight_decay_keywords(self) -> frozenset[str]:
        """Return parts of the names of parameters that should not decay."""
        return NO_WEIGHT_DECAY

    def freeze(self, frozen_stages: int):
        """Freeze the stem and the first `frozen_stages` stages; -1 freezes nothing."""
        stages = self.stages()
        if not -1 <= frozen_stages < len(stages):
            raise UserError(
                f'{type(self).__name__}: frozen_stages must be in '
                f'[-1, {len(stages) - 1}], got {frozen_stages}'
            )
        self.frozen_stages = frozen_stages
        for part in self._frozen_parts():
            part.requires_grad_(False)
        self.train(self.training)

    def _frozen_parts(self):
        return [
            part for stage in self.stages()[: self.frozen_stages + 1] for part in stage
        ]

    def train(self, mode: bool = True):
        """Set the mode; frozen parts stay in eval mode, so their drop paths are off."""
        super().train(mode)
        for part in self._frozen_parts():
            if isinstance(part, nn.Module):
                part.eval()
        return self


def presets(keys: Sequence[str], rows: Mapping[str, Sequence]) -> dict[str, dict]:
    """Build an `arch_zoo` from a table with a row for each preset."""
    return {name: dict(zip(keys, row, strict=True)) for name, row in rows.items()}


def run_block(block: nn.Module, x: Tensor, with_cp: bool, *args) -> Tensor:
    """Return `block(x, *args)`; the backward recomputes activations if `with_cp`."""
    if with_cp and x.requires_grad:
        return checkpoint(block, x, *args, use_reentrant=False)
    return block(x, *args)


def drop_path_rates(last: float, depth: int, schedule: str = 'linear') -> list[float]:
    """Return the stochastic depth of each of `depth` blocks.

    It grows linearly from 0 to `last`, or is `last` for all if `schedule` is
    'constant'.
    """
    if schedule not in ('linear', 'constant'):
        raise UserError(
            f"drop_path_schedule must be 'linear' or 'constant', got {schedule!r}"
        )
    if schedule == 'constant':
        return [last] * depth
    return [last * i / max(1, depth - 1) for i in range(depth)]

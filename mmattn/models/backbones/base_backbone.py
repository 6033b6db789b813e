"""Base of every backbone: presets, frozen stages, weight decay, compilation."""

from collections.abc import Mapping, Sequence

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from mmattn.models.layers import Initializable

# Parts of the names of parameters that weight decay would harm: special tokens, tables
# that are looked up, the mixing weights of a few heads, which start near the identity,
# and the logits of soft masks, which decay would pull to an alpha of a half.
NO_WEIGHT_DECAY = frozenset(
    (
        'cls_token',
        'dist_token',
        'pos_embed',
        'bias_table',
        'rpe_table',
        'w1_q',
        'w2_q',
        'w1_k',
        'w2_k',
        'alpha_logit',
    )
)


class BaseBackbone(Initializable):
    """Plain `nn.Module` that mmengine models can own.

    It requires mmengine only to load what `init_cfg` names. Subclasses set `arch_zoo`,
    build their layers, call `freeze` last, and list their modules from the input
    upwards in `stages()`.

    Args:
        init_cfg: mmengine initialization, for example `dict(type='Pretrained', ...)`.
        compile: whether calls go through `torch.compile`, or a dict of its options. The
            module is compiled in place: names in the state dict stay, and copies are
            compiled as well.
    """

    arch_zoo: Mapping[str, Mapping] = {}

    def __init__(
        self,
        init_cfg: dict | list[dict] | None,
        compile: bool | Mapping = False,
    ):
        super().__init__()
        self.init_cfg = init_cfg
        self.frozen_stages = -1
        self.compile_options = self._resolve_compile(compile)
        self._compile_calls()

    def resolve_arch(self, arch: str | Mapping) -> Mapping:
        """Return the preset called `arch`, or a dict that has a preset's keys."""
        if isinstance(arch, str):
            if arch not in self.arch_zoo:
                raise ValueError(
                    f'{type(self).__name__}: arch must be one of '
                    f'{list(self.arch_zoo)} or a dict, got {arch!r}'
                )
            return self.arch_zoo[arch]
        keys = set(next(iter(self.arch_zoo.values())))
        if set(arch) != keys:
            raise ValueError(
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
            raise ValueError(
                f'{type(self).__name__}: out_indices must be in '
                f'[-{count}, {count - 1}], got {out_indices}'
            )
        if list(resolved) != sorted(set(resolved)):
            raise ValueError(
                f'{type(self).__name__}: out_indices must ascend, got {out_indices}'
            )
        return resolved

    def _resolve_compile(self, compile: bool | Mapping) -> dict | None:
        """Return the options of `torch.compile`, or None if nothing is compiled."""
        if isinstance(compile, Mapping):
            return dict(compile)
        if not isinstance(compile, bool):
            raise ValueError(
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

    def stages(self) -> list[list[nn.Module | nn.Parameter]]:
        """Return the parts that are frozen together: the stem, then each stage.

        A `ModuleList` among a stage's parts holds its blocks. Each block is a layer of
        `get_layer_depth`; a stage without blocks is a single layer.
        """
        raise NotImplementedError

    def get_layer_depth(self, param_name: str, prefix: str = '') -> tuple[int, int]:
        """Return a parameter's depth and the number of depths.

        Layer-wise learning rates use them. As in mmpretrain, 0 is the stem, then come
        the blocks, and the last depth has all that follows, also in the rest of the
        model. `prefix` is this backbone's prefix in `param_name`.
        """
        layers = self._layers()
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
            raise ValueError(
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
        raise ValueError(
            f"drop_path_schedule must be 'linear' or 'constant', got {schedule!r}"
        )
    if schedule == 'constant':
        return [last] * depth
    return [last * i / max(1, depth - 1) for i in range(depth)]

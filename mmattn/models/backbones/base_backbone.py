"""What every backbone shares: presets, frozen stages, pretrained weights."""

from collections.abc import Mapping

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


class BaseBackbone(nn.Module):
    """A plain `nn.Module` that mmengine models can own; needs mmengine only to load.

    Subclasses set `arch_zoo`, build their layers, call `freeze` last, and list their
    modules from the input upwards in `stages()`.
    """

    arch_zoo: Mapping[str, Mapping] = {}

    def __init__(self, init_cfg: dict | list[dict] | None):
        super().__init__()
        self.init_cfg = init_cfg
        self.frozen_stages = -1

    def resolve_arch(self, arch: str | Mapping) -> Mapping:
        """The preset called `arch`, or `arch` itself when it has a preset's keys."""
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
                f'{type(self).__name__}: a custom arch has the keys {sorted(keys)}, '
                f'got {sorted(arch)}'
            )
        return arch

    def resolve_out_indices(
        self, out_indices: int | tuple[int, ...], count: int
    ) -> tuple[int, ...]:
        """Ascending indices below `count`; negative ones are counted from the end."""
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

    def stages(self) -> list[list[nn.Module | nn.Parameter]]:
        """Frozen one by one: the stem first, then each stage."""
        raise NotImplementedError

    def freeze(self, frozen_stages: int):
        """Freezes the stem and the first `frozen_stages` stages; -1 freezes nothing."""
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
        """Frozen parts stay in eval mode, so their drop paths are off."""
        super().train(mode)
        for part in self._frozen_parts():
            if isinstance(part, nn.Module):
                part.eval()
        return self

    def init_weights(self):
        """Loads what `init_cfg` names; without it the constructor's weights stay."""
        if self.init_cfg:
            from mmengine.model import initialize

            initialize(self, self.init_cfg)


def run_block(block: nn.Module, x: Tensor, with_cp: bool) -> Tensor:
    """`block(x)`, recomputing activations in the backward when `with_cp` is set."""
    if with_cp and x.requires_grad:
        return checkpoint(block, x, use_reentrant=False)
    return block(x)


def drop_path_rates(last: float, depth: int) -> list[float]:
    """Stochastic depth of each of `depth` blocks, growing linearly from 0 to `last`."""
    return [last * i / max(1, depth - 1) for i in range(depth)]

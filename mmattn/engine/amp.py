"""Automatic mixed precision on CPU and GPU alike."""

from contextlib import contextmanager

import torch
from mmengine.optim import AmpOptimWrapper as MMEngineAmpOptimWrapper
from mmengine.optim import OptimWrapper
from torch import nn

from mmattn.errors import UserError
from mmattn.registry import OPTIM_WRAPPERS

DTYPES = {'float16': torch.float16, 'bfloat16': torch.bfloat16}


@OPTIM_WRAPPERS.register_module()
class AmpOptimWrapper(MMEngineAmpOptimWrapper):
    """Train in mixed precision on any device that torch supports for autocast.

    mmengine's wrapper requires a GPU and refuses float16 on the CPU. In float16 the
    loss is scaled, and a step whose gradients overflow is skipped. bfloat16 has the
    range of float32, so its loss is not scaled. Checkpoints of one wrapper or dtype
    load into the other.

    Args:
        dtype: 'float16' or 'bfloat16'. It defaults to float16 on a GPU and bfloat16 on
            the CPU, as in torch.
        loss_scale: for float16: 'dynamic', a fixed scale, or a dict of the arguments of
            `torch.amp.GradScaler`.
        use_fsdp: scale for sharded parameters.
        **kwargs: of mmengine's `OptimWrapper`: `optimizer`, `clip_grad`,
            `accumulative_counts`.
    """

    def __init__(
        self,
        dtype: str | torch.dtype | None = None,
        loss_scale: str | float | dict = 'dynamic',
        use_fsdp: bool = False,
        **kwargs,
    ):
        # Skip mmengine's own constructor, which asserts a GPU.
        OptimWrapper.__init__(self, **kwargs)
        self.device_type = self.optimizer.param_groups[0]['params'][0].device.type
        self.cast_dtype = self._parse_dtype(dtype)
        options, self._scale_update_param = self._parse_loss_scale(loss_scale)
        if use_fsdp:
            from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

            scaler = ShardedGradScaler
        else:
            scaler = torch.amp.GradScaler
        options.setdefault('enabled', self.cast_dtype is torch.float16)
        self.loss_scaler = scaler(device=self.device_type, **options)

    def _parse_dtype(self, dtype) -> torch.dtype:
        if dtype is None:
            return torch.get_autocast_dtype(self.device_type)
        parsed = DTYPES.get(dtype, dtype)
        if parsed not in DTYPES.values():
            raise UserError(f'dtype must be one of {", ".join(DTYPES)}, got {dtype!r}')
        return parsed

    @staticmethod
    def _parse_loss_scale(loss_scale) -> tuple[dict, float | None]:
        """Return the scaler's arguments and the scale to restore after each step."""
        if loss_scale == 'dynamic':
            return {}, None
        if isinstance(loss_scale, dict):
            return dict(loss_scale), None
        if isinstance(loss_scale, int | float) and loss_scale > 0:
            return {'init_scale': float(loss_scale)}, float(loss_scale)
        raise UserError(
            f"loss_scale must be 'dynamic', a positive number or a dict, got "
            f'{loss_scale!r}'
        )

    def load_state_dict(self, state_dict: dict) -> None:
        """Load the state of any wrapper; a missing loss scale keeps its start value."""
        state_dict = dict(state_dict)
        if not state_dict.get('loss_scaler'):  # of a run in float32 or bfloat16
            state_dict.pop('loss_scaler', None)
        super().load_state_dict(state_dict)

    @contextmanager
    def optim_context(self, model: nn.Module):
        autocast = torch.autocast(self.device_type, self.cast_dtype)
        with OptimWrapper.optim_context(self, model), autocast:
            yield

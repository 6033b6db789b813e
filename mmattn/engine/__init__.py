"""A runner, hooks and data loaders that make mmengine's training reproducible."""

from mmattn.weights.read import (
    UntrustedCheckpointError,
    read_checkpoint,
    trusted_checkpoints,
)

from .amp import AmpOptimWrapper
from .checkpoint_hook import CheckpointHook
from .fsdp_strategy import FSDPStrategy
from .optim_wrapper_constructor import LayerDecayOptimWrapperConstructor
from .runner import Runner

__all__ = [
    'AmpOptimWrapper',
    'CheckpointHook',
    'FSDPStrategy',
    'LayerDecayOptimWrapperConstructor',
    'Runner',
    'UntrustedCheckpointError',
    'read_checkpoint',
    'trusted_checkpoints',
]

from .hook import CheckpointHook
from .reader import UntrustedCheckpointError, read_checkpoint, trusted_checkpoints

__all__ = [
    'CheckpointHook',
    'UntrustedCheckpointError',
    'read_checkpoint',
    'trusted_checkpoints',
]

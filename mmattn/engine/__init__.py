"""A runner, hooks and data loaders that make mmengine's training reproducible.

Names are imported when they are used, since prediction uses none of them.
"""

from mmattn.on_demand import import_on_demand

HOMES = {
    'AmpOptimWrapper': '.amp',
    'CheckpointHook': '.checkpoint_hook',
    'FSDPStrategy': '.fsdp_strategy',
    'LayerDecayOptimWrapperConstructor': '.optim_wrapper_constructor',
    'Runner': '.runner',
    'UntrustedCheckpointError': '..weights.read',
    'read_checkpoint': '..weights.read',
    'trusted_checkpoints': '..weights.read',
}
__all__ = list(HOMES)

__getattr__ = import_on_demand(__name__, HOMES)

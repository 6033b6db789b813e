"""A runner, hooks and data loaders that make mmengine's training reproducible.

Names are imported when they are used, since prediction uses none of them.
"""

from importlib import import_module

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


def __getattr__(name: str):
    if name not in HOMES:
        raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
    value = getattr(import_module(HOMES[name], __name__), name)
    globals()[name] = value
    return value

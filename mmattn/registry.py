"""Registries of mmattn, children of mmengine's under the scope `mmattn`.

`type='mmattn.IViT'` is found from any mm config without `custom_imports`: mmengine
imports `mmattn.registry` for an unknown scope, then the `locations` given here.
Without mmengine the decorators do nothing and backbones are plain `nn.Module`s.
"""

from importlib.util import find_spec

__all__ = ['MODELS']

if find_spec('mmengine') is not None:
    from mmengine.registry import MODELS as ROOT_MODELS
    from mmengine.registry import Registry

    MODELS = Registry(
        'model', parent=ROOT_MODELS, scope='mmattn', locations=['mmattn.models']
    )
else:

    class _NoRegistry:
        """Accepts registrations and refuses to build."""

        def register_module(self, *args, **kwargs):
            return lambda cls: cls

        def build(self, cfg):
            raise ImportError(
                f'building {cfg!r} needs mmengine: pip install "mmattn[mm]"'
            )

    MODELS = _NoRegistry()

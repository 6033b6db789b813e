"""The presets of all backbones, by name, for plain PyTorch and other libraries.

A name is the file of the family and the value of `arch`: `ivit_tiny`, `pvt_v2_b2_li`.
Other names derive from it: `mmattn_ivit_tiny` in timm, configs `ivit_t_*`.
"""

from difflib import get_close_matches
from fnmatch import fnmatchcase

from mmattn.errors import UserError
from mmattn.models import backbones
from mmattn.models.backbones.base_backbone import BaseBackbone
from mmattn.models.classifiers import PooledClassifier

SIZES = dict(nano='n', xtiny='xt', tiny='t', xsmall='xs', small='s', medium='m')
SIZES |= dict(base='b', large='l', isotropic='i')


def all_presets() -> dict[str, tuple[type[BaseBackbone], str]]:
    """Return the class and the value of its `arch` for each name, sorted."""
    found = {}
    for cls in (getattr(backbones, name) for name in backbones.__all__):
        family = cls.__module__.rpartition('.')[2]
        for arch in cls.arch_zoo:
            found[f'{family}_{arch}'] = cls, arch
    return dict(sorted(found.items()))


def find_preset(name: str) -> tuple[type[BaseBackbone], str]:
    """Return the class and the value of its `arch`.

    Raises:
        ValueError: no preset has this name.
    """
    known = all_presets()
    if name not in known:
        close = get_close_matches(name, known, n=3) or list(known)
        raise UserError(
            f'no model {name!r}: did you mean one of {close}? `mmattn.list_models()` '
            'lists all'
        )
    return known[name]


def short_name(name: str) -> str:
    """Return how configs of a preset begin: `ivit_t` for `ivit_tiny`."""
    family, _, size = name.rpartition('_')
    return f'{family}_{SIZES.get(size, size)}'


def list_models(pattern: str = '*') -> list[str]:
    """Return the names that `create_model` accepts.

    Args:
        pattern: wildcards of a file name, such as 'pvt*'.

    Example:
        >>> import mmattn
        >>> mmattn.list_models('ivit*')
        ['ivit_base', 'ivit_nano', 'ivit_small', 'ivit_tiny']
    """
    return [name for name in all_presets() if fnmatchcase(name, pattern)]


def create_model(
    name: str,
    *,
    num_classes: int | None = None,
    checkpoint: str | None = None,
    **settings,
) -> BaseBackbone | PooledClassifier:
    """Build a backbone, or a classifier on it.

    Args:
        name: one of `list_models`.
        num_classes: None returns the backbone, whose result is a tuple of maps. A
            number returns a `PooledClassifier`; 0 leaves out its linear layer.
        checkpoint: weights of the backbone: a file, a NAME of `mmattn weights list`
            with or without `mmattn://`, an address, or a `timm://` or `hf://` name.
            They are loaded as by `init_cfg=dict(type='Pretrained', checkpoint=...)`.
        settings: arguments of the backbone, such as `in_channels`, and arguments of
            `PooledClassifier` if there are classes.

    Raises:
        ValueError: no model has this name, or the checkpoint does not match it.
        OSError: there is no such checkpoint, or it is out of reach.

    Example:
        >>> import mmattn
        >>> mmattn.create_model('ivit_tiny', in_channels=4).out_channels
        (64, 128, 320, 512)
    """
    cls, arch = find_preset(name)
    head = {}
    if num_classes is not None:
        head = {
            k: settings.pop(k) for k in ('global_pool', 'drop_rate') if k in settings
        }
        settings = dict(out_indices=-1) | settings
    backbone = cls(arch, **settings)
    if checkpoint is not None:
        from mmattn.weights.load import initialize_from_checkpoint

        initialize_from_checkpoint(backbone, str(checkpoint))
    if num_classes is None:
        return backbone
    return PooledClassifier(backbone, num_classes, **head)

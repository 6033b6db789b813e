"""Layer-wise learning rates and exemptions from weight decay, in few named groups."""

import inspect
import logging
import re
from collections import Counter

from mmengine.dist import is_main_process
from mmengine.logging import print_log
from mmengine.optim import DefaultOptimWrapperConstructor, OptimWrapper
from mmengine.utils.dl_utils.misc import is_norm
from torch import Size, nn
from torch.distributed.fsdp import FullyShardedDataParallel

from mmattn.errors import UserError
from mmattn.registry import OPTIM_WRAPPER_CONSTRUCTORS

DEFAULTS = dict(
    layer_decay_rate=1.0,
    norm_decay_mult=0.0,
    bias_decay_mult=0.0,
    flat_decay_mult=0.0,
    custom_keys={},
)
# FSDP, activation checkpointing and torch.compile insert these into names.
WRAPPERS = re.compile(r'(_fsdp_wrapped_module|_checkpoint_wrapped_module|_orig_mod)\.')


@OPTIM_WRAPPER_CONSTRUCTORS.register_module()
class LayerDecayOptimWrapperConstructor(DefaultOptimWrapperConstructor):
    """Group the parameters of a detector, segmentor or classifier.

    The learning rate of a backbone falls by the factor `layer_decay_rate` with each
    layer from its end to its stem, if it has `get_layer_depth(param_name, prefix)` as
    ours and many of mmpretrain's do. All other parameters get the full rate.

    Norms, biases and one-dimensional parameters get no weight decay. The same holds for
    parameters that a module lists in `no_weight_decay()`, or by parts of their names in
    `no_weight_decay_keywords()`; timm and Swin use these methods.

    Every trainable parameter is in one group. A shared parameter follows the rules of
    the first module that owns it. A table of the groups is logged.

    Args:
        optim_wrapper_cfg: config of the wrapper; its `optimizer` sets `lr` and
            `weight_decay`.
        paramwise_cfg: any of

            - `layer_decay_rate`: in (0, 1], 1.0 by default.
            - `norm_decay_mult`, `bias_decay_mult`, `flat_decay_mult`: multiples of the
              weight decay for norms, biases and one-dimensional parameters, 0.0 by
              default.
            - `custom_keys`: as in mmengine, the longest key that a parameter's name
              contains sets its `lr_mult` and `decay_mult`, each 1.0 by default. They
              replace the rules above; `lr_mult` multiplies the layer's rate. Other
              entries of the key are copied to the group.

    Raises:
        ValueError: unknown key, rate outside (0, 1], or no `lr` or `weight_decay`.
    """

    def _validate_cfg(self):
        super()._validate_cfg()
        unknown = sorted(set(self.paramwise_cfg) - set(DEFAULTS))
        if unknown:
            raise UserError(
                f'{type(self).__name__}: paramwise_cfg may have {sorted(DEFAULTS)}, '
                f'got {unknown}'
            )
        if self.base_lr is None or self.base_wd is None:
            raise UserError(
                f'{type(self).__name__}: optimizer needs lr and weight_decay, '
                f'got {self.optimizer_cfg}'
            )
        self.paramwise_cfg = DEFAULTS | self.paramwise_cfg
        rate = self.paramwise_cfg['layer_decay_rate']
        if not 0 < rate <= 1:
            raise UserError(
                f'{type(self).__name__}: layer_decay_rate must be in (0, 1], got {rate}'
            )

    def __call__(self, model: nn.Module) -> OptimWrapper:
        self._shapes = _shapes_before_sharding(model)
        return super().__call__(model)

    def add_params(self, params: list[dict], module: nn.Module):
        """Append the groups of the model `module` to `params`."""
        backbones = _backbones_with_depths(module)
        rate = self.paramwise_cfg['layer_decay_rate']
        if rate < 1 and not backbones:
            print_log(
                f'layer_decay_rate={rate} changes nothing: no part of '
                f'{type(module).__name__} has get_layer_depth(param_name, prefix)',
                logger='current',
                level=logging.WARNING,
            )
        undecayed = _no_weight_decay(module)
        groups, sizes, seen = {}, Counter(), set()
        for owner_name, owner in module.named_modules():
            for name, param in owner.named_parameters(recurse=False):
                if id(param) in seen or not param.requires_grad:
                    continue
                seen.add(id(param))
                full_name = _plain(_join(owner_name, name))
                shape = self._shapes.get(full_name, param.shape)
                custom = self._custom(_plain(f'{owner_name}.{name}'))
                if custom is None:
                    flat = len(shape) == 1
                    kept = full_name in undecayed
                    custom = dict(decay_mult=self._decay_mult(owner, name, flat, kept))
                layer, steps = _layer(full_name, backbones) if rate < 1 else ('', 0)
                group = self._group(layer, rate**steps, **custom)
                key = steps, custom.get('lr_mult', 1) != 1, group['name']
                groups.setdefault(key, group)['params'].append(param)
                sizes[key] += shape.numel()
        # mmengine logs the learning rate of the first group, so put a full one first.
        groups = {key: groups[key] for key in sorted(groups)}
        params += groups.values()
        if is_main_process():
            print_log(_table(groups, sizes), logger='current')

    def _custom(self, name: str) -> dict | None:
        keys = self.paramwise_cfg['custom_keys']
        found = [key for key in keys if key in name]
        return keys[min(found, key=lambda key: (-len(key), key))] if found else None

    def _decay_mult(self, owner: nn.Module, name: str, flat: bool, kept: bool) -> float:
        if kept:
            return 0.0
        if is_norm(owner) or isinstance(owner, nn.RMSNorm):
            return self.paramwise_cfg['norm_decay_mult']
        if name == 'bias':
            return self.paramwise_cfg['bias_decay_mult']
        return self.paramwise_cfg['flat_decay_mult'] if flat else 1.0

    def _group(
        self,
        layer: str,
        scale: float,
        lr_mult: float = 1.0,
        decay_mult: float = 1.0,
        **others,
    ) -> dict:
        """Return an empty group, named after its multiples."""
        words = [layer, {0: 'no_decay', 1: 'decay'}.get(decay_mult)]
        if words[-1] is None:
            words[-1] = f'decay_x{decay_mult}'
        words += [f'lr_x{lr_mult}'] if lr_mult != 1 else []
        words += [f'{key}_{value}' for key, value in sorted(others.items())]
        return dict(
            params=[],
            name='_'.join(filter(None, words)),
            lr=self.base_lr * scale * lr_mult,
            weight_decay=self.base_wd * decay_mult,
            **others,
        )


def _plain(name: str) -> str:
    return WRAPPERS.sub('', name)


def _join(prefix: str, name: str) -> str:
    return f'{prefix}.{name}' if prefix else name


def _shapes_before_sharding(model: nn.Module) -> dict[str, Size]:
    """Return the original names of an FSDP model's flat parameters, else nothing."""
    if not any(isinstance(m, FullyShardedDataParallel) for m in model.modules()):
        return {}
    if any('_flat_param' in name for name, _ in model.named_parameters()):
        raise UserError(
            'FSDP flattens the parameters before they are grouped: set '
            'strategy.model_wrapper.use_orig_params=True'
        )
    with FullyShardedDataParallel.summon_full_params(model, writeback=False):
        return {_plain(name): p.shape for name, p in model.named_parameters()}


def _backbones_with_depths(model: nn.Module) -> dict[str, nn.Module]:
    """Return modules by prefix, the longest first, so the innermost one comes first.

    mmpretrain's classifiers are left out: their `get_layer_depth` has no prefix and
    only calls their backbone's.
    """
    found = {}
    for name, module in model.named_modules():
        method = getattr(module, 'get_layer_depth', None)
        if method is not None and 'prefix' in inspect.signature(method).parameters:
            found[_plain(f'{name}.') if name else ''] = module
    return dict(sorted(found.items(), key=lambda item: -len(item[0])))


def _layer(name: str, backbones: dict[str, nn.Module]) -> tuple[str, int]:
    """Return the name of a parameter's layer, and its steps below the full rate."""
    for prefix, backbone in backbones.items():
        if name.startswith(prefix):
            depth, num_layers = backbone.get_layer_depth(name, prefix)
            if depth < num_layers - 1:
                return f'layer_{depth}', num_layers - 1 - depth
            break
    return 'head', 0


def _no_weight_decay(model: nn.Module) -> set[str]:
    """Return the full names of the parameters that a module exempts."""
    names = set()
    for prefix, module in model.named_modules():
        exempt = set()
        if callable(method := getattr(module, 'no_weight_decay', None)):
            exempt |= set(method())
        if callable(method := getattr(module, 'no_weight_decay_keywords', None)):
            keywords = method()
            exempt |= {
                name
                for name, _ in module.named_parameters()
                if any(keyword in name for keyword in keywords)
            }
        names |= {_plain(_join(prefix, name)) for name in exempt}
    return names


def _table(groups: dict[tuple, dict], sizes: Counter) -> str:
    rows = [('group', 'tensors', 'parameters', 'lr', 'weight decay')]
    rows += [
        (
            group['name'],
            str(len(group['params'])),
            f'{sizes[key]:,}',
            f'{group["lr"]:.4g}',
            f'{group["weight_decay"]:.4g}',
        )
        for key, group in groups.items()
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        '  '.join(
            cell.rjust(width) if i else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
    return '\n'.join(['Groups of parameters:', *lines])

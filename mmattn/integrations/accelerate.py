"""Deformable and neighborhood attention of other libraries' models, on our operators.

    report = mmattn.accelerate(model)  # in place
    print(report)
    mmattn.restore(model)

Outside of GPUs these libraries sample with `grid_sample`, and keep all samples in
memory. `mmattn.ops.ms_deform_attn` takes the fastest backend of each device.
"""

import copy
from dataclasses import dataclass, field
from functools import cache

import torch
from torch import Tensor, nn

from mmattn.errors import UserError
from mmattn.integrations.accelerated import KNOWN, Accelerated

__all__ = ['Acceleration', 'accelerate', 'restore']

PROBE_TOLERANCE = 1e-10  # of the largest value, in float64
SUSPECTS = 'deformableattention', 'deformattn', 'deformconv', 'neighborhoodattention'


@dataclass(frozen=True)
class Acceleration:
    """Say what `accelerate` did, by the names of modules.

    Attributes:
        replaced: class of each module that runs on our operators now.
        kept: class of each other module with such attention, and why it is as it was.
    """

    replaced: dict[str, str] = field(default_factory=dict)
    kept: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        lines = []
        for modules, what in (
            (self.replaced, 'run on mmattn'),
            (self.kept, 'are as they were'),
        ):
            lines.append(f'{len(modules)} modules {what}')
            lines += [f'  {name}: {about}' for name, about in modules.items()]
        return '\n'.join(lines)


def accelerate(model: nn.Module) -> Acceleration:
    """Run the deformable or neighborhood attention of another library's model on ours.

    Each module of a known class gets a subclass of that class as its class. Its
    parameters, hooks, state dict and outputs stay the same; rounding differs. It is
    replaced only if a copy of it in float64 and ours give the same for random numbers.

    Known are the Deformable DETR, RT-DETR, RT-DETRv2, D-FINE, DEIMv2, LW-DETR, RF-DETR,
    Grounding DINO, MM Grounding DINO, OmDet-Turbo, PP-DocLayout, Mask2Former and
    OneFormer of transformers, its DiNAT, rfdetr, `natten.NeighborhoodAttention2D`, and
    on a CPU torchvision's deformable convolution and RoIAlign. mmdet's need no call,
    see `mmattn.compat`. Neighborhood attention is replaced by its arguments alone:
    NATTEN does not run in float64, and DiNAT not with NATTEN of today.

    `restore` undoes it. Call that before `torch.save(model)`, which stores the names of
    classes; a state dict can be saved at any time.

    Raises:
        ValueError: `model` is no module.

    Example:
        >>> from transformers import RTDetrConfig, RTDetrForObjectDetection
        >>> detector = RTDetrForObjectDetection(RTDetrConfig())
        >>> len(mmattn.accelerate(detector).replaced)
        6
    """
    report = Acceleration()
    for name, module in _modules(model):
        cls = type(module)
        if issubclass(cls, Accelerated):
            report.kept[name] = f'{_path(cls)}: it runs on mmattn already'
        elif _path(cls) in KNOWN:
            ours = _subclass(KNOWN[_path(cls)], cls)
            reason = _difference(module, ours)
            if reason is None:
                module.__class__ = ours
                report.replaced[name] = _path(cls)
            else:
                report.kept[name] = f'{_path(cls)}: {reason}'
        elif _is_suspect(cls.__name__.lower()):
            parts = map(type, module.modules())
            if not any(issubclass(c, Accelerated) or _path(c) in KNOWN for c in parts):
                report.kept[name] = f'{_path(cls)}: this class is not known'
    return report


def restore(model: nn.Module) -> int:
    """Undo `accelerate`, and return the number of modules that were replaced.

    Raises:
        ValueError: `model` is no module.
    """
    replaced = [x for _, x in _modules(model) if isinstance(x, Accelerated)]
    for module in replaced:
        module.__class__ = type(module).__bases__[-1]
    return len(replaced)


def _difference(module: nn.Module, ours: type) -> str | None:
    """Return why our class cannot take the place of a module's, or None."""
    cls = type(module)
    try:
        with torch.random.fork_rng(devices=()), torch.no_grad():
            sample = copy.deepcopy(module).to('cpu', torch.float64)
            for parameter in sample.parameters():
                nn.init.uniform_(parameter, -1, 1)
            for arguments in ours.probes(sample):
                sample.__class__ = cls
                theirs = cls.forward(sample, **arguments)
                sample.__class__ = ours
                if not _is_close(ours.forward(sample, **arguments), theirs):
                    return 'its forward computes something else'
    except UserError as error:
        return str(error)
    except (TypeError, AttributeError, RuntimeError) as error:  # another version
        return f'its forward could not be tried ({str(error).splitlines()[0]})'
    return None


def _is_close(actual, expected) -> bool:
    if isinstance(expected, Tensor):
        actual, expected = (actual,), (expected,)
    return len(actual) == len(expected) and all(
        x.shape == y.shape and (x - y).abs().max() <= PROBE_TOLERANCE * y.abs().max()
        for x, y in zip(actual, expected, strict=True)
    )


def _modules(model: nn.Module) -> list[tuple[str, nn.Module]]:
    if not isinstance(model, nn.Module):
        raise UserError(f'`model` must be a torch.nn.Module, got {type(model)}')
    return list(model.named_modules())


def _path(cls: type) -> str:
    return f'{cls.__module__}.{cls.__qualname__}'


def _is_suspect(name: str) -> bool:
    is_projection = name.endswith('output')  # DiNAT's, beside its attention
    return any(word in name for word in SUSPECTS) and not is_projection


@cache
def _subclass(ours: type, theirs: type) -> type:
    """Return a class with the forward of `ours` that is a `theirs`."""
    return type(f'Accelerated{theirs.__name__}', (ours, theirs), {})

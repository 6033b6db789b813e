"""The globals that the pickle of a checkpoint may name, and what each becomes.

`torch.load(weights_only=True)` knows tensors and plain containers. Checkpoints of
training runs hold a little more: mmengine's log history, numpy numbers, the arguments
or the config of the run. Nothing here calls what the file chooses:

- numpy's constructors are stood in for. Their state can hold a forged dtype, for
  example doubles flagged as object references, which numpy believes; ours takes the
  name of a plain type and bytes;
- mmengine's `HistoryBuffer` pickles its statistics as `getattr(HistoryBuffer, 'mean')`
  and merges what it loads into the class. Ours takes the numbers alone, and
  `getattr` becomes a lookup of those four names that never returns a callable;
- `argparse.Namespace` (DeiT, PVT, timm) and mmengine's `ConfigDict` are attribute bags
  without behaviour when they are built; yacs' and mmcv's become an `OrderedDict`.
"""

from argparse import Namespace
from collections import OrderedDict
from pickle import UnpicklingError

import numpy as np
from mmengine.config import ConfigDict
from mmengine.logging.history_buffer import HistoryBuffer

PLAIN_KINDS = 'biufcSU'
STATISTICS = ('min', 'max', 'mean', 'current')


def _refuse(name: str, arguments) -> UnpicklingError:
    return UnpicklingError(f'GLOBAL {name} with arguments {arguments!r} is refused')


class _DType:
    """Stands in for `numpy.dtype`: plain numbers and strings, no objects or fields."""

    def __init__(self, spec, align=False, copy=False):
        self.dtype = np.dtype(spec) if isinstance(spec, str) else None
        if self.dtype is None or self.dtype.kind not in PLAIN_KINDS:
            raise _refuse('numpy.dtype', spec)

    def __setstate__(self, state):
        """Takes the byte order, the one part that the name does not tell."""
        if state[1] in ('<', '>'):
            self.dtype = self.dtype.newbyteorder(state[1])


class _Array:
    """Stands in for `numpy.ndarray` until `with_arrays` puts the array in its place."""

    def __init__(self, *arguments):
        self.array = None

    def __setstate__(self, state):
        _, shape, dtype, is_fortran, data = state
        order = 'F' if is_fortran else 'C'
        self.array = np.ndarray(shape, dtype.dtype, bytes(data), order=order).copy(
            order
        )


def _scalar(dtype: _DType, data: bytes) -> np.generic:
    return np.frombuffer(data, dtype.dtype, count=1)[0]


class _History(HistoryBuffer):
    """Stands in for `HistoryBuffer`, and is one when its numbers have been read."""

    def __setstate__(self, state):
        log, count = (state[key].array for key in ('_log_history', '_count_history'))
        self.__init__(log, count, max_length=state['max_length'])
        self.__class__ = HistoryBuffer


def _statistic(owner, name) -> str:
    """Stands in for `getattr`."""
    if owner is not _History or name not in STATISTICS:
        raise _refuse('builtins.getattr', (owner, name))
    return name


ALLOWED_GLOBALS = [
    (_History, 'mmengine.logging.history_buffer.HistoryBuffer'),
    (_statistic, 'builtins.getattr'),
    (_DType, 'numpy.dtype'),
    (_Array, 'numpy.ndarray'),
    *(
        (stand_in, f'numpy.{core}.multiarray.{name}')
        for core in ('core', '_core')
        for stand_in, name in ((_Array, '_reconstruct'), (_scalar, 'scalar'))
    ),
    (bytes, 'builtins.bytes'),  # of an empty array
    (slice, 'builtins.slice'),
    (Namespace, 'argparse.Namespace'),
    (ConfigDict, 'mmengine.config.config.ConfigDict'),
    (OrderedDict, 'mmcv.utils.config.ConfigDict'),
    (OrderedDict, 'yacs.config.CfgNode'),
]


def with_arrays(value, _seen: set[int] | None = None):
    """`value` with the arrays in the place of their stand-ins, containers in place."""
    seen = set() if _seen is None else _seen
    if isinstance(value, _Array):
        return value.array
    if type(value) is tuple:
        return tuple(with_arrays(item, seen) for item in value)
    if id(value) in seen:
        return value
    if isinstance(value, dict):
        seen.add(id(value))
        for key in value:
            value[key] = with_arrays(value[key], seen)
    elif isinstance(value, list):
        seen.add(id(value))
        value[:] = [with_arrays(item, seen) for item in value]
    elif isinstance(value, Namespace):
        with_arrays(vars(value), seen)
    return value

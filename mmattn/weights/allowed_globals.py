"""Table of the globals that the pickle of a checkpoint may name.

`torch.load(weights_only=True)` supports tensors and plain containers. Checkpoints of
training runs hold a little more: mmengine's log history, numpy numbers, the arguments
or the config of the run. These are read in two steps. While the file is unpickled,
each of these globals is a class that only records its arguments and its state.
`as_data` then checks every part and builds the objects:

- numpy trusts a forged dtype, for example doubles flagged as object references. So an
  array is built from the name of a plain type, a shape and bytes only.
- mmengine's `HistoryBuffer` merges the functions that a file names into its class. Here
  it gets the numbers only.
- `argparse.Namespace` (DeiT, PVT, timm) and mmengine's `ConfigDict` take a plain dict.
- Both classes of mmengine are built once mmengine is in use (`use_classes`); before,
  they are plain dicts.
- The configs of yacs and mmcv become an `OrderedDict`.

`as_data` refuses everything else in a file: classes, functions, and attributes that
would hide the methods of a tensor.
"""

from argparse import Namespace
from collections import Counter, OrderedDict
from collections.abc import Callable
from pickle import UnpicklingError

import numpy as np
import torch

PLAIN_KINDS = 'biufcSU'
LONGEST_DTYPE = 20  # characters; numpy reads a list of fields in longer texts
STATISTICS = ('min', 'max', 'mean', 'current')
ATOMS = frozenset(
    (type(None), bool, int, float, complex, str, bytes, bytearray)
    + (torch.Size, torch.dtype, torch.device, torch.layout, torch.qscheme)
    + (torch.storage.TypedStorage, torch.storage.UntypedStorage)
)


def _refuse(name: str) -> UnpicklingError:
    return UnpicklingError(f'GLOBAL {name} is refused')


class _Recorded:
    """Record how a file would build an object, and nothing else."""

    __slots__ = ('arguments', 'state')
    name = ''  # of the class that it replaces

    def __new__(cls, *arguments):
        self = super().__new__(cls)
        self.arguments, self.state = arguments, None
        return self

    def __setstate__(self, state):
        self.state = state

    def build(self, built: dict):
        """Return the object; `built` holds the objects so far, as in `as_data`."""
        raise NotImplementedError

    def require(self, fits: bool):
        """Raise an UnpicklingError unless a part of the record fits."""
        if not fits:
            raise _refuse(self.name)


class _DType(_Recorded):
    name = 'numpy.dtype'

    def build(self, built):
        name = self.arguments[0] if self.arguments else None
        self.require(type(name) is str and len(name) <= LONGEST_DTYPE)
        dtype = np.dtype(name)
        self.require(dtype.kind in PLAIN_KINDS and dtype.itemsize > 0)
        # The name of the type does not include the byte order.
        if type(self.state) is tuple and self.state[1] in ('<', '>'):
            dtype = dtype.newbyteorder(self.state[1])
        return dtype


class _Array(_Recorded):
    name = 'numpy.ndarray'

    def build(self, built):
        self.require(type(self.state) is tuple and len(self.state) == 5)
        _, shape, dtype, is_fortran, data = self.state
        self.require(type(dtype) is _DType)
        dtype = dtype.build(built)
        if type(data) is _Bytes:
            data = data.build(built)
        self.require(type(data) is bytes and type(shape) is tuple)
        self.require(all(type(side) is int and side >= 0 for side in shape))
        order = 'F' if is_fortran is True else 'C'
        return np.ndarray(shape, dtype, data, order=order).copy(order)


class _Scalar(_Recorded):
    name = 'numpy.core.multiarray.scalar'

    def build(self, built):
        self.require([*map(type, self.arguments)] == [_DType, bytes])
        dtype, data = self.arguments
        return np.frombuffer(data, dtype.build(built), count=1)[0]


class _History(_Recorded):
    name = 'mmengine.logging.history_buffer.HistoryBuffer'

    def build(self, built):
        self.require(type(self.state) is dict)
        arrays = [self.state.get(key) for key in ('_log_history', '_count_history')]
        length = self.state.get('max_length')
        self.require([*map(type, arrays), type(length)] == [_Array, _Array, int])
        # Arrays that are shared would be copied again.
        self.require(not any(id(array) in built for array in arrays))
        log, count = (as_data(array, built) for array in arrays)
        for array in (log, count):
            self.require(array.ndim == 1 and array.dtype.kind in 'biuf')
        self.require(len(log) == len(count) and length >= 1)
        return _CLASSES[self.name](
            log_history=log, count_history=count, max_length=length
        )


class _Statistic(_Recorded):
    """Stand for `getattr(HistoryBuffer, name)`, and become the name."""

    name = 'builtins.getattr'

    def build(self, built):
        self.require(len(self.arguments) == 2 and self.arguments[0] is _History)
        name = self.arguments[1]
        self.require(type(name) is str and name in STATISTICS)
        return name


class _Bytes(_Recorded):
    """Stand for `bytes()`, with which an empty array is pickled."""

    name = 'builtins.bytes'

    def build(self, built):
        self.require(not self.arguments and self.state is None)
        return b''


class _Slice(_Recorded):
    name = 'builtins.slice'

    def build(self, built):
        return slice(*as_data(self.arguments, built))


class _Namespace(_Recorded):
    name = 'argparse.Namespace'

    def build(self, built):
        attributes = {} if self.state is None else self.state
        self.require(not self.arguments and type(attributes) is dict)
        self.require({str}.issuperset(map(type, attributes)))
        return Namespace(**as_data(attributes, built))


class _ConfigDict(_Recorded):
    name = 'mmengine.config.config.ConfigDict'

    def build(self, built):
        self.require(self.state is None and [*map(type, self.arguments)] == [dict])
        config = _CLASSES[self.name]()
        # ConfigDict itself would copy what is shared, level by level.
        dict.update(config, as_data(self.arguments[0], built))
        return config


_CLASSES = {_History.name: dict, _ConfigDict.name: dict}


def use_classes(history: Callable, config: type[dict]):
    """Build mmengine's `HistoryBuffer` and `ConfigDict` as these classes."""
    _CLASSES.update({_History.name: history, _ConfigDict.name: config})


STAND_INS = (
    _DType,
    _Array,
    _History,
    _Statistic,
    _Bytes,
    _Slice,
    _Namespace,
    _ConfigDict,
)
ALLOWED_GLOBALS = [
    *((stand_in, stand_in.name) for stand_in in STAND_INS),
    *(
        (stand_in, f'numpy.{core}.multiarray.{name}')
        for core in ('core', '_core')
        for stand_in, name in ((_Array, '_reconstruct'), (_Scalar, 'scalar'))
    ),
    (OrderedDict, 'mmcv.utils.config.ConfigDict'),
    (OrderedDict, 'yacs.config.CfgNode'),
]


def as_data(value, built: dict | None = None):
    """Return `value` with the objects in place of their records.

    Containers are changed in place, and tuples are replaced.

    Args:
        value: the result of the unpickler.
        built: the original and its replacement, by the identity of the original, so
            that each is built once. None starts with an empty dict.

    Raises:
        pickle.UnpicklingError: the value holds something other than data, or a record
            whose parts do not fit.
    """
    built = {} if built is None else built
    kind = type(value)
    if kind in ATOMS:
        return value
    if id(value) in built:
        return built[id(value)][1]
    if kind is tuple:
        result = tuple(as_data(item, built) for item in value)
    elif isinstance(value, _Recorded):
        result = value.build(built)
    else:
        result = value
    built[id(value)] = value, result  # `value` stays alive, so its identity is its own
    if kind is list:
        value[:] = [as_data(item, built) for item in value]
    elif kind is set:
        items = [as_data(item, built) for item in value]
        value.clear()
        value.update(items)
    elif kind in (dict, OrderedDict, Counter):
        _convert_mapping(value, built)
    elif kind in (torch.Tensor, torch.nn.Parameter):
        _check_tensor(value, built)
    elif result is value and kind is not tuple:
        raise _refuse(getattr(value, '__qualname__', kind.__qualname__))
    return result


def _convert_mapping(mapping: dict, built: dict):
    if type(mapping) is not dict:
        # A state dict keeps its versions in attributes; yacs' attributes are not data.
        kept = vars(mapping).get('_metadata')
        vars(mapping).clear()
        if type(kept) in (dict, OrderedDict):
            mapping._metadata = as_data(kept, built)
    items = [
        (as_data(key, built), as_data(item, built)) for key, item in mapping.items()
    ]
    mapping.clear()
    for key, item in items:
        mapping[key] = item


def _check_tensor(tensor: torch.Tensor, built: dict):
    if tensor._backward_hooks:
        raise _refuse('torch.Tensor')
    for name, attribute in list(vars(tensor).items()):
        if hasattr(torch.nn.Parameter, name):
            raise _refuse('torch.Tensor')
        setattr(tensor, name, as_data(attribute, built))

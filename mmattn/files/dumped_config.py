"""Read the config of a work dir as data.

A run dumps its config as assignments of literals and `dict(...)`. Such a file is read
without running it, so a work dir works on any machine, whoever wrote it.

Some strings of a config still choose code: `type` names a class, `custom_imports` names
modules, and OpenMMLab evaluates a few others. They are checked, so that a config
chooses among the classes of installed packages only.
"""

import ast
import re
from collections.abc import Iterator
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

from ..errors import UserError

LARGEST = 16 << 20  # bytes
NAME = re.compile(r'(?:(?P<scope>[a-z_]\w*)\.(?=[A-Z])|torchvision/)?[A-Za-z_]\w*')
# mmcv, mmdetection and mmpretrain evaluate these as Python.
EVALUATED = {'dtype', 'warp_mode'}
DOTTED = re.compile(r'[A-Za-z_][\w.]*')


class NotDataError(UserError):
    """A config of a work dir holds more than data."""

    def __init__(self, path: str | Path, reason: str):
        super().__init__(
            f'{path} is not read as a config: {reason}. If you trust the file, pass it '
            'as --config (`config`), which runs it'
        )


def read_dumped_config(path: str | Path):
    """Return the `mmengine.Config` in a file that a run dumped. Nothing in it runs.

    Modules of its `custom_imports` are imported.

    Raises:
        OSError: the file cannot be read.
        NotDataError: it holds more than literals, `type` is no name of an installed
            package's class, or `custom_imports` names modules that lie beside it.
    """
    from mmengine.config import Config
    from mmengine.utils import import_modules_from_strings

    path = Path(path)
    if path.stat().st_size > LARGEST:
        raise NotDataError(path, f'it has more than {LARGEST >> 20} MiB')
    try:
        values = _values(path.read_text('utf-8'))
    except (SyntaxError, TypeError, ValueError, RecursionError, MemoryError) as error:
        reason = ' '.join(str(error).split()) or type(error).__name__
        raise NotDataError(path, reason) from None
    for key, value in _items(values):
        if isinstance(value, str) and (reason := _reason_against(key, value)):
            raise NotDataError(path, reason)
    imports = values.get('custom_imports') or {}
    names = imports.get('imports') or [] if isinstance(imports, dict) else [imports]
    names = [names] if isinstance(names, str) else names
    for name in names:
        if not isinstance(name, str) or not DOTTED.fullmatch(name):
            raise NotDataError(path, f'custom_imports names {name!r}')
        spec = _installed(name.partition('.')[0])
        if spec and any(path.parent.resolve() in p.parents for p in _places(spec)):
            reason = f'custom_imports names {name}, which lies beside it'
            raise NotDataError(path, reason)
    if names:
        allow = bool(imports.get('allow_failed_imports'))
        import_modules_from_strings(list(names), allow_failed_imports=allow)
    try:
        return Config(values, filename=str(path))
    except KeyError as error:  # a key that mmengine reserves
        raise NotDataError(path, error.args[0]) from None


def _values(text: str) -> dict[str, Any]:
    found = {}
    for node in ast.parse(text).body:
        if not (
            isinstance(node, ast.Assign)
            and len(node.targets) == 1
            and isinstance(node.targets[0], ast.Name)
        ):
            raise ValueError(f'line {node.lineno} is no assignment of data')
        found[node.targets[0].id] = _value(node.value)
    return found


def _value(node: ast.expr) -> Any:
    """Return the value of a literal or of `dict(...)`."""
    match node:
        case ast.List() | ast.Tuple() | ast.Set():
            kind = {ast.List: list, ast.Tuple: tuple, ast.Set: set}[type(node)]
            return kind(_value(item) for item in node.elts)
        case ast.Dict(keys=keys, values=values) if None not in keys:
            pairs = zip(keys, values, strict=True)
            return {_value(key): _value(value) for key, value in pairs}
        case ast.Call(func=ast.Name(id='dict'), args=args, keywords=keywords) if len(
            args
        ) <= 1 and all(keyword.arg for keyword in keywords):
            given = _value(args[0]) if args else {}
            return dict(given, **{key.arg: _value(key.value) for key in keywords})
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError):
        raise ValueError(
            f'line {node.lineno} has `{ast.unparse(node)[:60]}`, which is no data'
        ) from None


def _items(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield each key of nested dictionaries with its value."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield key, item
            yield from _items(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _items(item)


def _reason_against(key: Any, value: str) -> str | None:
    if key in EVALUATED and not DOTTED.fullmatch(value):
        return f'{key} must be a name, got {value!r}'
    if key != 'type':
        return None
    match = NAME.fullmatch(value)
    if match is None or (match['scope'] and not _has_registry(match['scope'])):
        return f'type must name a class, such as mmdet.MaskRCNN, got {value!r}'
    return None


def _installed(package: str) -> ModuleSpec | None:
    return PathFinder.find_spec(package)


def _places(spec: ModuleSpec) -> list[Path]:
    places = [*(spec.submodule_search_locations or ()), spec.origin]
    return [Path(place).resolve() for place in places if place]


def _has_registry(package: str) -> bool:
    """Return whether a package has a registry, as OpenMMLab's packages have."""
    if package == __package__.partition('.')[0]:
        return True  # an editable installation is on no path
    spec = _installed(package)
    folders = spec.submodule_search_locations if spec else None
    return any(
        Path(folder, name).exists()
        for folder in folders or ()
        for name in ('registry.py', 'registry')
    )

"""Report what is installed, which backends would run, and how to solve problems.

`mmattn env` prints what `report` returns. This module requires only
torch: it looks mm packages up by their distributions, and tries to import them last.
"""

import os
import re
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module, metadata
from importlib.machinery import PathFinder
from importlib.util import find_spec
from itertools import product

import torch
from packaging.requirements import Requirement
from torch.utils.collect_env import get_env_info

from mmattn.compat import in_force
from mmattn.ops.common.operator import BACKEND_VARIABLE, OPERATORS, Operator

MAINTAINED, ORIGINAL = 'maintained', 'original'
# The distributions that install each package, by import name and family.
FAMILIES = {
    'mmengine': {
        MAINTAINED: ('onedl-mmengine',),
        ORIGINAL: ('mmengine', 'mmengine-lite'),
    },
    'mmcv': {
        MAINTAINED: ('onedl-mmcv',),
        ORIGINAL: ('mmcv', 'mmcv-full', 'mmcv-lite'),
    },
    'mmdet': {MAINTAINED: ('onedl-mmdetection',), ORIGINAL: ('mmdet',)},
    'mmseg': {MAINTAINED: ('onedl-mmsegmentation',), ORIGINAL: ('mmsegmentation',)},
    'mmpretrain': {MAINTAINED: ('onedl-mmpretrain',), ORIGINAL: ('mmpretrain',)},
}
OTHERS = (
    'mmattn',
    'torch',
    'torchvision',
    'triton',
    'timm',
    'numpy',
    'opencv-python',
    'opencv-python-headless',
    'matplotlib',
    'setuptools',
)
MACHINE_FIELDS = (
    'os',
    'libc_version',
    'python_version',
    'gcc_version',
    'clang_version',
    'cuda_compiled_version',
    'cuda_runtime_version',
    'cudnn_version',
    'nvidia_driver_version',
    'nvidia_gpu_models',
)
VARIABLES = (BACKEND_VARIABLE, 'TRITON_INTERPRET')
DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
# mmcv.ops loads the compiled operators, or those that mmattn provides in their place.
MODULES = {'mmcv': 'mmcv.ops'}
REINSTALL = 'pip install --upgrade --force-reinstall {0}'
REINSTALLS = {
    'torchvision': REINSTALL.format('torch torchvision'),
    # This compiles its operators again, for the installed torch.
    'mmcv': 'pip install --force-reinstall --no-deps --no-build-isolation '
    '--no-cache-dir --no-binary {0} {0}',
}


@dataclass(frozen=True)
class Problem:
    """A problem, and the command or the step that mends it."""

    what: str
    remedy: str


def report(say: Callable[[str], None] = lambda _: None) -> dict:
    """Return the whole report as plain values for JSON.

    Args:
        say: gets a line before each step. If an import kills the process, the last line
            names it.
    """
    say('reading versions')
    info = get_env_info()
    found = installed_families()
    versions = installed_versions(OTHERS)
    say('asking the backends of each operator')
    operators, problems = operator_backends()
    problems += [*gpu_problems(info), *requirement_problems()]
    mismatches = [*family_problems(found), *version_problems(found, versions)]
    # Mismatches make imports fail, and reinstalling would not help.
    problems += mismatches or import_problems(found, versions, say)
    return {
        'machine': machine(info),
        'packages': versions,
        'mm packages': found,
        'mmcv operators': mmcv_operators(),
        'corrections': {row.module: row.what for row in in_force()},
        'operators': operators,
        'problems': [asdict(problem) for problem in problems],
    }


def machine(info) -> dict[str, str]:
    """Return facts of `torch.utils.collect_env`, and what decides about kernels."""
    known = {name: getattr(info, name) for name in MACHINE_FIELDS}
    known['torch architectures'] = ' '.join(torch.cuda.get_arch_list())
    for index in range(torch.cuda.device_count()):
        major, minor = torch.cuda.get_device_capability(index)
        name = torch.cuda.get_device_name(index)
        known[f'cuda:{index}'] = f'{name}, compute capability {major}.{minor}'
    known |= {name: os.environ.get(name) for name in VARIABLES}
    return {name: str(value) for name, value in known.items() if value}


def installed_versions(distributions: Sequence[str]) -> dict[str, str]:
    """Return the versions of those distributions that are installed."""
    found = {}
    for name in distributions:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def installed_families() -> dict[str, dict[str, dict[str, str]]]:
    """Return the installed versions by package, family and distribution."""
    return {
        package: {
            family: versions
            for family, names in families.items()
            if (versions := installed_versions(names))
        }
        for package, families in FAMILIES.items()
    }


def _distributions(families: Mapping[str, Mapping[str, str]]) -> list[str]:
    return [name for versions in families.values() for name in versions]


def family_problems(found: Mapping) -> Iterator[Problem]:
    """Find distributions that overwrite one another, and mixed families."""
    for package, families in found.items():
        names = _distributions(families)
        if len(names) > 1:
            keep = FAMILIES[package][MAINTAINED][0]
            yield Problem(
                f'{" and ".join(names)} overwrite one another: each installs {package}',
                f'pip uninstall -y {" ".join(names)} && pip install {keep}',
            )
    single = {p: f for p, f in found.items() if len(_distributions(f)) == 1}
    originals = [p for p, families in single.items() if ORIGINAL in families]
    if originals and len(originals) < len(single):
        old = ' '.join(name for p in originals for name in _distributions(single[p]))
        new = ' '.join(FAMILIES[p][MAINTAINED][0] for p in originals)
        yield Problem(
            f'{old}: original mm packages beside maintained ones (onedl-*)',
            f'pip uninstall -y {old} && pip install {new}',
        )


def version_problems(found: Mapping, versions: Mapping[str, str]) -> Iterator[Problem]:
    """Find versions that pip accepts and that do not work together."""
    originals = {
        package: families[ORIGINAL]
        for package, families in found.items()
        if ORIGINAL in families
    }
    if originals and find_spec('pkg_resources') is None:
        yield Problem(
            f'{", ".join(originals)}: the original packages need pkg_resources, '
            'which setuptools has until 81 (installed: '
            f'{versions.get("setuptools", "none")})',
            'pip install "setuptools<82"',
        )
    if found['mmengine'] and find_spec('distutils') is None:
        yield Problem(
            'mmengine needs distutils, which only setuptools provides since '
            'Python 3.12',
            'pip install setuptools',
        )
    numpy = versions.get('numpy', '2')
    old = [package for package in ('mmcv', 'mmdet', 'mmseg') if package in originals]
    if old and _release(numpy) >= (2,):
        yield Problem(
            f'{", ".join(old)}: the original packages were written for numpy 1, '
            f'and numpy {numpy} is installed',
            'pip install "numpy<2"',
        )
    if MAINTAINED in found['mmseg'] and _release(numpy) < (2,):
        yield Problem(
            f'onedl-mmsegmentation needs numpy 2, and numpy {numpy} is installed',
            'pip install "numpy>2"',
        )
    refusing = [package for package in ('mmdet', 'mmseg') if package in originals]
    for name, version in originals.get('mmcv', {}).items():
        if refusing and _release(version) >= (2, 2):
            yield Problem(
                f'{", ".join(refusing)}: the original packages refuse mmcv 2.2 and '
                f'later, and {name} {version} is installed',
                f'pip install --no-build-isolation "{name}>=2.0.0,<2.2.0"',
            )


def requirement_problems() -> Iterator[Problem]:
    """Find packages whose version mmattn does not support. Some may be missing."""
    try:
        requirements = metadata.requires('mmattn') or ()
    except metadata.PackageNotFoundError:  # a clone on PYTHONPATH
        return
    for each in map(Requirement, requirements):
        if each.marker and not each.marker.evaluate({'extra': ''}):
            continue
        version = installed_versions([each.name]).get(each.name)
        if version and not each.specifier.contains(version, prereleases=True):
            what = f'mmattn requires {each}, and {version} is installed'
            yield Problem(what, f'pip install "{each}"')


def _release(version: str) -> tuple[int, ...]:
    """Return (2, 2, 6) for 2.2.6 and for 2.2.6rc1."""
    return tuple(map(int, re.match(r'\d+(\.\d+)*', version)[0].split('.')))


def import_problems(
    found: Mapping,
    versions: Mapping[str, str],
    say: Callable[[str], None] = lambda _: None,
) -> Iterator[Problem]:
    """Find packages that fail to import.

    This process imports them one after another, since each alone would import torch
    again, which takes longer than most of them.
    """
    distributions = {name: name for name in ('torchvision', 'timm') if name in versions}
    for package, families in found.items():
        if families:
            distributions[package] = ' '.join(_distributions(families))
    for name, installed in distributions.items():
        module = MODULES.get(name, name)
        say(f'importing {module}')
        try:
            with warnings.catch_warnings():
                warnings.simplefilter('ignore')
                import_module(module)
        except Exception as error:  # noqa: BLE001  a broken package may raise anything
            (*_, last) = traceback.format_exception_only(error)
            remedy = REINSTALLS.get(name, REINSTALL).format(installed)
            yield Problem(f'`import {module}` fails: {last.strip()}', remedy)


def mmcv_operators() -> str:
    """Return who provides `mmcv._ext`."""
    mmcv = find_spec('mmcv')
    if mmcv is None:
        return 'mmcv is not installed'
    compiled = PathFinder.find_spec('mmcv._ext', mmcv.submodule_search_locations)
    if compiled is None:
        return 'mmcv came without them; mmattn.compat provides the usual ones'
    return f'compiled: {compiled.origin}'


def gpu_problems(info) -> Iterator[Problem]:
    """Find GPUs that torch cannot use or has no code for, and a missing Triton."""
    if torch.version.hip:
        return
    wheels = 'see https://pytorch.org/get-started for the index of its wheels'
    if not torch.cuda.is_available():
        if info.nvidia_gpu_models:
            yield Problem(
                f'{info.nvidia_gpu_models} is there, and torch {torch.__version__} '
                'cannot use it',
                f'update the driver, or install a CUDA build of torch: {wheels}',
            )
        return
    arch_list = torch.cuda.get_arch_list()
    for index in range(torch.cuda.device_count()):
        capability = torch.cuda.get_device_capability(index)
        if not covers(arch_list, capability):
            major, minor = capability
            yield Problem(
                f'torch {torch.__version__} has code for {" ".join(arch_list)}, '
                f'and cuda:{index} has compute capability {major}.{minor}',
                f'install a build of torch for it: {wheels}',
            )
    if find_spec('triton') is None:
        yield Problem('no Triton: operators are slow on the GPU', 'pip install triton')


def covers(arch_list: Sequence[str], capability: tuple[int, int]) -> bool:
    """Return whether code for these architectures runs on a GPU of this capability.

    Code for sm_86 runs on 8.6 and later 8.x, and code for sm_90a only on 9.0. The
    driver compiles compute_80, which runs on 8.0 and everything later.
    """
    for arch in arch_list:
        kind, number, suffix = re.fullmatch(r'(sm|compute)_(\d+)(\D?)', arch).groups()
        oldest = divmod(int(number), 10)
        if suffix:
            covered = oldest == capability
        elif kind == 'sm':
            covered = oldest <= capability < (oldest[0] + 1, 0)
        else:
            covered = oldest <= capability
        if covered:
            return True
    return False


def operator_backends(
    operators: Iterable[Operator] | None = None,
) -> tuple[list[dict], list[Problem]]:
    """Return what would run each operator on each device and dtype, and problems.

    Args:
        operators: all of `mmattn.ops` by default. Their `example` is what the backends
            are asked about.
    """
    devices = ['cpu', *(f'cuda:{i}' for i in range(torch.cuda.device_count()))]
    rows, problems = [], {}
    cases = product(operators or OPERATORS.values(), devices, DTYPES)
    for operator, device, dtype in cases:
        tensors, _ = operator.example(device, dtype)
        try:
            chosen = operator.choose(*tensors)
        except ValueError as error:
            chosen = None
            problems[str(error)] = f'unset {BACKEND_VARIABLE}'
        rows.append(
            {
                'operator': operator.name,
                'device': device,
                'dtype': str(dtype).removeprefix('torch.'),
                'backend': chosen,
                'unsupported': operator.unsupported(*tensors),
            }
        )
    return rows, [Problem(what, remedy) for what, remedy in problems.items()]

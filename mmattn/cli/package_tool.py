"""Run a tool of an installed mm package, with everything that `import mmattn` adds."""

import importlib.util
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

from mmengine.config import Config

DISTRIBUTIONS = {
    'mmdet': 'onedl-mmdetection',
    'mmseg': 'onedl-mmsegmentation',
    'mmpretrain': 'onedl-mmpretrain',
}


def package_of_config(argv: Sequence[str], description: str) -> str:
    """Return the `default_scope` of the config, which is the first argument."""
    usage = f'usage: {Path(sys.argv[0]).name} CONFIG [options of the package]'
    if not argv or argv[0] in ('-h', '--help'):
        print(f'{usage}\n\n{description}\nCONFIG --help lists the options.')
        raise SystemExit(0 if argv else 2)
    if not Path(argv[0]).is_file():
        raise SystemExit(f'{usage}\nno config at {argv[0]}')
    package = Config.fromfile(argv[0]).get('default_scope')
    if package not in DISTRIBUTIONS:
        raise SystemExit(
            f'{argv[0]}: default_scope must be one of {list(DISTRIBUTIONS)}, '
            f'got {package!r}'
        )
    return package


def find_tool(package: str, path: str) -> Path:
    """Return a file in a package's `.mim/tools`, which every distribution has."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise SystemExit(
            f'{package} is not installed: pip install {DISTRIBUTIONS[package]}'
        )
    tool = Path(spec.origin).parent / '.mim' / 'tools' / path
    if not tool.is_file():
        raise SystemExit(
            f'{package} has no tool at {tool}: '
            f'pip install --force-reinstall --no-deps {DISTRIBUTIONS[package]}'
        )
    return tool


def run_tool(package: str, path: str, argv: Sequence[str]):
    """Run the tool as a script in this process, with these arguments."""
    tool = find_tool(package, path)
    sys.argv = [str(tool), *argv]
    sys.path[0] = str(tool.parent)
    try:
        runpy.run_path(str(tool), run_name='__main__')
    except ModuleNotFoundError as error:
        raise SystemExit(
            f"{package}'s {tool.name} needs {error.name}: pip install {error.name}"
        ) from error

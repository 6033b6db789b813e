"""The direction of imports, the weight of the package, and its requirements."""

import ast
import functools
from pathlib import Path

import pytest
import torch
from fresh import MM, ROOT, run_python, without
from mmengine.config import ConfigDict
from mmengine.logging import HistoryBuffer
from safetensors.torch import save_file

from mmattn.models import IViT

PACKAGE = ROOT / 'mmattn'
# What each part of the package may import of ours, beside itself. `mmattn` alone is
# the package's own light file, and every part may import `FOR_ALL`.
FOR_ALL = 'mmattn', 'mmattn.errors', 'mmattn.on_demand'
LOW = {'mmattn.files', 'mmattn.registry'}
MIDDLE = LOW | {'mmattn.images', 'mmattn.models', 'mmattn.ops', 'mmattn.weights'}
HIGH = MIDDLE | {'mmattn.compat', 'mmattn.data', 'mmattn.engine', 'mmattn.results'}
ALLOWED = {
    'mmattn.errors': set(),
    'mmattn.on_demand': set(),
    'mmattn.registry': set(),
    'mmattn.files': set(),
    'mmattn.images': {'mmattn.files'},
    'mmattn.ops': set(),
    'mmattn.compat': {'mmattn.files', 'mmattn.ops', 'mmattn.weights'},  # when called
    'mmattn.weights': {'mmattn.files'},
    'mmattn.models.layers': {'mmattn.ops', 'mmattn.registry'},
    'mmattn.models.backbones': {
        'mmattn.ops',
        'mmattn.models.layers',
        'mmattn.registry',
        'mmattn.weights.layouts',
    },
    'mmattn.models': {'mmattn.ops', 'mmattn.registry', 'mmattn.weights'},
    'mmattn.results': {'mmattn.files', 'mmattn.images'},
    'mmattn.evaluation': MIDDLE | {'mmattn.data', 'mmattn.results'},
    'mmattn.engine': MIDDLE | {'mmattn.compat', 'mmattn.data', 'mmattn.results'},
    'mmattn.integrations': MIDDLE,
    'mmattn.export': HIGH,
    'mmattn.apis': HIGH | {'mmattn.export'},
    'mmattn.analysis': HIGH | {'mmattn.apis', 'mmattn.cli', 'mmattn.export'},
    'mmattn.web': HIGH | {'mmattn.analysis', 'mmattn.apis', 'mmattn.export'},
}


def modules():
    return sorted(PACKAGE.rglob('*.py'), key=str)


def module_name(path):
    parts = path.relative_to(ROOT).with_suffix('').parts
    return '.'.join(parts[:-1] if parts[-1] == '__init__' else parts)


@functools.cache
def imports(path):
    """Every module that a file imports at any depth, relative ones resolved."""
    return [*find_imports(path)]


def find_imports(path):
    package = module_name(path).split('.')
    if path.name != '__init__.py':
        package.pop()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) + 1 - node.level] if node.level else []
            base = '.'.join([*base, *filter(None, [node.module])])
            yield base
            for alias in node.names:  # `from mmattn import ops` imports mmattn.ops
                if is_module(f'{base}.{alias.name}'):
                    yield f'{base}.{alias.name}'


def is_module(name):
    path = ROOT.joinpath(*name.split('.'))
    return path.is_dir() or path.with_suffix('.py').exists()


def within(name, prefix):
    return name == prefix or name.startswith(prefix + '.')


def test_imports_go_downward():
    upward = [
        f'{module_name(path)} imports {imported}'
        for path in modules()
        for part, allowed in ALLOWED.items()
        if within(module_name(path), part)
        for imported in imports(path)
        if within(imported, 'mmattn') and imported not in FOR_ALL
        if not any(within(imported, prefix) for prefix in {part, *allowed})
    ]
    assert not upward, '\n'.join(upward)


def test_nothing_imports_tools_or_tests():
    forbidden = {'tools', 'tests', 'configs'}
    forbidden |= {path.stem for path in (ROOT / 'tools').rglob('*.py')}
    found = [
        f'{module_name(path)} imports {imported}'
        for path in modules()
        for imported in imports(path)
        if imported.partition('.')[0] in forbidden
    ]
    assert not found, '\n'.join(found)


NEED_TORCH_ALONE = """
import mmattn
assert 'torch' not in sys.modules
from mmattn import models
names = {*models.backbones.__all__, 'create_model', 'list_models'}
assert all(getattr(mmattn, name) is getattr(models, name) for name in names)
assert {*names, 'torchvision_fpn'} <= set(dir(mmattn))
try:
    mmattn.IVit
except AttributeError as error:
    print(error)

import torch, mmattn.ops
from mmattn.ops.common.operator import OPERATORS
for operator in OPERATORS.values():
    tensors, settings = operator.example('cpu', torch.float32)
    x = tensors[0].requires_grad_()
    for backend in None, 'reference', 'torch':
        operator(*tensors, backend=backend, **settings).sum().backward()
    assert x.grad is not None
assert 'torch._dynamo' not in sys.modules, 'a call of an operator imports the compiler'

x = torch.randn(1, 3, 33, 47)
assert len(models.IViT('nano')(x)) == 4
assert len(models.ViT('tiny')(x)) == 1
from mmattn.registry import MODELS
try:
    MODELS.build(dict(type='IViT'))
except ImportError as error:
    print(error)
"""

LOAD_EVERY_NAME = """
del sys.modules['numpy']
from pathlib import Path
import torch
import mmattn
from mmattn.models import IViT
from mmattn.weights import names
from mmattn.weights.read import read_checkpoint
files, url = Path(FILES), URL
entry = dict(type='mmattn.IViT', args={}, url=url + '/net.safetensors')
names.published_files = lambda: {'net': entry}
converted = []
convert = IViT.convert_weights
IViT.convert_weights = lambda *args: converted.append(1) or convert(*args)
expected = read_checkpoint(files / 'net.safetensors')
given = [files / 'run.pth', f'{files}/net.safetensors', url + '/run.pth']
for checkpoint in (*given, 'net', 'mmattn://net'):
    model = mmattn.create_model('ivit_nano', checkpoint=checkpoint, num_classes=3)
    loaded = model.backbone.state_dict()
    assert all(torch.equal(loaded[name], expected[name]) for name in expected)
assert len(converted) == 5
run = read_checkpoint(files / 'run.pth')
assert run['log'] == dict(log_history=[1.0], count_history=[1], max_length=9)
assert type(run['cfg']) is dict and run['cfg'] == dict(lr=0.1)
for name in ('nett', 'mmattn://nett'):
    try:
        mmattn.create_model('ivit_nano', checkpoint=name)
    except (FileNotFoundError, ValueError) as error:
        print(error)
from mmattn.cli import weights
for action in (['list'], ['info', 'net'], ['get', 'net']):
    assert weights.main(action) == 0
assert not {'mmengine', 'mmcv'} & {n for n, m in sys.modules.items() if m}
"""


def test_operators_backbones_and_weights_need_torch_alone(tmp_path, serve):
    """Importing timm would import all of its models, which takes longer than ours.

    A file of a run holds objects of mmengine, which are read as plain data, and arrays.
    """
    others = 'timm', 'torchvision', 'triton', 'numpy', 'einops', *MM
    weights = IViT('nano', out_indices=3).state_dict()
    save_file(weights, tmp_path / 'net.safetensors')
    log = HistoryBuffer([1.0], [1], max_length=9)
    saved = dict(state_dict=weights, log=log, cfg=ConfigDict(lr=0.1))
    torch.save(saved, tmp_path / 'run.pth')
    given = f'FILES, URL = {str(tmp_path)!r}, {serve(tmp_path)[0]!r}\n'
    home = f'import os; os.environ["TORCH_HOME"] = {str(tmp_path / "cache")!r}\n'
    code = without(*others) + home + given + NEED_TORCH_ALONE + LOAD_EVERY_NAME
    first, second, *said = run_python('-c', code).stdout.splitlines()
    assert first == "module 'mmattn' has no attribute 'IVit'"
    assert 'pip install "mmattn[mm]"' in second
    assert said[0].startswith('there is no checkpoint at nett, and no weights have')
    assert said[1].startswith("there are no weights 'nett'")
    assert all("did you mean one of ['net']" in line for line in said[:2])
    assert Path(said[-1]).read_bytes() == (tmp_path / 'net.safetensors').read_bytes()


@pytest.mark.slow
def test_graphs_of_torchvision_need_no_mm_package():
    imported = 'import mmattn.export.graphs.torchvision_detectors'
    run_python('-c', without(*MM[1:]) + imported)


def test_a_fresh_process_finds_backbones_by_name_without_mmcv():
    done = run_python(
        '-c',
        'import sys, mmattn\n'
        'assert not {"torch", "mmengine"} & set(sys.modules)\n'
        'from mmengine.registry import MODELS\n'
        'print(type(MODELS.build(dict(type="mmattn.IViT", arch="nano"))))\n'
        'assert not {"mmcv", "mmdet", "mmpretrain"} & set(sys.modules)\n'
        'import mmcv.ops\n'  # whose operators are ours, and read when they are called
        'assert not [name for name in sys.modules if ".compat.mmcv_ops." in name]',
    )
    assert 'mmattn.models.backbones.ivit.IViT' in done.stdout

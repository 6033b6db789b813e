"""Configs of work dirs, read as data."""

from pathlib import Path

import pytest
from fresh import run_python
from mmengine.config import Config

import mmattn
from mmattn.files import dumped_config
from mmattn.files.dumped_config import NotDataError, read_dumped_config

CONFIGS = Path(mmattn.__file__).parents[1] / 'configs'


@pytest.fixture
def configs_keep_their_lines():
    """Here yapf formats them, as in a run."""


@pytest.mark.parametrize(
    'config',
    [
        'mask_rcnn/ivit_t_3x_coco.py',
        {'a': {'b c': [(), (1,)], 'type': 'torchvision/Resize'}, 'd': {'e': -1e-3}},
    ],
    ids=str,
)
def test_what_a_run_dumps_is_read_as_it_was(tmp_path, config):
    is_file = isinstance(config, str)
    cfg = Config.fromfile(CONFIGS / config) if is_file else Config(config)
    path = tmp_path / 'config.py'
    cfg.dump(path)
    assert read_dumped_config(path).to_dict() == cfg.to_dict()


EXPLOITS = {
    "import os\nos.system('touch x')": 'line 1 is no assignment of data',
    "a = __import__('os').system('touch x')": 'line 1 has',
    "a = [open('x', 'w')]": 'which is no data',
    'a = dict(**b)': 'which is no data',
    'a = {**b}': 'which is no data',
    'a, b = 1, 2': 'line 1 is no assignment of data',
    "model = dict(type='os.system', command='touch x')": "type must .*'os.system'",
    "model = dict(type='subprocess.Popen', args=['touch', 'x'])": 'type must name a',
    "a = [dict(b=dict(type='mmengine.dump', obj=1, file='x'))]": 'type must name a',
    'nms = dict(type=\'open("x", "w")\')': 'type must name a class',
    'a = dict(dtype=\'float32 if open("x", "w") else 0\')': 'dtype must be a name',
    'a = dict(warp_mode=\'open("x", "w")\')': 'warp_mode must be a name',
    "custom_imports = dict(imports=['beside'])": 'beside, which lies beside it',
    "custom_imports = 'beside'": 'beside, which lies beside it',
    'custom_imports = dict(imports=[3])': 'custom_imports names 3',
    'a = ' + '[' * 100_000: 'config.py is not read as a config',
    'text = 1': 'text is reserved',
    '\0': 'config.py is not read as a config',
    'a = {[]: 1}': 'config.py is not read as a config',
}


@pytest.mark.parametrize('text', EXPLOITS, ids=range(len(EXPLOITS)))
def test_nothing_in_it_runs(tmp_path, monkeypatch, text):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    Path('beside.py').write_text("open('x', 'w')")
    Path('config.py').write_text(text)
    with pytest.raises(NotDataError, match=EXPLOITS[text]) as told:
        read_dumped_config('config.py')
    assert '\n' not in str(told.value) and not Path('x').exists()


def test_installed_modules_are_imported(tmp_path):
    path = tmp_path / 'config.py'
    path.write_text("custom_imports = dict(imports=['wave'])")
    code = (
        'import sys\nfrom mmattn.files.dumped_config import read_dumped_config\n'
        f'read_dumped_config({str(path)!r}); assert "wave" in sys.modules'
    )
    run_python('-c', code)


def test_results_of_a_work_dir_that_moved_go_where_it_is(tmp_path):
    from mmattn.cli import report
    from mmattn.cli.launch import load_config
    from mmattn.cli.terminal import config_of
    from mmattn.cli.test import parse_args

    cfg = Config.fromfile(CONFIGS / 'mask_rcnn/ivit_t_3x_coco.py')
    cfg.work_dir = str(tmp_path / 'server/work_dirs/run')
    moved = tmp_path / 'moved'
    moved.mkdir()
    cfg.dump(moved / 'run.py')
    (moved / 'epoch_1.pth').touch()
    (moved / 'last_checkpoint').write_text(f'{cfg.work_dir}/epoch_1.pth')

    def work_dir(*options) -> str:
        args = parse_args([str(moved), *map(str, options)])
        return load_config(args, dataloader='test_dataloader').work_dir

    assert work_dir() == str(moved)
    assert work_dir('--work-dir', tmp_path / 'other') == str(tmp_path / 'other')
    assert config_of(report.parse_args([str(moved)])).work_dir == str(moved)


def test_a_large_file_is_refused_unread(tmp_path, monkeypatch):
    path = tmp_path / 'config.py'
    path.write_text('a = 1')
    monkeypatch.setattr(dumped_config, 'LARGEST', 4)
    with pytest.raises(NotDataError, match='it has more than 0 MiB'):
        read_dumped_config(path)

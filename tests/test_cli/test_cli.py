"""The console command: its commands, its tools and its errors."""

import json
import resource
import sys
from pathlib import Path

import numpy as np
import pytest
from fresh import ROOT, run_python
from PIL import Image

import mmattn
from mmattn.cli.main import COMMANDS, main

MAX_SECONDS = 1.0
HEAVY = ('torch', 'numpy', 'mmengine', 'mmcv', 'supervision')


@pytest.fixture
def run(monkeypatch, capsys):
    """Run the command in this process; returns its output."""
    monkeypatch.setattr(sys, 'argv', sys.argv)
    monkeypatch.setattr(sys, 'path', sys.path[:])

    def call(*arguments, status=0) -> str:
        capsys.readouterr()
        with pytest.raises(SystemExit) as left:
            main([*map(str, arguments)])
        code, told = left.value.code, ''
        if isinstance(code, str):
            code, told = 1, code + '\n'
        said = capsys.readouterr()
        assert (code or 0) == status, said
        return said.out + said.err + told

    return call


def test_help_is_fast_and_light():
    code = (
        'import sys, mmattn.cli.main\n'
        'try:\n    mmattn.cli.main.main()\n'
        'except SystemExit:\n    pass\n'
        f'print([name for name in {HEAVY} if name in sys.modules])'
    )
    times = []
    for _ in range(2):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = run_python('-c', code, '--help')
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        times.append(sum(after[:2]) - sum(before[:2]))  # of the user and the system
    for name in 'predict train test export flops models weights env data'.split():
        assert f' {name} ' in done.stdout, done.stdout + done.stderr
    assert done.stdout.rstrip().endswith('[]')
    assert min(times) < MAX_SECONDS


def test_help_of_each_command_needs_no_torch():
    code = (
        'import sys\n'
        'from mmattn.cli.main import COMMANDS, main_of\n'
        'for name in COMMANDS:\n'
        '    sys.argv = [name, "--help"]\n'
        '    try:\n        main_of(name)()\n'
        '    except SystemExit:\n        pass\n'
        '    assert not {"torch", "mmengine"} & sys.modules.keys(), name\n'
        'print(len(COMMANDS))'
    )
    done = run_python('-c', code)
    assert done.stdout.split()[-1:] == [str(len(COMMANDS))], done.stderr


@pytest.mark.slow
@pytest.mark.parametrize('tool', ['train', 'test'])
def test_command_and_tool_run_the_same_function(run, tool):
    done = run_python(ROOT / f'tools/{tool}.py', '--help')
    said = run(tool, '--help').split()
    assert done.stdout.split()[2:] == said[3:]  # usage: test.py, usage: mmattn test


def test_weights_follow_the_config_as_mm_users_type_them():
    from tools.test import with_weights

    expected = ['a.py', '--weights', 'b.pth', '--tta']
    assert with_weights(['a.py', 'b.pth', '--tta']) == expected
    for argv in (['a'], ['a.py', '--weights', 'b.pth'], []):
        assert with_weights(argv) == argv


def test_unknown_commands(run):
    said = run('predikt', status=2)
    assert "invalid choice: 'predikt'" in said and 'predict' in said
    assert 'required: COMMAND' in run(status=2)
    assert 'required: ACTION' in run('data', status=2)
    assert run('--version') == f'{mmattn.__version__}\n'


@pytest.mark.parametrize('package', ['mmengine', 'mmdet.apis'])
def test_a_missing_package_is_named_with_what_installs_it(run, monkeypatch, package):
    def missing(name):
        raise ModuleNotFoundError(f'No module named {package!r}', name=package)

    monkeypatch.setattr('mmattn.cli.main.import_module', missing)
    said = run('export', status=1)
    assert f'the command requires {package}, which is not' in said and '[mm,pre' in said

    package = 'mmattn.exprot'  # a mistake of ours keeps its traceback
    with pytest.raises(ModuleNotFoundError, match='exprot'):
        main(['export'])


def test_a_script_of_another_package_runs_after_mmattn(run, capsys, tmp_path):
    script = tmp_path / 'script.py'
    script.write_text(
        "import sys, neighbor; assert 'mmattn' in sys.modules\n"
        "if __name__ == '__main__': print(*sys.argv[1:], neighbor.NAME)"
    )
    (tmp_path / 'neighbor.py').write_text("NAME = 'beside it'")
    assert 'a.py --b beside it' in run('run', script, 'a.py', '--b')
    assert "takes a Python script, got 'no.py'" in run('run', 'no.py', status=1)
    assert 'takes a Python script, got None' in run('run', status=1)


def test_models(run):
    table = run('models', '--search', 'mask_rcnn/ivit')
    assert 'mask_rcnn/ivit_t_3x_coco' in table and '44.5 M' in table
    assert 'box AP 48.7' in table and 'retinanet' not in table
    names = run('models', '--names').splitlines()
    assert 'demo/mask_rcnn_ivit_n_hela' in names and len(names) > 100
    found = run('models', '--search', 'leverage ATTENTION masks', '--names')
    assert 'mask_rcnn/hmait_t_1x_coco' in found and 'pvt' not in found
    said = run('models', '--search=faster', status=1)
    assert "mmattn models: no model matches 'faster'; `mmattn models` lists" in said


def test_predict(run, tmp_path, monkeypatch):
    from predictor_models import noise, write_run

    monkeypatch.chdir(tmp_path)
    Path('images/below').mkdir(parents=True)
    for name in ('a.png', 'b.png', 'below/a.png'):
        Image.fromarray(noise(60, 80)).save(Path('images', name))
    write_run(Path('runs/detection'), 'detection')
    out = ['--device', 'cpu', '--out']
    folders = 'images', 'images/below'
    said = run('predict', 'runs/detection', *folders, '--score', 0, *out, 'd')
    assert '18 objects' in said and '3 images' in said
    drawn = sorted(path.name for path in Path('d/drawn').iterdir())
    assert drawn == ['a.png', 'a_2.png', 'b.png']
    document = json.loads(Path('d/predictions.json').read_text())
    assert len(document['images']) == 3 and len(document['annotations']) == 18
    assert [each['id'] for each in document['annotations']] == [*range(1, 19)]
    assert document['categories'] == [dict(id=1, name='nucleus')]
    said = run('predict', 'runs/detection', 'images/a.png', '--score', 1, *out, 'n')
    assert '0 objects' in said

    write_run(Path('runs/segmentation'), 'segmentation')
    run('predict', 'runs/segmentation', 'images/a.png', '--no-draw', *out, 's')
    labels = np.asarray(Image.open('s/labels/a.png'))
    assert labels.shape == (60, 80) and not Path('s/drawn').exists()

    write_run(Path('runs/classification'), 'classification')
    run('predict', 'runs/classification', 'images/*.png', *out, 'c')
    (first, second) = json.loads(Path('c/predictions.json').read_text())
    assert first['file_name'] == 'images/a.png' and len(first['classes']) == 3
    assert first['classes'] == second['classes'] and Path('c/drawn/b.png').is_file()

    output = run('predict', 'runs/classification', 'images/c.png', status=1)
    assert 'mmattn predict: there is no image at images/c.png' in output


def test_web(run, tmp_path, monkeypatch):
    from predictor_models import noise, write_run

    from mmattn.web import server

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(server, 'find_spec', lambda name: None)
    assert 'pip install "mmattn[web]"' in run('web', status=1)
    served = []
    monkeypatch.setattr(server, 'find_spec', lambda name: name)
    monkeypatch.setattr(server, 'serve', lambda *args, **kw: served.append((args, kw)))
    assert 'there is no folder work_dirs' in run('web', status=1)
    Path('images').mkdir()
    write_run(Path('work_dirs/cells'), 'detection')
    assert 'images has no images' in run('web', '--images=images', status=1)
    Image.fromarray(noise(9, 9)).save('images/a.png')
    config, weights = 'work_dirs/cells/detection.py', 'work_dirs/cells/epoch_2.pth'
    run('web', '--device=cpu')
    options = '--compare', 'x.onnx', '--images', 'images', '--port=9'
    run('web', config, '--weights', weights, *options)
    ((first, none), options), ((second, images), others) = served
    assert first.names == ['cells'] and first['cells'].weights == weights and not none
    assert options['host'] == '127.0.0.1' and options['port'] is None
    assert second.names == ['detection', 'x.onnx'] and second['detection']
    assert list(images) == ['a.png'] and others['port'] == 9
    said = run('web', config, '--compare-weights', 'a.pth', status=2)
    assert 'as often as --compare, got 1 and 0' in said
    assert 'there is no exported file' in run('web', 'x.onnx', status=1)

"""`mmattn weights` on imitated files, from a server on this machine."""

import re
from argparse import ArgumentParser
from hashlib import sha256
from pathlib import Path

import pytest
import torch
import yaml
from predictor_models import detector

from mmattn.apis import find_model
from mmattn.cli import weights as command
from mmattn.cli.terminal import add_model, parse_run
from mmattn.engine.model import build_model
from mmattn.engine.start import settle_start, use_pretrained
from mmattn.files import read_config_file
from mmattn.files.config_files import find_config
from mmattn.models import PVTv2
from mmattn.registry import MODELS
from mmattn.weights import names as published
from mmattn.weights.layouts.pvt import to_official_state_dict

ROOT = Path(__file__).parents[2]
CONFIG = 'classification/pvt_v2_b0_300e_in1k'
NOWHERE = 'http://127.0.0.1:9/offline.pth'  # nothing listens
PVT = dict(type='mmattn.PVTv2', args=dict(arch='b0'))


@pytest.fixture
def files(serve, tmp_path, monkeypatch):
    """A list of imitated files in a fresh cache, and the folder that has them."""
    folder = tmp_path / 'served'
    folder.mkdir()
    url, _ = serve(folder)
    monkeypatch.setenv('TORCH_HOME', str(tmp_path / 'torch_home'))
    torch.manual_seed(0)
    backbone = PVTv2('b0', out_indices=3)
    encoder = to_official_state_dict(backbone.state_dict())
    # The authors' names; the scores are far apart.
    linear = {'head.weight': torch.randn(1000, 256), 'head.bias': torch.zeros(1000)}
    torch.save(encoder | linear, folder / 'net.pth')
    torch.save(encoder, folder / 'encoder.pth')
    whole = (folder / 'net.pth').read_bytes()
    (folder / 'cut.pth').write_bytes(whole[: len(whole) // 2])
    deeper = PVTv2(PVTv2.arch_zoo['b0'] | dict(depths=(2, 2, 2, 3)), out_indices=3)
    deeper = to_official_state_dict(deeper.state_dict())
    torch.save(deeper | linear, folder / 'deeper.pth')
    boxes = detector()
    boxes.dump(tmp_path / 'detector.py')
    model, _ = build_model(boxes, None)
    torch.save(dict(state_dict=model.state_dict()), folder / 'detector.pth')
    ivit = dict(type='mmattn.IViT', args={}, config=str(tmp_path / 'detector.py'))
    known = {
        'net': dict(PVT, config=CONFIG),
        'detector': dict(ivit),
        'encoder': dict(PVT),
        'hash': dict(PVT, url=f'{url}/net.pth', sha256='00ff'),
        'cut': dict(PVT, config=CONFIG),
        'deeper': dict(PVT, config=CONFIG),
        'deeper-encoder': dict(PVT, url=f'{url}/deeper.pth'),
        'gone': dict(PVT, config=CONFIG),
        'offline': dict(PVT, url=NOWHERE, config=CONFIG),
    }
    for name, entry in known.items():
        entry.setdefault('url', f'{url}/{name}.pth')
    monkeypatch.setattr(published, 'published_files', lambda: known)
    monkeypatch.setattr(command, 'published_files', lambda: known)
    return known, folder


def test_a_name_is_a_model_and_a_checkpoint(files):
    model = build_model(read_config_file(find_config(CONFIG)), 'net')[0]
    weight = model.backbone.stem.proj.weight
    for name in ('net', 'mmattn://net'):
        for found in (find_model(name), find_model(CONFIG, name)):
            assert found.cfg.model.backbone.arch == 'b0' and found.weights == name
        args = parse_run(parser_of_models(), [name])
        assert (args.config, args.checkpoint) == (str(find_config(CONFIG)), name)
        cfg = read_config_file(find_config('mask_rcnn/pvt_v2_b0_1x_coco'))
        use_pretrained(cfg, name)
        assert 'net.pth, kept at' in settle_start(cfg).message
        backbone = MODELS.build(cfg.model.backbone)
        backbone.init_weights()
        assert torch.equal(backbone.stem.proj.weight, weight)
    hub = torch.hub.load(str(ROOT), 'pvt_v2_b0', source='local', checkpoint='net')
    assert torch.equal(hub.stem.proj.weight, weight)


@pytest.mark.parametrize(
    ('name', 'message'),
    [
        ('mit_b0', 'mit_b0 holds the weights of a backbone, without a model to run'),
        ('mmattn://mit_b', r"no weights 'mit_b': did you mean one of \['mit_b"),
        ('mmattn://hela-ivit-n', 'hela-ivit-n is not trained yet.*`make demo`'),
    ],
)
def test_names_that_are_no_model(capsys, tmp_path, monkeypatch, name, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises((FileNotFoundError, ValueError), match=message):
        find_model(name)
    with pytest.raises(SystemExit):
        parse_run(parser_of_models(), [name])
    assert re.search(message, capsys.readouterr().err)


def parser_of_models():
    parser = ArgumentParser()
    add_model(parser)
    return parser


def lines(capsys):
    return capsys.readouterr().out.splitlines()


def test_each_file_gets_its_verdict(files, capsys):
    assert command.main(['verify', '--all']) == 1
    *said, counts = lines(capsys)
    assert counts == '0 passed, 3 no record, 5 failed, 1 skipped'
    verdicts = dict(line.split(': ', 1) for line in said)
    for name, begin, reason in (
        ('net', 'no record: loaded; astronaut: ', '; chelsea: '),
        ('detector', 'no record: loaded; astronaut: ', 'nucleus'),
        ('encoder', 'no record: loaded; a backbone', ''),
        ('hash', 'failed', 'expected 00ff'),
        ('cut', 'failed', 'is no checkpoint, or cut off'),
        ('deeper', 'failed', 'does not match the model exactly'),
        ('deeper-encoder', 'failed', 'does not fit: '),
        ('gone', 'failed', '404'),
        ('offline', 'skipped', f'{NOWHERE} cannot be downloaded'),
    ):
        assert verdicts[name].startswith(begin) and reason in verdicts[name], name
    assert command.main(['verify', 'offline']) == 0


@pytest.mark.parametrize(
    ('name', 'shifts'),  # of a score, and of a box
    [('net', {1: 0.02}), ('detector', {1: 0.02, 3: 3.0})],
)
def test_predictions_are_compared_with_the_record(files, capsys, name, shifts):
    known, folder = files
    assert command.main(['verify', name, '--record']) == 0
    _, *entry, _ = lines(capsys)
    (recorded,) = yaml.safe_load('\n'.join(entry)).values()
    content = (folder / f'{name}.pth').read_bytes()
    assert recorded['sha256'] == sha256(content).hexdigest()
    assert all(len(rows) == 5 for rows in recorded['record'].values())
    known[name] |= recorded
    assert command.main(['verify', name]) == 0
    assert lines(capsys)[-1] == '1 passed, 0 no record, 0 failed, 0 skipped'
    for place, shift in shifts.items():
        recorded['record']['coffee'][4][place] += shift
        assert command.main(['verify', name]) == 1
        assert f'{name}: failed: coffee has no label' in lines(capsys)[0]
        recorded['record']['coffee'][4][place] -= shift


def test_a_file_is_got_once_and_described(files, capsys):
    known, folder = files
    command.main(['list'])
    listed = capsys.readouterr().out
    assert listed.count('unverified') == len(known) - 1 and '4 digits' in listed
    command.main(['list'])
    command.main(['info', 'net'])
    before = capsys.readouterr().out
    assert 'MB' not in before and 'not there' in before
    assert known['net']['url'] in before
    command.main(['get', 'mmattn://net'])
    (path,) = lines(capsys)
    assert Path(path).read_bytes() == (folder / 'net.pth').read_bytes()
    (folder / 'net.pth').unlink()
    command.main(['get', 'net'])
    assert lines(capsys) == [path]
    command.main(['list'])
    command.main(['info', 'net'])
    after = capsys.readouterr().out
    assert f'{path}, 14.' in after and after.count('MB') == 3  # also `hash`, the same
    with pytest.raises(ValueError, match='cut.pth is no checkpoint, or cut off'):
        command.main(['get', 'cut'])
    with pytest.raises(SystemExit):
        command.main(['get', 'nett'])
    assert "did you mean one of ['net'" in capsys.readouterr().err


def test_the_figures_of_the_paper_are_told(capsys):
    command.main(['info', 'pvt_v2_b2'])
    assert 'Top 1 Accuracy 82.0 (PVT v2' in capsys.readouterr().out

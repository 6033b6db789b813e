"""Checkpoints are read without running them, by every way that leads to one."""

import copy
import os

import pytest
import torch
from calls import Calls
from mmengine.infer import BaseInferencer
from mmengine.runner import FlexibleRunner, load_checkpoint
from tiny_run import Tiny, make_runner

from mmattn.engine import UntrustedCheckpointError, read_checkpoint, trusted_checkpoints


@pytest.fixture
def trap(tmp_path):
    """A checkpoint of Tiny that makes a folder when it is unpickled, and the folder."""
    sprung = tmp_path / 'sprung'
    path = tmp_path / 'trap.pth'
    meta = Calls(os.mkdir, str(sprung))
    torch.save(dict(state_dict=Tiny().state_dict(), meta=meta), path)
    return path, sprung


def pretrained(path, run_dir, trust):
    model = dict(init_cfg=dict(type='Pretrained', checkpoint=path))
    make_runner(run_dir, model=model, **trust).train()


def by_init_detector(path, run_dir, trust):
    with trusted_checkpoints(bool(trust)):
        load_checkpoint(Tiny(), path, map_location='cpu')


def by_strategy(path, run_dir, trust):
    from mmengine._strategy import SingleDeviceStrategy

    strategy = SingleDeviceStrategy(work_dir=str(run_dir))
    strategy.model = Tiny()
    with trusted_checkpoints(bool(trust)):
        strategy.load_checkpoint(path)


def flexible_runner(run_dir, **options):
    tiny = make_runner(run_dir / 'other')
    hook = dict(type='mmattn.CheckpointHook', interval=4, by_epoch=False)
    return FlexibleRunner(
        model=tiny.model,
        work_dir=str(run_dir),
        train_dataloader=tiny._train_dataloader,
        train_cfg=dict(by_epoch=False, max_iters=4),
        optim_wrapper=dict(optimizer=dict(type='SGD', lr=0.1)),
        default_hooks=dict(checkpoint=hook),
        **options,
    )


def flexible_resume(path, run_dir, trust):
    with trusted_checkpoints(bool(trust)):
        flexible_runner(run_dir, load_from=path, resume=True).train()


class NamedInferencer(BaseInferencer):
    """An inferencer as the mm packages write them, but for the images."""

    preprocess_kwargs = forward_kwargs = visualize_kwargs = postprocess_kwargs = set()

    def _init_pipeline(self, cfg):
        return list

    def _init_visualizer(self, cfg):
        return None

    def visualize(self, *args, **kwargs):
        raise NotImplementedError

    postprocess = visualize


def inferencer(path, run_dir, trust):
    with trusted_checkpoints(bool(trust)):
        NamedInferencer(weights=path, scope='mmengine', device='cpu')


def by_runner(use: str, **options):
    def load(path, run_dir, trust):
        getattr(make_runner(run_dir, load_from=path, **options, **trust), use)()

    return load


WAYS = {
    'load_from': by_runner('train'),
    'resume': by_runner('train', resume=True),
    'test': by_runner('test', test=True),
    'pretrained': pretrained,
    'init_detector': by_init_detector,
    'strategy': by_strategy,
}
# These need more than the weights of a trap, or say another thing about it.
READERS_OF_TEXT = {'flexible-resume': flexible_resume, 'inferencer': inferencer}


@pytest.mark.parametrize('load', WAYS.values(), ids=WAYS)
def test_no_way_runs_a_checkpoint(trap, tmp_path, load):
    path, sprung = trap
    wanted = f'trap.pth is refused.*{os.mkdir.__module__}.mkdir.*--trust-checkpoint'
    with pytest.raises(UntrustedCheckpointError, match=wanted):
        load(str(path), tmp_path / 'run', {})
    assert not sprung.exists()


@pytest.fixture(scope='module')
def saved_by_a_run(tmp_path_factory):
    """Checkpoints of our runner (False) and of mmengine's flexible one (True)."""
    folder = tmp_path_factory.mktemp('saved')
    make_runner(folder).train()
    flexible_runner(folder / 'flexible').train()
    return {
        True: read_checkpoint(folder / 'flexible' / 'iter_4.pth'),
        False: read_checkpoint(folder / 'iter_4.pth'),
    }


def put_text(saved, text):
    saved['meta'].update(config=text, cfg=text)
    saved['message_hub']['runtime_info'].update(cfg=text)


@pytest.mark.parametrize(
    'load', (WAYS | READERS_OF_TEXT).values(), ids=WAYS | READERS_OF_TEXT
)
def test_no_way_runs_text_of_a_checkpoint(saved_by_a_run, tmp_path, load):
    """The trap is watched during the whole call, not while the file is read alone."""
    sprung, path = tmp_path / 'sprung', tmp_path / 'trap.pth'
    saved = copy.deepcopy(saved_by_a_run[load is flexible_resume])
    put_text(saved, f'import os\nos.mkdir({str(sprung)!r})\n')
    torch.save(saved, path)
    if load is inferencer:
        with pytest.raises(UntrustedCheckpointError, match='Give the config: Named.*='):
            load(str(path), tmp_path / 'run', {})
    else:
        load(str(path), tmp_path / 'run', {})
    assert not sprung.exists()


@pytest.mark.parametrize('load', [WAYS['resume'], inferencer])
def test_text_of_a_trusted_one_is_run(saved_by_a_run, tmp_path, load):
    """The traps are live: mmengine runs them where a user allows it."""
    sprung, path = tmp_path / 'sprung', tmp_path / 'trap.pth'
    saved = copy.deepcopy(saved_by_a_run[False])
    model = "dict(type='TinyModel')"
    put_text(saved, f'import os\nos.mkdir({str(sprung)!r})\nmodel={model}\n')
    torch.save(saved, path)
    load(str(path), tmp_path / 'run', dict(trust_checkpoint=True))
    assert sprung.is_dir()


def test_what_a_model_reads_while_it_is_built_needs_trust(trap, tmp_path, monkeypatch):
    """As mmdet's models of knowledge distillation read their teacher."""
    path, sprung = trap

    class Taught(Tiny):
        def __init__(self):
            super().__init__()
            load_checkpoint(self, str(path), map_location='cpu')

    monkeypatch.setattr('tiny_run.Tiny', Taught)
    with pytest.raises(UntrustedCheckpointError):
        make_runner(tmp_path / 'run')
    assert not sprung.exists()
    make_runner(tmp_path / 'run', trust_checkpoint=True)
    assert sprung.exists()


def test_trust_ends_and_does_not_spread(trap, tmp_path):
    path, sprung = trap
    WAYS['load_from'](str(path), tmp_path / 'run', dict(trust_checkpoint=True))
    sprung.rmdir()
    with trusted_checkpoints():
        with trusted_checkpoints(False):
            read_checkpoint(path)
    sprung.rmdir()
    with pytest.raises(UntrustedCheckpointError):
        read_checkpoint(path)
    assert not sprung.exists()

"""The classifier of clips, its metric, and the configs from data to accuracy."""

from itertools import combinations
from pathlib import Path

import pytest

pytest.importorskip('mmengine')
pytest.importorskip('av')

import numpy as np
import torch
from mmengine.config import Config
from mmengine.registry import DATASETS, RUNNERS

import mmattn  # noqa: F401  registers the runner's scope
from mmattn.analysis.flops import build
from mmattn.models import LiSANet
from projects.video import demo, playback_speed
from projects.video.classifier import VideoClassifier
from projects.video.dataset import VideoDataset
from projects.video.metric import TopKAccuracy
from projects.video.reader import VideoReader
from projects.video.video_lisanet import VideoLiSANet
from tools.datasets import package_data

CONFIGS = sorted(Path(__file__).with_name('configs').glob('*.py'))
ARCH = dict(
    embed_dims=(16, 32), depths=(1, 1), mlp_ratios=(2, 2), conv_stages=1, patterns=2
)
BACKBONE = dict(type=VideoLiSANet, arch=ARCH, num_frames=4, img_size=32)
NAMES = [config.stem for config in CONFIGS if '_b_' not in config.stem]
DEMO = ['lisanet_hybrid_p_playback_speed', 'lisanet_hybrid_p_frames_playback_speed']


def classifier(**kwargs):
    torch.manual_seed(0)
    return VideoClassifier(
        backbone=BACKBONE,
        neck=dict(type='AveragePool'),
        head=dict(type='LinearHead', num_classes=3, in_channels=32),
        **kwargs,
    )


def views(B=2, V=3):
    generator = torch.Generator().manual_seed(0)
    return torch.randn(B, V, 3, 4, 32, 32, generator=generator)


def test_scores_are_the_mean_over_views():
    model, inputs, labels = classifier().eval(), views(), torch.tensor([2, 0])
    logits = model(inputs)
    assert logits.shape == (6, 3)
    found = model(inputs, labels, mode='predict')
    for video, sample in enumerate(found):
        apart = [model(inputs[video, view, None]).softmax(-1)[0] for view in range(3)]
        assert torch.allclose(sample['scores'], sum(apart) / 3, atol=1e-6)
        assert sample['label'] == labels[video]


def test_views_of_a_training_are_samples():
    model, inputs, labels = classifier(label_smoothing=0.1).eval(), views(), [2, 0]
    loss = model(inputs, torch.tensor(labels), mode='loss')['loss']
    logs = model(inputs).log_softmax(-1).unflatten(0, (2, 3))
    own = torch.stack([logs[video, :, label] for video, label in enumerate(labels)])
    assert torch.allclose(loss, -(0.9 * own + 0.1 * logs.mean(-1)).mean())


@pytest.mark.parametrize('kind', ['mixup', 'cutmix'])
def test_mixed_clips_have_mixed_labels(kind):
    """The share of a label is its clip's share, here its constant value."""
    torch.manual_seed(3)
    model = classifier(**{kind: 1.0})
    clips = torch.eye(3)[:, :, None, None, None].expand(3, 3, 4, 32, 32)
    mixed, targets = model._mix(clips, torch.arange(3))
    assert type(mixed) is torch.Tensor and mixed.shape == clips.shape
    assert torch.allclose(mixed.mean((2, 3, 4)), targets, atol=1e-5)
    assert 0 < float(targets[0].max()) < 1
    assert (mixed == mixed[:, :, :1]).all()  # alike at all times


def test_unknown_mode():
    with pytest.raises(ValueError, match="mode must be .* got 'train'"):
        classifier()(views(), mode='train')


def test_topk():
    metric = TopKAccuracy((1, 2))
    rows = [([0.1, 0.7, 0.2], 1), ([0.5, 0.3, 0.2], 1), ([0.6, 0.3, 0.1], 2)]
    rows.append(([0.4, 0.4, 0.2], 0))  # a tie
    samples = [dict(scores=torch.tensor(s), label=torch.tensor(y)) for s, y in rows]
    metric.process({}, samples[:2])
    metric.process({}, samples[2:])
    assert metric.evaluate(4) == {'acc/top1': 25.0, 'acc/top2': 75.0}
    with pytest.raises(ValueError, match='at most 3, the number of classes'):
        TopKAccuracy((1, 5)).process({}, samples)
    with pytest.raises(ValueError, match='numbers from 1 on'):
        TopKAccuracy((0,))


# Times of the frames, steps between the clips' frames, and sides of the clips.
SPLITS = {'train': (range(31), 2, 80), 'val': (range(31, 60), 2, 64)}


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    """Build the demo's data set of a small square that moves on a still picture."""
    folder = tmp_path_factory.mktemp('speeds')
    still = np.random.default_rng(0).integers(0, 99, (100, 160, 3), np.uint8)
    frames = np.repeat(still[None], 60, 0)
    for time, frame in enumerate(frames):
        frame[40:60, 2 * time : 2 * time + 20] = 255
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(playback_speed, 'PLACES', 1)
        counts = playback_speed.convert_frames(frames, folder, SPLITS)
    assert counts == {'train': 6, 'val': 3}  # two times, one time; one place each
    return folder, frames


def test_clips_are_built_from_the_package(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(package_data, 'fetch', lambda package, cache: cache)
    monkeypatch.setattr(playback_speed, 'read_deb', lambda path, members: [b'video'])
    monkeypatch.setattr(playback_speed, 'read_video', lambda path: path.read_bytes())
    made = []

    def convert_frames(frames, folder):
        made.append(frames)
        return {'train': 3}

    monkeypatch.setattr(playback_speed, 'convert_frames', convert_frames)
    for _ in range(2):
        playback_speed.main(['--out', str(tmp_path / 'clips')])
    assert made == [b'video']
    assert 'is complete' in capsys.readouterr().out


@pytest.mark.parametrize('split, middles', [('train', [16, 18]), ('val', [47])])
def test_clips_of_all_speeds_show_one_place_and_share_a_frame(folder, split, middles):
    """Their frames come from the split, 16 before the middle to 12 after it."""
    folder, frames = folder
    noisy = playback_speed.add_noise(frames)
    lines = (folder / f'{split}.txt').read_text().splitlines()
    side = SPLITS[split][2]
    for index, line in enumerate(lines):
        time, speed = middles[index // 3], (1, 2, 4)[index % 3]
        path, label = line.split()
        assert label == str(index % 3)
        y, x = (int(part[1:]) for part in path.split('_')[1:3])
        assert 60 - side <= y <= 40  # the square is inside
        assert 2 * time + 20 - side <= x <= 2 * time
        times = [time + speed * step for step in range(-4, 4)]
        clip = VideoReader(folder / path).frames(range(8))
        assert np.array_equal(clip, noisy[times, y : y + side, x : x + side])


def test_noise_has_its_deviation_and_no_mean():
    frames = np.full((3, 50, 50, 3), 100, np.uint8)
    change = playback_speed.add_noise(frames).astype(int) - frames
    assert abs(change.mean()) < 0.1 and abs(change.std() - 4) < 0.1
    assert np.corrcoef(change[0].ravel(), change[1].ravel())[0, 1] < 0.05
    assert (
        playback_speed.add_noise(frames[:, :1] * 0).min() == 0
    )  # clipped, not wrapped
    assert playback_speed.add_noise(frames[:, :1] * 0).max() < 30


def test_places_are_those_that_move_and_keep_apart():
    before = np.zeros((100, 200, 3), np.uint8)
    after = before.copy()
    after[10:20, 10:20], after[60:80, 150:170], after[90, 90] = 200, 100, 255
    places = list(playback_speed.moving_places(before, after, 40))
    for (top, left), size in zip([(60, 150), (10, 10)], [20, 10], strict=True):
        assert any(
            y <= top and top + size <= y + 40 and x <= left and left + size <= x + 40
            for y, x in places
        )
    changes = [round(after[y : y + 40, x : x + 40].mean(), 3) for y, x in places]
    assert changes == sorted(changes, reverse=True) and changes[-1] >= 3
    for (y, x), (other_y, other_x) in combinations(places, 2):
        assert max(abs(y - other_y), abs(x - other_x)) >= 20


def shrunk(name, folder, work_dir):
    """Return a config of the demo that is done in seconds."""
    cfg = Config.fromfile(CONFIGS[0].with_name(f'{name}.py'))
    loaders = [cfg.train_dataloader, cfg.val_dataloader, cfg.test_dataloader]
    for loader in loaders:
        loader.batch_size = 2
        loader.dataset.data_root = str(folder)
    cfg.model.backbone.arch = dict(ARCH)
    cfg.model.backbone.out_indices = 1
    cfg.model.neck.in_channels, cfg.model.head.in_channels = 32, 128
    cfg.train_cfg.max_iters = cfg.train_cfg.val_interval = 2
    cfg.work_dir = str(work_dir)
    return cfg


@pytest.mark.parametrize('name', DEMO)
def test_demo_trains_and_evaluates(folder, tmp_path, name):
    found = demo.train(shrunk(name, folder[0], tmp_path))['found']
    assert len(found) == 3 and set(found) <= {0, 1, 2}


def test_change_rule_knows_the_speed_of_a_moving_square(folder):
    train, val = (
        VideoDataset(f'{split}.txt', data_root=str(folder[0]), test_mode=True)
        for split in SPLITS
    )
    found = demo.change_rule(train, val)
    assert found == [0, 1, 2]
    assert demo.summary(found, val) == dict(
        accuracy=100.0, interval=[100.0, 100.0], by_speed=[100.0] * 3
    )


def test_interval_is_that_of_the_times(tmp_path):
    """Clips of one time count as one: half of the times are right."""
    rows = [
        f't{time:03d}_y0_x0_{label}x.mkv {label}'
        for time in range(40)
        for label in range(3)
    ]
    (tmp_path / 'val.txt').write_text('\n'.join(rows))
    val = VideoDataset('val.txt', data_root=str(tmp_path), test_mode=True)
    found = [label if time % 2 else 2 for time in range(40) for label in range(3)]
    result = demo.summary(found, val)
    assert result['accuracy'] == 66.7
    assert result['by_speed'] == [50.0, 50.0, 100.0]
    low, high = result['interval']
    # Each time is right in 1 or in 1/3, so the deviation of the mean is 1/3 / sqrt(40).
    assert abs((high - low) / 100 - 2 * 1.96 / 3 / 40**0.5) < 0.02


@pytest.mark.slow
def test_errors_of_a_run_name_the_video(folder, tmp_path):
    cfg = shrunk('lisanet_hybrid_p_playback_speed', folder[0], tmp_path)
    (tmp_path / 'train.txt').write_text('broken.mkv 0\n' * 2)
    (tmp_path / 'broken.mkv').write_bytes(b'no video')
    cfg.train_dataloader.dataset.data_root = str(tmp_path)
    with pytest.raises(ValueError, match='of VideoDataset: .*broken.mkv is damaged'):
        RUNNERS.build(cfg).train()
    (tmp_path / 'train.txt').write_text('broken.mkv 3\n')
    with pytest.raises(ValueError, match='has the label 3'):
        RUNNERS.build(cfg).train()


@pytest.mark.slow
def test_run_starts_from_an_image_network(folder, tmp_path):
    image = LiSANet(ARCH, img_size=64)
    state = {f'backbone.{name}': value for name, value in image.state_dict().items()}
    torch.save(dict(state_dict=state), tmp_path / 'image.pth')
    cfg = shrunk('lisanet_hybrid_p_playback_speed', folder[0], tmp_path)
    cfg.model.backbone.init_cfg = dict(
        type='Pretrained', checkpoint=str(tmp_path / 'image.pth'), prefix='backbone.'
    )
    cfg.model.backbone.out_norm = True
    cfg.train_cfg.max_iters, cfg.optim_wrapper.optimizer.lr = 1, 0.0
    runner = RUNNERS.build(cfg)
    runner.train()
    stem = runner.model.backbone.stem.proj.weight
    expected = image.stem.proj.weight.unsqueeze(2) / 3
    assert torch.allclose(stem, expected.expand_as(stem))


@pytest.mark.slow
@pytest.mark.parametrize('name', NAMES)
def test_configs_build(name, tmp_path):
    """Models take what the pipelines make of a video."""
    cfg = Config.fromfile(CONFIGS[0].with_name(f'{name}.py'))
    model = build(cfg)
    num_classes = model.head.num_classes
    frames = np.random.default_rng(0).integers(0, 255, (20, 64, 64, 3), np.uint8)
    playback_speed.write_video(tmp_path / 'a.mkv', frames)
    (tmp_path / 'list.txt').write_text(f'a.mkv {num_classes - 1}')
    shapes = []
    for key in ('train_dataloader', 'val_dataloader'):
        dataset = cfg[key].dataset
        dataset.data_root, dataset.ann_file = str(tmp_path), 'list.txt'
        dataset.data_prefix = dict(video_path='')
        sample = DATASETS.build(dataset)[0]
        assert sample['labels'] == num_classes - 1
        shapes.append(sample['inputs'].shape)
        logits = model(sample['inputs'][None].to('meta'))
        assert logits.shape == (sample['inputs'].shape[0], num_classes)
    assert shapes[0][1:] == shapes[1][1:]  # but the views

"""Tell from 8 frames of pedestrians how fast a clip plays, and measure the baselines.

Build the clips of playback_speed.py, train VideoLiSANet on them and on single frames,
and print the accuracies on later frames, which no training has seen. Results go to
`work_dirs/playback_speed/results.json`.
"""

# isort: split
import argparse
import json
import platform
import time
from pathlib import Path

import numpy as np
import torch
from mmengine.config import Config
from mmengine.registry import RUNNERS

import mmattn  # noqa: F401  registers the runner's scope
from mmattn.cli.terminal import run_main
from projects.video import playback_speed
from projects.video.dataset import VideoDataset
from projects.video.playback_speed import SPEEDS
from projects.video.reader import VideoReader

CONFIGS = Path(__file__).with_name('configs')
WORK_DIR = Path('work_dirs/playback_speed')
DRAWS = 2000


def train(cfg: Config) -> dict:
    """Train a config, and return the classes it finds and the seconds it took."""
    start, cpu_start = time.perf_counter(), time.process_time()
    runner = RUNNERS.build(cfg)
    runner.train()
    model = runner.model.eval()
    with torch.no_grad():
        samples = [
            s for batch in runner.test_dataloader for s in model.test_step(batch)
        ]
    found = [int(sample['scores'].argmax()) for sample in samples]
    return dict(
        found=found,
        seconds=round(time.perf_counter() - start),
        cpu_seconds=round(time.process_time() - cpu_start),
    )


def load(name: str) -> Config:
    cfg = Config.fromfile(CONFIGS / f'{name}.py')
    cfg.work_dir = str(WORK_DIR / name)
    return cfg


def mean_changes(dataset: VideoDataset) -> np.ndarray:
    """Return the logarithm of the mean change between the frames of each clip.

    It cuts larger clips to the middle, with the side of the validation clips.
    """
    side = playback_speed.SPLITS['val'][2]
    changes = []
    for index in range(len(dataset)):
        reader = VideoReader(dataset.get_data_info(index)['video_path'])
        frames = reader.frames(range(len(reader))).astype(np.float32)
        cut = (frames.shape[1] - side) // 2
        frames = frames[:, cut : cut + side, cut : cut + side]
        changes.append(np.log(np.abs(np.diff(frames, axis=0)).mean()))
    return np.array(changes)


def labels(dataset: VideoDataset) -> np.ndarray:
    infos = map(dataset.get_data_info, range(len(dataset)))
    return np.array([info['gt_label'] for info in infos])


def change_rule(known: VideoDataset, clips: VideoDataset) -> list[int]:
    """Return the class whose mean change, in `known`, is next to each clip's."""
    changes, classes = mean_changes(known), labels(known)
    means = [changes[classes == label].mean() for label in range(len(SPEEDS))]
    return np.abs(mean_changes(clips)[:, None] - means).argmin(1).tolist()


def summary(found: list[int], val: VideoDataset) -> dict:
    """Return accuracies in percent: of all clips, its 95 % interval, and by speed.

    The interval comes from a bootstrap over the times of the clips, since clips of one
    time show the same people.
    """
    right = np.equal(found, labels(val))
    times = [
        Path(val.get_data_info(index)['video_path']).name.partition('_')[0]
        for index in range(len(val))
    ]
    groups = [np.flatnonzero(np.equal(times, time)) for time in dict.fromkeys(times)]
    rng = np.random.default_rng(0)
    means = [
        right[np.concatenate([groups[i] for i in draw])].mean()
        for draw in rng.integers(len(groups), size=(DRAWS, len(groups)))
    ]
    by_speed = [right[labels(val) == label] for label in range(len(SPEEDS))]
    return dict(
        accuracy=round(100 * float(right.mean()), 1),
        interval=[round(100 * float(x), 1) for x in np.quantile(means, (0.025, 0.975))],
        by_speed=[round(100 * float(each.mean()), 1) for each in by_speed],
    )


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
    parser.add_argument(
        '--cache',
        default='data/.cache',
        help='folder of the downloaded package, default %(default)s',
    )
    args = parser.parse_args(argv)
    playback_speed.main(['--cache', args.cache])
    splits = [
        VideoDataset(f'{split}.txt', data_root=str(playback_speed.DATA), test_mode=True)
        for split in playback_speed.SPLITS
    ]
    runs = {
        'clips of 8 frames': train(load('lisanet_hybrid_p_playback_speed')),
        'mean change': dict(found=change_rule(*splits)),
        'single frames': train(load('lisanet_hybrid_p_frames_playback_speed')),
    }
    results = {
        name: summary(run.pop('found'), splits[1]) | run for name, run in runs.items()
    }
    report = dict(
        results=results,
        clips=dict(zip(playback_speed.SPLITS, map(len, splits), strict=True)),
        machine=platform.processor() or platform.machine(),
        threads=torch.get_num_threads(),
        torch=torch.__version__,
    )
    (WORK_DIR / 'results.json').write_text(json.dumps(report, indent=2) + '\n')
    print(f'\n{"input":<20}accuracy')
    for name, row in results.items():
        print(f'{name:<20}{row["accuracy"]:.1f} %')


if __name__ == '__main__':
    run_main(main)

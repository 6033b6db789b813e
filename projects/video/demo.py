"""Tell from 8 frames of dividing nuclei which way time runs, and measure the baselines.

Build the clips of arrow_of_time.py, train VideoLiSANet on them and on single frames,
and print the accuracies on later frames, which no training has seen. Results go to
`work_dirs/arrow_of_time/results.json`.
"""

import argparse
import json
import platform
import time
from pathlib import Path

import arrow_of_time
import cpu_threads  # before torch
import torch
from mmengine.config import Config
from mmengine.registry import RUNNERS

import mmattn  # noqa: F401  registers the runner's scope
from projects.video.dataset import VideoDataset
from projects.video.reader import VideoReader

CONFIGS = Path(__file__).with_name('configs')
WORK_DIR = Path('work_dirs/arrow_of_time')


def train(name: str, options: dict) -> dict:
    """Train a config and return its accuracy, in percent, and the seconds it took."""
    cfg = Config.fromfile(CONFIGS / f'{name}.py')
    cfg.merge_from_dict(options)
    cfg.work_dir = str(WORK_DIR / name)
    start = time.perf_counter()
    runner = RUNNERS.build(cfg)
    runner.train()
    accuracy = runner.test()['acc/top1']
    return dict(accuracy=accuracy, seconds=round(time.perf_counter() - start))


def brightness_rule(data: Path) -> float:
    """Return the accuracy, in percent, of calling clips that become brighter forward.

    Frames are stretched to the full range of gray one by one, and more nuclei make them
    brighter. The rule shows what a network could gain from that alone.
    """
    dataset = VideoDataset(ann_file='val.txt', data_root=str(data), test_mode=True)
    right = 0
    for index in range(len(dataset)):
        info = dataset.get_data_info(index)
        reader = VideoReader(info['video_path'])
        first, last = reader.frames([0, len(reader) - 1]).mean((1, 2, 3))
        right += int(last > first) == info['gt_label']
    return 100 * right / len(dataset)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
    parser.add_argument(
        '--cache',
        default='data/.cache',
        help='folder of the downloaded package, default %(default)s',
    )
    args = parser.parse_args(argv)
    arrow_of_time.main(['--cache', args.cache])
    cpu_threads.limit_threads()
    results = {
        'single frames': train('hylisanet_p_frames_hela_arrow', {}),
        'brightness rule': dict(accuracy=brightness_rule(arrow_of_time.DATA)),
        'clips of 8 frames': train('hylisanet_p_hela_arrow', {}),
    }
    report = dict(
        results=results,
        machine=platform.processor() or platform.machine(),
        threads=torch.get_num_threads(),
        torch=torch.__version__,
    )
    (WORK_DIR / 'results.json').write_text(json.dumps(report, indent=2) + '\n')
    print(f'\n{"input":<20}accuracy')
    for name, row in results.items():
        print(f'{name:<20}{row["accuracy"]:.1f} %')


if __name__ == '__main__':
    main()

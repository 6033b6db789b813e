"""Measure whether our networks learn more from weights of a relative than from random.

    python tools/datasets/fashion_mnist.py
    python -m tools.evidence.donor_starts --minutes 9

For each pair the donor, a small network of another family, is trained once on the odd
classes of Fashion-MNIST. Ours is then trained on the even classes, from the donor's
weights and from random ones, with the same seeds, images and number of iterations. Each
run adds a row to `docs/evidence/donor_starts.csv`. Runs that are there are skipped, so
that the command can be repeated until it says that nothing is left.
"""

import argparse
import csv
import fcntl
import os
import platform
import time
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import timm
import torch
import torch.nn.functional as F
from timm.models import metaformer
from torch import Tensor, nn

from mmattn.datasets.fashion_mnist import load_split
from mmattn.engine.checkpoints.weights import initialize_from_checkpoint
from mmattn.models import HMaiT, IViT, LiSANet, PVTv2, ViT
from mmattn.models.classifiers import PooledClassifier
from mmattn.terminal import run_main

ROWS = Path('docs/evidence/donor_starts.csv')
COLUMNS = 'pair', 'start', 'seed', 'accuracy', 'donor_accuracy', 'share'
COLUMNS += 'iterations', 'images', 'cpu_seconds', 'torch', 'machine'
RANDOM, DONOR = 'random', 'donor'
SEEDS = range(5)
CLASSES = {DONOR: (1, 3, 5, 7, 9), RANDOM: (0, 2, 4, 6, 8)}
ITERATIONS = {DONOR: 600, RANDOM: 100}
IMAGES, TESTED = 2000, 2000  # that ours is trained on and tested with
BATCH, RATE, WEIGHT_DECAY, WARMUP = 32, 1e-3, 0.05, 20
SIDE, SHIFT = 32, 3  # of the padded photographs, and their largest move, in pixels
DIMS, DEPTHS, HEADS = (32, 64, 160, 256), (2, 2, 6, 2), (1, 2, 5, 8)
SWIN = dict(embed_dims=(32, 64, 128, 256), depths=DEPTHS, num_heads=(1, 2, 4, 8))
MASKED = dict(masked_heads=(1, 2, 2, 0))  # those of HMaiT-nano


@dataclass(frozen=True)
class Pair:
    """Describe a donor and the network that starts from it.

    Attributes:
        donor: builds the donor, a classifier of five classes.
        ours: builds our backbone.
        size: side of the images in pixels.
    """

    donor: Callable[[], nn.Module]
    ours: Callable[[], nn.Module]
    size: int


def caformer() -> nn.Module:
    norms = metaformer.LayerNorm2dNoBias, metaformer.LayerNormNoBias
    mixers = metaformer.SepConv, metaformer.Attention
    return metaformer.MetaFormer(
        depths=DEPTHS,
        dims=DIMS,
        token_mixers=[mixer for mixer in mixers for _ in range(2)],
        norm_layers=[norm for norm in norms for _ in range(2)],
        mlp_act=metaformer.StarReLU,
        num_classes=5,
    )


def deit() -> nn.Module:
    plain = dict(img_size=SIDE, patch_size=4, embed_dim=96, depth=6, num_heads=3)
    return timm.create_model('deit_tiny_patch16_224', **plain, num_classes=5)


def swin() -> nn.Module:
    return timm.create_model(
        'swin_tiny_patch4_window7_224',
        img_size=2 * SIDE,
        embed_dim=SWIN['embed_dims'][0],
        depths=SWIN['depths'],
        num_heads=SWIN['num_heads'],
        always_partition=True,  # windows keep their size of 7 on small maps
        num_classes=5,
    )


def pvt() -> nn.Module:
    arch = dict(embed_dims=DIMS, depths=DEPTHS, num_heads=HEADS)
    arch |= dict(mlp_ratios=(4,) * 4, sr_ratios=(8, 4, 2, 1), linear=False)
    return PooledClassifier(PVTv2(arch, out_indices=-1), 5)


# The landmarks are a quarter of the largest map's tokens, as in the paper.
PAIRS = {
    'CAFormer, IViT': Pair(
        caformer, lambda: IViT('nano', out_indices=-1, landmarks=2), 64
    ),
    'DeiT, ViT with iMHSA': Pair(
        deit,
        lambda: ViT(
            dict(embed_dims=96, depth=6, num_heads=3),
            patch_size=4,
            img_size=SIDE,
            landmarks=4,
        ),
        SIDE,
    ),
    'Swin, HMaiT': Pair(swin, lambda: HMaiT(SWIN | MASKED, out_indices=-1), 64),
    'PVTv2, HyLiSANet': Pair(
        pvt, lambda: LiSANet('hybrid-nano', out_indices=-1, img_size=64), 64
    ),
}


@dataclass(frozen=True)
class Data:
    """Hold photographs (N, SIDE, SIDE) of some classes, uint8, and labels from 0."""

    images: Tensor
    labels: Tensor

    @staticmethod
    def load(folder: Path, split: str, classes: Sequence[int]) -> 'Data':
        images, labels = map(torch.tensor, load_split(folder, split))
        chosen = torch.isin(labels, torch.tensor(classes))
        labels = torch.bucketize(labels[chosen], torch.tensor(classes))
        margin = (SIDE - images.shape[-1]) // 2
        return Data(F.pad(images[chosen], (margin,) * 4), labels)

    def subset(self, count: int, seed: int) -> 'Data':
        order = torch.randperm(
            len(self.images), generator=torch.Generator().manual_seed(seed)
        )[:count]
        return Data(self.images[order], self.labels[order])


def prepared(images: Tensor, size: int) -> Tensor:
    """Return normalized images (B, 3, size, size)."""
    x = (images[:, None].float() - 73) / 90  # mean and deviation of the photographs
    if size != SIDE:
        x = F.interpolate(x, (size, size), mode='bilinear')
    return x.expand(-1, 3, -1, -1).contiguous()


def moved(images: Tensor) -> Tensor:
    """Return the images (B, H, W) after one random move and mirroring each."""
    dy, dx = torch.randint(-SHIFT, SHIFT + 1, (2, len(images), 1))
    side = torch.arange(SIDE)
    x = torch.where(torch.rand(len(images), 1) < 0.5, side, side.flip(0))
    y = (side + dy).clamp(0, SIDE - 1)[:, :, None]
    x = (x + dx).clamp(0, SIDE - 1)[:, None, :]
    return images[torch.arange(len(images))[:, None, None], y, x]


def train(model: nn.Module, data: Data, size: int, iterations: int):
    """Train a classifier; the draws come from PyTorch's generator."""
    model.train()
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=RATE, weight_decay=WEIGHT_DECAY
    )
    warmup = torch.optim.lr_scheduler.LinearLR(optimizer, 0.01, 1, WARMUP)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, iterations - WARMUP)
    schedule = torch.optim.lr_scheduler.SequentialLR(
        optimizer, [warmup, cosine], [WARMUP]
    )
    for _ in range(iterations):
        chosen = torch.randint(len(data.images), (BATCH,))
        x = prepared(moved(data.images[chosen]), size)
        loss = F.cross_entropy(model(x), data.labels[chosen])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        schedule.step()


@torch.no_grad()
def accuracy(model: nn.Module, data: Data, size: int) -> float:
    """Return the accuracy in percent."""
    model.eval()
    hits = 0
    for images, labels in zip(
        data.images.split(500), data.labels.split(500), strict=True
    ):
        hits += (model(prepared(images, size)).argmax(1) == labels).sum().item()
    return round(100 * hits / len(data.labels), 2)


def donor_file(name: str, folder: Path, work_dir: Path) -> Path:
    """Return the weights of a pair's donor, after training it if needed."""
    path = work_dir / f'{name.partition(",")[0].lower()}.pth'
    if not path.is_file():
        torch.manual_seed(0)
        pair, data = PAIRS[name], {}
        for split in ('train', 'test'):
            data[split] = Data.load(folder, split, CLASSES[DONOR])
        donor = pair.donor()
        train(donor, data['train'], pair.size, ITERATIONS[DONOR])
        found = accuracy(donor, data['test'], pair.size)
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save(dict(state_dict=donor.state_dict(), accuracy=found), path)
        print(f'{path}: accuracy {found} on its own classes', flush=True)
    return path


def run(name: str, start: str, seed: int, folder: Path, work_dir: Path) -> dict:
    """Train ours from one start, and return a row of the table."""
    pair, share, donor_accuracy = PAIRS[name], 0.0, ''
    file = donor_file(name, folder, work_dir)
    began = time.process_time()
    torch.manual_seed(seed)
    model = PooledClassifier(pair.ours(), 5)
    if start == DONOR:
        donor_accuracy = torch.load(file)['accuracy']
        share = initialize_from_checkpoint(model.backbone, str(file)).share()
    data = Data.load(folder, 'train', CLASSES[RANDOM]).subset(IMAGES, seed)
    torch.manual_seed(seed)
    train(model, data, pair.size, ITERATIONS[RANDOM])
    test = Data.load(folder, 'test', CLASSES[RANDOM]).subset(TESTED, 0)
    values = name, start, seed, accuracy(model, test, pair.size), donor_accuracy
    values += f'{share:.4f}', ITERATIONS[RANDOM], IMAGES
    values += round(time.process_time() - began, 1), torch.__version__
    machine = f'{platform.machine()}, {os.cpu_count()} cores'
    return dict(zip(COLUMNS, (*values, machine), strict=True))


@contextmanager
def table(path: Path):
    """Yield the rows of a csv file, and write them back, while no one else does."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open('a+', newline='') as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        rows = list(csv.DictReader(file))
        yield rows
        file.truncate(0)
        writer = csv.DictWriter(file, COLUMNS, lineterminator='\n')
        writer.writeheader()
        writer.writerows(rows)


def main(argv: Sequence[str] | None = None):
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
    parser.add_argument('--pairs', nargs='+', choices=PAIRS, default=list(PAIRS))
    parser.add_argument('--data', type=Path, default='data/fashion_mnist')
    parser.add_argument('--work-dir', type=Path, default='work_dirs/donor_starts')
    parser.add_argument('--out', type=Path, default=ROWS)
    parser.add_argument(
        '--minutes', type=float, default=9, help='begin no further run after this time'
    )
    args = parser.parse_args(argv)
    end = time.monotonic() + 60 * args.minutes
    for seed, name, start in product(SEEDS, args.pairs, (RANDOM, DONOR)):
        with table(args.out) as rows:
            done = {(row['pair'], row['start'], int(row['seed'])) for row in rows}
        if (name, start, seed) in done:
            continue
        if time.monotonic() > end:
            print('time is up; repeat the command')
            return
        row = run(name, start, seed, args.data, args.work_dir)
        print(row, flush=True)
        with table(args.out) as rows:
            rows.append(row)
    print('nothing is left')


if __name__ == '__main__':
    run_main(main)

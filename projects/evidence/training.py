"""Train and test a small classifier in a plain loop, on images in memory.

All random draws of a step depend on the seed and the step alone, so two networks with
one seed see the same images.
"""

import hashlib
import json
import math
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from statistics import mean

import timm
import torch
import torch.nn.functional as F
from timm.models import metaformer
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import mmattn.models
from mmattn.models.layers.weight_decay import undecayed_names
from mmattn.weights.load import initialize_from_checkpoint
from projects.evidence.images import Labeled, mirrored, normalized, scattered
from projects.evidence.mechanisms import MEASURES
from projects.evidence.rows import locked
from projects.lisa_ablations.network import AblationLiSANet

TESTED = 0.95, 1.0  # shares of the run after which the network is tested
MEASURED = 16  # images of the validation data for the measures
BACKBONES = vars(mmattn.models) | {'AblationLiSANet': AblationLiSANet}
STRIDE = 1_000_000  # between the random seeds of two runs, more than the steps of one


@dataclass(frozen=True, eq=False)
class Training:
    """Describe a network, its training and its tests; a run adds the seed.

    Attributes:
        backbone: name of a class of `BACKBONES`, 'timm' or 'CAFormer', and its
            arguments.
        classes: labels of the images that it learns.
        donor: the network from whose weights it starts; None starts at random.
        images: number of images that a run sees; none leaves the network as drawn.
        rate: learning rate, which falls to 0 by a cosine after the warmup.
        size: side of the images in pixels, 28 in the data.
        scattered: whether images keep their 28 pixels and lie anywhere in `size`;
            otherwise they are enlarged.
        tests: further sides of the test images, each a metric `accuracy@SIDE`.
        measures: names of functions in `mechanisms.MEASURES`, which give metrics.
        batch, weight_decay, warmup, clip: settings of AdamW; `warmup` is a share of the
            run, `clip` the largest norm of the gradients.
        average: share of the run over which weights are averaged, exponentially.
    """

    backbone: Mapping[str, object]
    classes: tuple[int, ...] = tuple(range(10))
    donor: 'Training | None' = None
    images: int = 102_400
    rate: float = 2e-3
    size: int = 28
    scattered: bool = False
    tests: tuple[int, ...] = ()
    measures: tuple[str, ...] = ()
    batch: int = 32
    weight_decay: float = 0.05
    warmup: float = 0.05
    clip: float = 1.0
    average: float = 0.02

    @property
    def steps(self) -> int:
        return self.images // self.batch

    @property
    def shape(self) -> tuple[int, int, int]:
        """Return channels, height and width of the images."""
        return 1, self.size, self.size

    @property
    def hash(self) -> str:
        """Return a hash of all that a run depends on beside the seed."""
        text = json.dumps(asdict(self), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def rate_at(self, step: int) -> float:
        """Return the learning rate of a step, counted from 0."""
        warmup = max(1, round(self.warmup * self.steps))
        if step < warmup:
            return self.rate * (step + 1) / warmup
        done = (step - warmup) / (self.steps - warmup)
        return self.rate * (1 + math.cos(math.pi * done)) / 2


class Classifier(nn.Module):
    """Backbone, the mean of its last map, and a linear layer."""

    def __init__(self, backbone: nn.Module, num_classes: int):
        super().__init__()
        self.backbone = backbone
        self.head = nn.Linear(backbone.out_channels[-1], num_classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.backbone(x)[-1].mean((-2, -1)))


def build(training: Training) -> nn.Module:
    """Return a classifier of gray images.

    If it is to be trained, PyTorch draws its linear layers, by their number of
    channels. The usual deviation of 0.02 scales a token of 48 channels by 0.14, and
    PyTorch's by 0.58. The papers' networks have more channels.
    """
    options, num_classes = dict(training.backbone), len(training.classes)
    kind = options.pop('type')
    if kind in MAKERS:
        model = MAKERS[kind](**options, in_chans=1, num_classes=num_classes)
    else:
        backbone = BACKBONES[kind](**options, in_channels=1, out_indices=-1)
        model = Classifier(backbone, num_classes)
    for module in model.modules():
        if training.images and isinstance(module, nn.Linear):
            module.reset_parameters()
    return model


def caformer(**options) -> nn.Module:
    """Return a CAFormer of any size; timm's presets have theirs."""
    norms = metaformer.LayerNorm2dNoBias, metaformer.LayerNormNoBias
    mixers = metaformer.SepConv, metaformer.Attention
    return metaformer.MetaFormer(
        token_mixers=[mixer for mixer in mixers for _ in range(2)],
        norm_layers=[norm for norm in norms for _ in range(2)],
        mlp_act=metaformer.StarReLU,
        **options,
    )


MAKERS = dict(timm=timm.create_model, CAFormer=caformer)


def make_optimizer(model: nn.Module, training: Training) -> torch.optim.Optimizer:
    """Return AdamW without decay of biases, norms and what layers exempt."""
    exempt, groups = undecayed_names(model), ([], [])
    for name, parameter in model.named_parameters():
        groups[parameter.dim() < 2 or name in exempt].append(parameter)
    decayed, others = groups
    groups = [dict(params=decayed), dict(params=others, weight_decay=0.0)]
    return torch.optim.AdamW(groups, weight_decay=training.weight_decay, fused=True)


@cache
def order_of(seed: int, epoch: int, count: int) -> Tensor:
    """Return the order of the training images in an epoch."""
    generator = torch.Generator().manual_seed(seed * STRIDE + epoch)
    return torch.randperm(count, generator=generator)


def batch_of(data: Labeled, seed: int, step: int, size: int) -> Labeled:
    """Return the images of a step, of one epoch; an epoch leaves out its remainder."""
    epoch, index = divmod(step, len(data.labels) // size)
    chosen = order_of(seed, epoch, len(data.labels))[index * size : (index + 1) * size]
    return data.part(chosen)


@torch.no_grad()
def accuracy(model: nn.Module, data: Labeled, size: int) -> float:
    """Return the accuracy in percent on images that are enlarged to `size`."""
    model.eval()
    hits = 0
    parts = zip(data.images.split(500), data.labels.split(500), strict=True)
    for images, labels in parts:
        hits += (model(normalized(images, size)).argmax(1) == labels).sum().item()
    return 100 * hits / len(data.labels)


class Run:
    """Hold the state of a training: a network, its average, and what was measured."""

    def __init__(self, training: Training, seed: int, data: Mapping[str, Labeled]):
        self.training, self.seed = training, seed
        self.data = {name: part.of(training.classes) for name, part in data.items()}
        if training.scattered:
            torch.manual_seed(0)  # all runs are tested at the same places
            for name in ('validation', 'test'):
                part = self.data[name]
                images = scattered(part.images, training.size)
                self.data[name] = replace(part, images=images)
        torch.manual_seed(seed)
        self.model = build(training)
        self.optimizer = make_optimizer(self.model, training)
        decay = 1 - 1 / max(1.0, training.average * training.steps)
        self.average = AveragedModel(
            self.model, multi_avg_fn=get_ema_multi_avg_fn(decay)
        )
        self.step, self.seconds, self.records, self.losses = 0, 0.0, [], []

    def train_step(self):
        training, step = self.training, self.step
        torch.manual_seed(self.seed * STRIDE + step)
        for group in self.optimizer.param_groups:
            group['lr'] = training.rate_at(step)
        chosen = batch_of(self.data['train'], self.seed, step, training.batch)
        images = mirrored(chosen.images)
        if training.scattered:
            images = scattered(images, training.size)
        scores = self.model.train()(normalized(images, training.size))
        loss = F.cross_entropy(scores, chosen.labels)
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), training.clip)
        self.optimizer.step()
        self.average.update_parameters(self.model)
        self.step += 1
        if self.step >= TESTED[0] * training.steps:
            self.losses.append(loss.item())

    def test(self):
        """Add the accuracies of the averaged weights."""
        model, size = self.average.module, self.training.size
        splits = dict(validation='validation', accuracy='test')
        found = {
            name: accuracy(model, self.data[split], size)
            for name, split in splits.items()
        }
        for side in self.training.tests:
            found[f'accuracy@{side}'] = accuracy(model, self.data['test'], side)
        self.records.append(found)

    def metrics(self) -> dict[str, float]:
        """Return accuracies, averaged over the tests, the loss, and the measures."""
        found = {
            name: mean(record[name] for record in self.records)
            for name in (self.records or [{}])[0]
        }
        if self.training.steps:
            found |= dict(loss=mean(self.losses), cpu_seconds=self.seconds)
        images = self.data['validation'].images[:MEASURED]
        images = normalized(images, self.training.size)
        model = self.average.module.eval()
        for name in self.training.measures:
            found |= MEASURES[name](model.backbone, images)
        return found

    def finish(self):
        """Do all steps, and the tests."""
        tests = {round(share * self.training.steps) for share in TESTED}
        while self.step < self.training.steps:
            began = time.process_time()
            self.train_step()
            self.seconds += time.process_time() - began
            if self.step in tests:
                self.test()


def donor_weights(donor: Training, data: Mapping[str, Labeled], folder: Path) -> Path:
    """Return the file of a donor's weights, after training it if need be."""
    path = folder / 'weights.pth'
    with locked(folder):
        if not path.is_file():
            run = Run(donor, 0, data)
            run.finish()
            torch.save(run.average.module.state_dict(), path)
    return path


def train(
    training: Training, seed: int, data: Mapping[str, Labeled], folder: Path
) -> dict[str, float]:
    """Train a network and return its metrics.

    Args:
        training, seed: what to do.
        data: parts 'train', 'validation' and 'test'.
        folder: folder of the run. A donor has its own beside it, with its weights.
    """
    run, found = Run(training, seed, data), {}
    if training.donor:
        file = donor_weights(
            training.donor, data, folder.parent / f'{training.donor.hash}_0'
        )
        share = initialize_from_checkpoint(run.model.backbone, str(file)).share()
        run.average.module.load_state_dict(run.model.state_dict())
        found = dict(share=100 * share)
    run.finish()
    return run.metrics() | found

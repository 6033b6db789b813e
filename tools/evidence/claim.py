"""Claims: what a paper says, the networks that test it, and how to decide.

A claim is a file of `tools/evidence/claims` that defines `claim`, a `Claim`. Its rule
is written down before the runs. Reading a claim requires mmengine only.
"""

import copy
import hashlib
import json
import runpy
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path

from mmengine.config import Config

from mmattn.errors import UserError

ROOT = Path(__file__).resolve().parents[2]
CLAIMS = Path(__file__).with_name('claims')
# What a result depends on, beside the seed.
DECISIVE = (
    *('model', 'train_dataloader', 'train_cfg', 'optim_wrapper', 'param_scheduler'),
    *('custom_hooks', 'val_dataloader', 'val_evaluator', 'val_cfg'),
)
METRIC_OF_VARIANT = '@'  # between the names of a variant and of its metric


@dataclass(frozen=True)
class Variant:
    """Describe a network that is trained once for each seed.

    Args:
        config: path of the config, relative to the checkout.
        options: entries of the config to override, as `--cfg-options` of train.py.
        tests: further evaluations of the trained network: the options of test.py's
            config by name. Their metrics are called `NAME:METRIC`.
    """

    config: str
    options: Mapping[str, object] = field(default_factory=dict)
    tests: Mapping[str, Mapping[str, object]] = field(default_factory=dict)

    @cached_property
    def resolved(self) -> Config:
        """Return the config with the options."""
        config = Config.fromfile(ROOT / self.config)
        config.merge_from_dict(copy.deepcopy(dict(self.options)))
        return config

    @cached_property
    def training_hash(self) -> str:
        """Return a hash of what a training depends on beside the seed."""
        config = self.resolved.to_dict()
        return _hash({key: config.get(key) for key in DECISIVE})

    @property
    def iterations(self) -> int:
        """Return the length of a run, in iterations or in epochs."""
        lengths = self.resolved.train_cfg
        return lengths.get('max_iters') or lengths.max_epochs


@dataclass(frozen=True)
class Comparison:
    """State that some variants are better than others, seed by seed.

    The difference is the sum of `better` minus the sum of `worse`. Two names each
    compare two differences, such as a gain at 8 heads with that at 2.

    Args:
        text: what is compared, in words, with what the paper reports.
        better, worse: names of variants. `NAME@METRIC` takes another metric than the
            comparison's.
        metric: metric of the difference; None takes the claim's.
        lower_is_better: whether the difference is that of `worse` minus `better`.
        smallest: smallest difference that would count, in units of the metric.
        allowed: loss that still counts as none, in units of the metric, for claims that
            something is kept.
    """

    text: str
    better: str | tuple[str, ...]
    worse: str | tuple[str, ...]
    metric: str | None = None
    lower_is_better: bool = False
    smallest: float = 0.0
    allowed: float = 0.0

    def terms(self, metric: str) -> list[tuple[int, str, str]]:
        """Return sign, variant and metric of what the difference sums.

        Args:
            metric: metric of the claim.
        """
        found = []
        sign = -1 if self.lower_is_better else 1
        for names, factor in ((self.better, sign), (self.worse, -sign)):
            for name in (names,) if isinstance(names, str) else names:
                variant, _, own = name.partition(METRIC_OF_VARIANT)
                found.append((factor, variant, own or self.metric or metric))
        return found


@dataclass(frozen=True)
class Claim:
    """State a claim of a paper and how it is tested.

    Args:
        statement: the claim, as a sentence.
        source: paper and table.
        variants: networks by name, in the order of the table.
        comparisons: what must hold for the claim to hold. Without any, the runs are a
            baseline.
        metric: metric of the comparisons that name none.
        seeds: seeds of a complete series.
        image_shape: height and width, or channels, height and width, at which FLOPs are
            counted.
        measurements: names of functions in `measurements.py` that measure each trained
            network; their metrics have the names that the functions return.
        alike: groups of variants whose parameters may differ by `tolerance` at most.
        tolerance: largest difference of the parameters, relative to the smallest.
        notes: what a reader must know: data, scale, and what was cut. Markdown.
    """

    statement: str
    source: str
    variants: Mapping[str, Variant]
    image_shape: tuple[int, ...]
    comparisons: tuple[Comparison, ...] = ()
    metric: str = 'accuracy/top1'
    seeds: tuple[int, ...] = (0, 1, 2)
    measurements: tuple[str, ...] = ()
    alike: tuple[tuple[str, ...], ...] = ()
    tolerance: float = 0.05
    notes: str = ''

    def __post_init__(self):
        named = {name for group in self.alike for name in group}
        for comparison in self.comparisons:
            named |= {variant for _, variant, _ in comparison.terms(self.metric)}
        if unknown := sorted(named - set(self.variants)):
            raise UserError(
                f'unknown variants {unknown}; the claim has {list(self.variants)}'
            )

    def config_hash(self, name: str) -> str:
        """Return a hash of all that a variant's results depend on beside the seed."""
        variant = self.variants[name]
        tests = {key: dict(test) for key, test in variant.tests.items()}
        return _hash([variant.training_hash, tests, list(self.measurements)])


def _hash(content: object) -> str:
    text = json.dumps(content, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def claim_names(folder: Path = CLAIMS) -> list[str]:
    return sorted(path.stem for path in folder.glob('*.py'))


@cache  # claims are not changed, and some load others
def load_claim(name: str, folder: Path = CLAIMS) -> Claim:
    """Return a claim by the name of its file.

    Raises:
        ValueError: there is no such claim.
    """
    if name not in claim_names(folder):
        raise UserError(
            f'claim must be one of {claim_names(folder)}, got {name!r}; claims are '
            f'files of {folder}'
        )
    return runpy.run_path(str(folder / f'{name}.py'))['claim']

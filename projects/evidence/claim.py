"""Claims: what a paper says, the networks that test it, and what is compared.

All of it is written down before the runs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mmattn.errors import UserError
from projects.evidence.demo import Demo
from projects.evidence.rows import Row
from projects.evidence.training import Training

ROOT = Path(__file__).resolve().parents[2]
Network = Training | Demo
Rows = Mapping[tuple[str, int], Row]
METRIC_OF_NETWORK = ':'  # between the names of a network and of its metric


@dataclass(frozen=True)
class Comparison:
    """State that one network is better than another, seed by seed.

    The difference is the sum of `better` minus the sum of `worse`. Two names each
    compare two differences, such as a gain at 8 heads with that at 2.

    Args:
        text: what is subtracted from what, in words.
        better, worse: names of networks; `NAME:METRIC` takes another metric than the
            comparison's.
        metric: metric of the difference; None takes the claim's.
        lower: whether a lower value is better.
    """

    text: str
    better: str | tuple[str, ...]
    worse: str | tuple[str, ...]
    metric: str | None = None
    lower: bool = False

    def terms(self, metric: str) -> list[tuple[int, str, str]]:
        """Return sign, network and metric of what the difference sums.

        Args:
            metric: metric of the claim.
        """
        found = []
        sign = -1 if self.lower else 1
        for names, factor in ((self.better, sign), (self.worse, -sign)):
            for name in (names,) if isinstance(names, str) else names:
                network, _, own = name.partition(METRIC_OF_NETWORK)
                found.append((factor, network, own or self.metric or metric))
        return found


@dataclass(frozen=True)
class Claim:
    """State a claim of a paper and how it is tested.

    Args:
        statement: the claim, as a sentence.
        source: link to the paper; empty if none says so.
        networks: what is trained, by name, in the order of the plot.
        comparisons: what the claim says about them; corrected together.
        metric: metric of the comparisons that name none.
        margin: differences below it count as none. With 0, no verdict says so.
        seeds: seeds of a complete series.
        alike: groups of networks whose parameters may differ by `tolerance` at most,
            relative to the smallest.
        choices: groups of networks, by the name that comparisons use. The network with
            the best `validation` of the first seed stands for its group, and the others
            run with that seed only.
        exact: whether the metrics do not depend on the seed, so that one run decides.
    """

    statement: str
    source: str = ''
    networks: Mapping[str, Network] = field(kw_only=True)
    comparisons: tuple[Comparison, ...] = ()
    metric: str = 'accuracy'
    margin: float = 0.5
    seeds: tuple[int, ...] = tuple(range(5))
    alike: tuple[tuple[str, ...], ...] = ()
    tolerance: float = 0.05
    choices: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    exact: bool = False

    def __post_init__(self):
        named = {name for group in self.alike for name in group}
        for comparison in self.comparisons:
            named |= {network for _, network, _ in comparison.terms(self.metric)}
        if unknown := sorted(named - set(self.networks) - set(self.choices)):
            raise UserError(
                f'unknown networks {unknown}; the claim has {list(self.networks)}'
            )

    def chosen(self, rows: Rows) -> dict[str, str]:
        """Return the network of each choice whose networks have all run once."""
        found = {}
        for name, members in self.choices.items():
            keys = {(self.networks[each].hash, self.seeds[0]): each for each in members}
            if rows.keys() >= keys.keys():
                best = max(keys, key=lambda key: rows[key].metrics['validation'])
                found[name] = keys[best]
        return found

    def pending(self, rows: Rows, seeds: Sequence[int]) -> list[tuple[str, int]]:
        """Return name and seed of the runs without a row, all of a seed together."""
        chosen = self.chosen(rows)
        losers = {
            each
            for name, members in self.choices.items()
            for each in members
            if chosen.get(name) != each
        }
        return [
            (name, seed)
            for seed in seeds
            for name, network in self.networks.items()
            if (network.hash, seed) not in rows
            and (seed == self.seeds[0] or name not in losers)
        ]

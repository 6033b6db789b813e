"""Evaluate the runs of the claims: verdicts, plots and the page.

    python -m projects.evidence.report

It writes the results between the marks of `docs/evidence/README.md`, and a plot of each
claim that has runs.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, sqrt
from pathlib import Path
from statistics import mean, variance

from mmattn.cli.terminal import run_main
from mmattn.images.draw import styled
from projects.evidence.claim import ROOT, Claim, Rows
from projects.evidence.claims import CLAIMS
from projects.evidence.rows import read_rows
from projects.evidence.verdicts import (
    LOOKS,
    NOT_RUN,
    UNDECIDED,
    VERDICTS,
    PairedTest,
    decide,
    difference_power,
    equivalence_power,
    paired_test,
    residual,
)
from tools.dev.markdown import markdown

FOLDER = ROOT / 'docs/evidence'
BEGIN, END = '<!-- written by projects/evidence/report.py -->\n', '<!-- end -->\n'
NOISE, SEEDS, MARGIN = 'noise', LOOKS[-1], 0.5  # of the power calculation
FREEDOM = (6 - 1) * (SEEDS - 1)  # of six networks
MEAN, SEED = '#b5312f', '#6f7f8f'
UNITS = {
    'accuracy': 'points',
    'accuracy@44': 'points',
    'coco/bbox_mAP': 'AP, at most 1',
    'coco/segm_mAP': 'AP, at most 1',
    'similarity': 'cosine',
    'head_variance': 'variance',
    'rank': 'effective rank',
    'reach': 'sides of the image',
    'growth': 'times the FLOPs',
}


@dataclass(frozen=True)
class Results:
    """Hold a claim and the rows of all runs."""

    name: str
    claim: Claim
    rows: Rows

    @property
    def image(self) -> str:
        return self.name.lower().replace(' ', '_') + '.png'

    def values(self, network: str, metric: str) -> dict[int, float]:
        """Return a metric by seed. A choice has the values of the chosen network."""
        network = self.claim.chosen(self.rows).get(network, network)
        if network not in self.claim.networks:  # a choice that is not made
            return {}
        return {
            seed: row.metrics[metric]
            for (key, seed), row in sorted(self.rows.items())
            if key == self.claim.networks[network].hash and metric in row.metrics
        }

    def tests(self) -> list[PairedTest]:
        """Return the test of each comparison, over the planned seeds that have run."""
        claim, found = self.claim, []
        for comparison in claim.comparisons:
            terms = [
                (sign, self.values(network, metric), metric)
                for sign, network, metric in comparison.terms(claim.metric)
            ]
            seeds = self.planned([values for _, values, _ in terms])
            differences = [
                sum(sign * values[seed] for sign, values, _ in terms) for seed in seeds
            ]
            spread = self.spread(terms[0][2], len(terms)) if claim.alike else None
            found.append(paired_test(differences, claim.margin, claim.exact, spread))
        return found

    def planned(self, columns: Sequence[Mapping[int, float]]) -> list[int]:
        """Return the seeds of the claim that all columns have.

        Seeds that were added after a look at the others would decide too often.
        """
        return [seed for seed in self.claim.seeds if all(seed in c for c in columns)]

    def spread(self, metric: str, terms: int) -> tuple[float, int] | None:
        """Return what all networks say of the deviation of a sum of `terms` runs.

        It is None if fewer than two networks, or two seeds, have run.
        """
        names = self.claim.choices or self.claim.networks
        columns = [self.values(name, metric) for name in names]
        columns = [column for column in columns if column]
        seeds = self.planned(columns)
        if min(len(columns), len(seeds)) < 2:
            return None
        deviation, freedom = residual([[c[seed] for seed in seeds] for c in columns])
        return sqrt(terms) * deviation, freedom

    def is_shown(self) -> bool:
        """Return whether a comparison has run, or without any, a network."""
        tests = self.tests()
        return any(test.seeds for test in tests) if tests else bool(self.metrics())

    def metrics(self) -> list[str]:
        """Return the metrics of the comparisons that a run has, the claim's first."""
        named = [self.claim.metric] + [
            metric
            for comparison in self.claim.comparisons
            for _, _, metric in comparison.terms(self.claim.metric)
        ]
        return [
            metric
            for metric in dict.fromkeys(named)
            if any(self.values(name, metric) for name in self.claim.networks)
        ]


def comparisons_table(all_results: Sequence[Results]) -> str:
    """Return a table of the comparisons that have run."""
    rows = [['claim', 'comparison', 'difference', 'unit', 'seeds', 'verdict']]
    for results in all_results:
        tests, name = results.tests(), results.name
        for each, test, verdict in zip(
            results.claim.comparisons, tests, decide(tests), strict=True
        ):
            if verdict != NOT_RUN:
                half = f'±{test.half:.2g}' if 0 < test.half < inf else ''
                number = f'{test.mean:+.3g}{half}'
                (_, _, metric), *_ = each.terms(results.claim.metric)
                seeds = f'{test.seeds}{", exact" * results.claim.exact}'
                unit = UNITS.get(metric, metric)
                rows.append([name, each.text, number, unit, seeds, verdict])
                name = ''
    return markdown(rows)


def counts(all_results: Sequence[Results]) -> str:
    """Say how many comparisons have each verdict."""
    verdicts = [verdict for each in all_results for verdict in decide(each.tests())]
    found = Counter(verdicts)
    listed = ', '.join(f'{name} {found[name]}' for name in VERDICTS if found[name])
    run = len(verdicts) - found[NOT_RUN]
    decided = run - found[UNDECIDED]
    return f'{decided} of {run} comparisons are decided ({listed}).\n'


def noise_table(results: Results) -> str:
    """Return the spread between seeds by length, and what it lets us decide.

    It is the deviation over all networks that saw as many images.
    """
    head = ['images', 'accuracy', 'networks', 'runs', 'deviation']
    head += [f'finds none ({MARGIN})', f'finds {MARGIN}', 'finds 1']
    rows, metric = [head], results.claim.metric
    for name, network in results.claim.networks.items():
        series = defaultdict(list)
        for (key, _), row in results.rows.items():
            if row.facts['images'] == network.images and metric in row.metrics:
                series[key].append(row.metrics[metric])
        series = [found for found in series.values() if len(found) > 1]
        if not series:
            continue
        runs = sum(map(len, series))
        squares = sum((len(found) - 1) * variance(found) for found in series)
        deviation = sqrt(squares / (runs - len(series)))
        spread = sqrt(2) * deviation  # of differences between two networks
        powers = [equivalence_power(spread, SEEDS, MARGIN, FREEDOM)]
        powers += [
            difference_power(spread, SEEDS, value, FREEDOM) for value in (MARGIN, 1.0)
        ]
        accuracy = mean(results.values(name, metric).values())
        cells = f'{network.images:,}', f'{accuracy:.2f}', len(series), runs
        cells += (f'{deviation:.2f}', *(f'{power:.0%}' for power in powers))
        rows.append([*map(str, cells)])
    return markdown(rows) if len(rows) > 1 else ''


def plots(all_results: Sequence[Results]) -> str:
    """Return the claims that have runs: sentence, source and plot."""
    return '\n'.join(
        f'**{each.name[0].upper()}{each.name[1:]}.** '
        f'{each.claim.statement} {each.claim.source}'.rstrip()
        + f'\n\n![]({each.image})\n'
        for each in all_results
        if each.is_shown()
    )


@styled
def draw(results: Results, out: Path) -> None:
    """Draw each metric: a dot for a seed, a line through the networks of a seed."""
    from matplotlib.figure import Figure

    claim, metrics = results.claim, results.metrics()
    names = list(claim.choices or claim.networks)
    size = len(metrics) * max(3, 1 + 0.45 * len(names)), 3.2
    figure = Figure(size)
    figure.suptitle(f'{results.name}: dots are seeds, bars their means')
    axes = figure.subplots(1, len(metrics), squeeze=False)
    for axis, metric in zip(axes.flat, metrics, strict=True):
        columns = [results.values(name, metric) for name in names]
        for seed in sorted({seed for values in columns for seed in values}):
            points = [(x, v[seed]) for x, v in enumerate(columns) if seed in v]
            axis.plot(*zip(*points, strict=True), 'o-', color=SEED, lw=0.6, alpha=0.6)
        for x, values in enumerate(columns):
            if values:
                axis.hlines(mean(values.values()), x - 0.3, x + 0.3, color=MEAN, lw=2)
        axis.set_xticks(range(len(names)), names, rotation=30, ha='right')
        unit = UNITS.get(metric, metric)
        axis.set(ylabel=f'{metric} ({unit})', xlim=(-0.5, len(names) - 0.5))
        axis.grid(axis='y', alpha=0.3)
    figure.savefig(out, dpi=80)


def page_text(page: str, claims: Mapping[str, Claim], rows: Rows) -> str:
    """Return the page with its written part replaced.

    Raises:
        ValueError: the page lacks one of the marks, or has one twice.
    """
    before, rest = page.split(BEGIN)
    _, after = rest.split(END)
    results = [Results(name, claim, rows) for name, claim in claims.items()]
    parts = [counts(results), comparisons_table(results)]
    parts += [noise_table(each) for each in results if each.name == NOISE]
    parts += [plots(results)]
    return before + BEGIN + '\n' + '\n'.join(filter(None, parts)) + '\n' + END + after


def main() -> None:
    rows, path = read_rows(FOLDER / 'runs.csv'), FOLDER / 'README.md'
    path.write_text(page_text(path.read_text(), CLAIMS, rows))
    for name, claim in CLAIMS.items():
        results = Results(name, claim, rows)
        if results.is_shown():
            draw(results, FOLDER / results.image)


if __name__ == '__main__':
    run_main(main)

"""Evaluate the runs of the claims: tables, pictures and verdicts.

    python -m tools.evidence.report
    python -m tools.evidence.report locality_masks

Without a claim, it writes the summary between the marks of `docs/evidence/README.md`,
and a page and a picture of each claim. With one, it prints that claim's page. `--check`
writes nothing and fails if a page is not up to date.
"""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median, stdev

from mmattn.errors import UserError
from tools.dev.readme_tables import markdown
from tools.evidence.claim import Claim, Comparison, claim_names, load_claim
from tools.evidence.paired_tests import (
    FEWEST,
    VERDICTS,
    Decision,
    combined,
    decide,
    prediction_interval,
)
from tools.evidence.run import TABLES, stale_runs
from tools.evidence.run_rows import DamagedTable, Run, read_runs

PAGE = 'README.md'
CLAIM_PAGES = 'claims'  # folder beside the summary
BEGIN, END = '<!-- written by tools/evidence/report.py -->\n', '<!-- end -->\n'
LINEAR = 'fashion_mnist_linear.json'
DASH = '-'


@dataclass(frozen=True)
class Results:
    """Hold a claim and those of its runs that its configs still describe.

    Attributes:
        runs: by variant and seed.
        stale: number of the other runs.
    """

    name: str
    claim: Claim
    runs: Mapping[tuple[str, int], Run]
    stale: int

    def values(self, variant: str, metric: str) -> dict[int, float]:
        """Return a metric by seed."""
        return {
            seed: run.metrics[metric]
            for (name, seed), run in sorted(self.runs.items())
            if name == variant and metric in run.metrics
        }

    def differences(self, comparison: Comparison) -> dict[int, float]:
        """Return the difference by seed, for seeds that all variants have."""
        terms = [
            (sign, self.values(variant, metric))
            for sign, variant, metric in comparison.terms(self.claim.metric)
        ]
        seeds = set.intersection(*(set(values) for _, values in terms))
        return {
            seed: sum(sign * values[seed] for sign, values in terms)
            for seed in sorted(seeds)
        }

    def decisions(self) -> list[Decision]:
        return [
            decide(list(self.differences(each).values()), each.smallest, each.allowed)
            for each in self.claim.comparisons
        ]

    @property
    def metrics(self) -> list[str]:
        """Return the metrics that the comparisons name, the claim's first."""
        terms = [
            term
            for each in self.claim.comparisons
            for term in each.terms(self.claim.metric)
        ]
        return list(dict.fromkeys([self.claim.metric, *(term[2] for term in terms)]))


def load_results(name: str, tables: Path = TABLES) -> Results:
    """Return the results of a claim.

    Raises:
        DamagedTable, ValueError: the csv file or the claim cannot be read.
    """
    claim = load_claim(name)
    runs = read_runs(tables / f'{name}.csv')
    stale = stale_runs(claim, runs)
    kept = {run.key[:2]: run for run in runs if run not in stale}
    return Results(name, claim, kept, len(stale))


def number(value: float) -> str:
    """Format with four digits, and small numbers with three."""
    return f'{value:.4g}' if abs(value) >= 1 else f'{value:.3g}'


def spread(values: list[float]) -> str:
    """Return mean and standard deviation."""
    if not values:
        return DASH
    if len(values) == 1:
        return number(values[0])
    return f'{number(mean(values))} ± {stdev(values):.2g}'


def interval(found: tuple[float, float] | None) -> str:
    return DASH if found is None else f'{found[0]:+.3g} to {found[1]:+.3g}'


def variants_table(results: Results) -> str:
    """Return a table of sizes, metrics and times."""
    head = ['network', 'parameters', 'MFLOPs', 'seeds', *results.metrics]
    rows = [[*head, 's per iteration']]
    for name in results.claim.variants:
        runs = [run for key, run in results.runs.items() if key[0] == name]
        sizes = [DASH, DASH]
        if runs:
            facts = runs[0].facts
            sizes = [f'{facts["parameters"]:,}', f'{facts["flops"] / 1e6:.1f}']
        metrics = [
            spread(list(results.values(name, metric).values()))
            for metric in results.metrics
        ]
        times = [run.facts['seconds_per_iteration'] for run in runs]
        time = f'{median(times):.2f}' if times else DASH
        rows.append([f'`{name}`', *sizes, str(len(runs)), *metrics, time])
    return markdown(rows)


def comparisons_table(results: Results) -> str:
    """Return a table of paired differences, intervals and verdicts."""
    rows = [['comparison', 'difference', 'seeds', 'bootstrap', 'Student', 'verdict']]
    for each, found in zip(results.claim.comparisons, results.decisions(), strict=True):
        difference = f'{found.mean:+.3g}' if found.seeds else DASH
        intervals = interval(found.bootstrap), interval(found.student)
        rows.append(
            [each.text, difference, str(found.seeds), *intervals, found.verdict]
        )
    return markdown(rows)


def provenance(results: Results) -> str:
    """Say where, when and from which commits the runs come."""
    if not results.runs:
        return 'Nothing has been run yet.\n'
    facts = [run.facts for run in results.runs.values()]

    def listed(column: str) -> str:
        return ', '.join(dict.fromkeys(str(each[column]) for each in facts))

    text = (
        f'Measured on {listed("machine")}, torch {listed("torch")}, commits '
        f'{listed("commit")}, {listed("date")}.'
    )
    if results.stale:
        text += f' {results.stale} rows of earlier configs are not used.'
    return text + '\n'


def claim_page(results: Results, tables: Path) -> str:
    """Return the page about a claim."""
    claim, name = results.claim, results.name
    lines = [f'# {title(name)}', '', claim.statement]
    lines += ['', f'Source: {claim.source}.', '', f'    {command(name)}', '']
    lines += [variants_table(results)]
    if claim.comparisons:
        lines += [comparisons_table(results)]
        lines += [f'Verdict: **{combined([d.verdict for d in results.decisions()])}**.']
        lines += ['']
    if (tables / f'{name}.png').is_file():
        lines += [f'![Every seed of {name}](../{name}.png)', '']
    lines += [claim.notes, ''] if claim.notes else []
    lines += [provenance(results)]
    return '\n'.join(lines)


def title(name: str) -> str:
    return name.replace('_', ' ').capitalize()


def command(name: str) -> str:
    return f'python -m tools.evidence.run {name}'


def summary(all_results: list[Results]) -> str:
    """Return the table of all claims, with the number of comparisons by verdict."""
    verdicts = {
        results.name: [decision.verdict for decision in results.decisions()]
        for results in all_results
    }
    met = [each for each in VERDICTS if any(each in v for v in verdicts.values())]
    rows = [['claim', 'statement', *met, 'verdict']]
    for results in all_results:
        found = verdicts[results.name]
        link = f'[{title(results.name)}]({CLAIM_PAGES}/{results.name}.md)'
        numbers = [str(found.count(each)) if found else DASH for each in met]
        verdict = f'**{combined(found)}**' if found else 'a baseline'
        rows.append([link, results.claim.statement, *numbers, verdict])
    return markdown(rows)


def counts(all_results: list[Results]) -> str:
    """Say how many comparisons have each verdict."""
    found = Counter(
        decision.verdict for results in all_results for decision in results.decisions()
    )
    listed = ', '.join(
        f'{verdict} ({found[verdict]})' for verdict in VERDICTS if found[verdict]
    )
    return f'Verdicts of the comparisons: {listed}.\n'


def fresh_seeds(all_results: list[Results]) -> str:
    """Say how many runs with further seeds agree with those of the claims' own."""
    inside, outside, seen = 0, [], set()
    for results in all_results:
        own = set(results.claim.seeds)
        for name, variant in results.claim.variants.items():
            values = results.values(name, results.claim.metric)
            first = [value for seed, value in values.items() if seed in own]
            if len(first) < FEWEST:
                continue
            low, high = prediction_interval(first)
            for seed in sorted(values.keys() - own):
                # Claims may share a network.
                if (variant.training_hash, seed) in seen:
                    continue
                seen.add((variant.training_hash, seed))
                if low <= values[seed] <= high:
                    inside += 1
                else:
                    outside.append(f'`{results.name}` `{name}` seed {seed}')
    if not inside and not outside:
        return ''
    text = (
        f'{inside} of {inside + len(outside)} runs with further seeds lie inside the '
        "95 percent interval for one more run that follows from the claim's own seeds."
    )
    if outside:
        text += f' Outside: {", ".join(outside)}.'
    return text + '\n'


def page_text(page: str, all_results: list[Results], tables: Path) -> str:
    """Return the summary's page with its written part replaced.

    Raises:
        ValueError: the page lacks the marks.
    """
    if page.count(BEGIN) != 1 or page.count(END) != 1:
        raise UserError(f'{PAGE} must have the lines {BEGIN!r} and {END!r} once')
    before, _, rest = page.partition(BEGIN)
    after = rest.partition(END)[2]
    parts = [counts(all_results), summary(all_results), linear_line(tables)]
    parts += [fresh_seeds(all_results)]
    return before + BEGIN + '\n' + '\n'.join(parts) + '\n' + END + after


def linear_line(tables: Path) -> str:
    """Say what a linear classifier of the pixels reaches, if that was measured."""
    path = tables / LINEAR
    if not path.is_file():
        return ''
    found = json.loads(path.read_text())
    return (
        'A linear classifier of the pixels, fitted by least squares to all 55,000 '
        f'training images, has an accuracy of {found["metrics"]["accuracy/top1"]} on '
        f'Fashion-MNIST (`{found["config"]}`).\n'
    )


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('claim', nargs='?', help='print the part of this claim')
    parser.add_argument('--check', action='store_true', help='write nothing')
    parser.add_argument(
        '--tables', type=Path, default=TABLES, help='folder of page and csv files'
    )
    return parser.parse_args(argv)


def write_all(tables: Path, check: bool) -> bool:
    """Write pages and pictures; return whether all pages were up to date."""
    all_results = [load_results(name, tables) for name in claim_names()]
    if not check:
        from tools.evidence.draw_runs import draw

        for results in all_results:
            if results.runs:
                draw(results, tables / f'{results.name}.png')
    summary_page, folder = tables / PAGE, tables / CLAIM_PAGES
    old = {path: path.read_text() for path in [summary_page, *folder.glob('*.md')]}
    new = {summary_page: page_text(old[summary_page], all_results, tables)}
    for results in all_results:
        new[folder / f'{results.name}.md'] = claim_page(results, tables)
    if not check:
        folder.mkdir(exist_ok=True)
        for path, text in new.items():
            path.write_text(text)
        for path in old.keys() - new.keys():  # of claims that are gone
            path.unlink()
    return new == old


def main(argv: list[str] | None = None) -> None:
    args = parse_args(argv)
    try:
        if args.claim is not None:
            print(claim_page(load_results(args.claim, args.tables), args.tables))
        elif not write_all(args.tables, args.check) and args.check:
            sys.exit(f'report: {args.tables} is not up to date; run report.py')
    except (DamagedTable, ValueError) as error:
        sys.exit(f'report: {error}')


if __name__ == '__main__':
    main()

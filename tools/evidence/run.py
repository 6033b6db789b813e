"""Train the networks of a claim, one run for each variant and seed.

    python -m tools.evidence.run locality_masks --seeds 0 1 2 --jobs 2

A finished run leaves a row in `docs/evidence/CLAIM.csv` and its training loss in
`CLAIM_curves.csv`. Runs that have a row are skipped, and one that was killed resumes
from its checkpoint, so a series is continued by the same command. All variants are run
with one seed before the next seed begins. `report.py` evaluates the rows.
"""

import argparse
import copy
import json
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from statistics import median

from mmattn.errors import UserError
from tools.evidence.claim import ROOT, Claim, Variant, claim_names, load_claim
from tools.evidence.run_rows import (
    DamagedTable,
    Run,
    add_curve,
    add_run,
    locked,
    read_runs,
)

TABLES = ROOT / 'docs' / 'evidence'
WORK_DIRS = ROOT / 'work_dirs' / 'evidence'
NO_METRICS = ('time', 'data_time', 'step')
TAIL = 2000  # characters of a log that an error shows


class FailedRun(UserError):
    """A training or a measurement that ended with an error."""


@dataclass
class Series:
    """Hold what the runs of one call share.

    Attributes:
        claim, name: the claim and the name of its file.
        tables: folder of the csv files.
        work_dirs: folder of the trainings, by configuration and seed. Claims that train
            the same network share it.
        prefix: command before each training.
        about: columns that are equal for all runs.
        sizes: parameters and FLOPs of each variant.
        deadline: time after which no run begins.
        environment: variables of the trainings.
    """

    claim: Claim
    name: str
    tables: Path
    work_dirs: Path
    prefix: list[str]
    about: dict
    sizes: dict[str, dict[str, int]]
    deadline: float
    environment: dict
    processes: set = field(default_factory=set)
    stopped: threading.Event = field(default_factory=threading.Event)

    @property
    def table(self) -> Path:
        return self.tables / f'{self.name}.csv'

    def start(self, command: list[str], log: Path) -> None:
        """Run a command to its end.

        Raises:
            FailedRun: the command failed, or the series was stopped.
        """
        if self.stopped.is_set():
            raise FailedRun('stopped')
        with log.open('a') as file:
            process = subprocess.Popen(
                [*self.prefix, sys.executable, *command],
                cwd=ROOT,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=self.environment,
            )
            self.processes.add(process)
            code = process.wait()
            self.processes.discard(process)
        if code:
            tail = log.read_text(errors='replace')[-TAIL:]
            raise FailedRun(f'{shlex.join(command)} ended with {code}:\n{tail}')

    def stop(self) -> None:
        """Let the trainings save a checkpoint and end, and begin no other."""
        self.stopped.set()
        for process in list(self.processes):
            process.terminate()


def read_logs(work_dir: Path) -> list[dict]:
    """Return the records of a training and of its resumptions, in time order.

    A killed run may have left half a line, which is left out.
    """
    records = []
    for scalars in sorted(work_dir.glob('*/vis_data/scalars.json')):
        lines = scalars.read_text().splitlines(keepends=True)
        records += [json.loads(line) for line in lines if line.endswith('\n')]
    return records


def final_metrics(records: list[dict], iterations: int) -> dict[str, float] | None:
    """Return the metrics of the validation after the last iteration, else None."""
    for record in reversed(records):
        if 'loss' not in record and record.get('step') == iterations:
            return {k: v for k, v in record.items() if k not in NO_METRICS}
    return None


def training_losses(records: list[dict]) -> list[tuple[int, float]]:
    """Return (iteration, loss) in ascending order; repeated iterations count once."""
    return sorted({r['step']: r['loss'] for r in records if 'loss' in r}.items())


def train(series: Series, variant: Variant, work_dir: Path, seed: int) -> list[dict]:
    """Train a variant, or what a killed run left of it, and return its records."""
    config = copy.deepcopy(variant.resolved)
    config.randomness = dict(config.get('randomness') or {}, seed=seed)
    path = work_dir / 'config.py'
    config.dump(path)
    command = ['tools/train.py', str(path), '--work-dir', str(work_dir)]
    if (work_dir / 'last_checkpoint').is_file():
        command.append('--resume')
    if final_metrics(read_logs(work_dir), variant.iterations) is None:
        series.start(command, work_dir / 'train.log')
    records = read_logs(work_dir)
    if final_metrics(records, variant.iterations) is None:
        raise FailedRun(
            f'{work_dir}: the training ended without metrics of iteration '
            f'{variant.iterations}; its config must validate then, and if it counts '
            'iterations, set default_hooks.logger.log_metric_by_epoch=False'
        )
    return records


def further_metrics(
    series: Series, variant: Variant, work_dir: Path
) -> dict[str, float]:
    """Test a trained network under other settings, and measure it."""
    checkpoint = (work_dir / 'last_checkpoint').read_text().strip()
    found = {}
    for name, options in variant.tests.items():
        config, out = work_dir / f'test_{name}.py', work_dir / f'test_{name}.json'
        changed = copy.deepcopy(variant.resolved)
        changed.merge_from_dict(dict(options))
        changed.dump(config)
        command = ['tools/test.py', str(config), checkpoint, '--out', str(out)]
        command += ['--out-item', 'metrics', '--work-dir', str(work_dir / 'tests')]
        series.start(command, work_dir / 'test.log')
        metrics = json.loads(out.read_text())
        found |= {f'{name}:{key}': value for key, value in metrics.items()}
    for name in series.claim.measurements:
        out = work_dir / f'{name}.json'
        command = ['-m', 'tools.evidence.measurements']
        command += [str(work_dir / 'config.py'), name]
        command += ['--checkpoint', checkpoint, '--out', str(out)]
        series.start(command, work_dir / 'test.log')
        found |= json.loads(out.read_text())
    return found


def execute(series: Series, name: str, seed: int) -> Run | None:
    """Do one run and write its row; None if the time is over."""
    if series.stopped.is_set() or time.monotonic() > series.deadline:
        return None
    variant = series.claim.variants[name]
    work_dir = series.work_dirs / f'{variant.training_hash}_seed{seed}'
    try:
        with locked(work_dir / 'config.py'):
            records = train(series, variant, work_dir, seed)
            metrics = final_metrics(records, variant.iterations)
            metrics |= further_metrics(series, variant, work_dir)
    except FailedRun:
        series.stop()  # before a thread begins the next run
        raise
    # The first iterations warm up caches.
    times = [r['time'] for r in records if 'loss' in r and 'time' in r][1:]
    facts = dict(
        variant=name,
        seed=seed,
        config_hash=series.claim.config_hash(name),
        iterations=variant.iterations,
        seconds_per_iteration=round(median(times), 4) if times else float('nan'),
    )
    facts |= series.about | series.sizes[name]
    run = Run(facts, {key: round(value, 6) for key, value in metrics.items()})
    curves = series.table.with_stem(f'{series.name}_curves')
    add_curve(curves, run, training_losses(records))
    add_run(series.table, run)
    return run


def sizes(claim: Claim, name: str) -> dict[str, int]:
    """Return the parameters and FLOPs of a variant."""
    import mmattn  # noqa: F401  makes mmcv's operators available
    from mmattn.analysis.flops import count

    counted = count(claim.variants[name].resolved, claim.image_shape)
    return dict(parameters=counted.params, flops=counted.flops)


def check_sizes(claim: Claim, counts: dict[str, dict[str, int]]) -> None:
    """Raise a `ValueError` if variants that must be alike differ in parameters."""
    for group in claim.alike:
        parameters = {name: counts[name]['parameters'] for name in group}
        least, most = min(parameters.values()), max(parameters.values())
        if most > (1 + claim.tolerance) * least:
            raise UserError(
                f'parameters must be within {claim.tolerance:.0%} of each other, got '
                f'{parameters}'
            )


def pending_runs(
    claim: Claim, runs: list[Run], seeds: list[int], variants: list[str]
) -> list[tuple[str, int]]:
    """Return variant and seed of the runs without a row, all of a seed together."""
    done = {run.key for run in runs}
    return [
        (name, seed)
        for seed in seeds
        for name in variants
        if (name, seed, claim.config_hash(name)) not in done
    ]


def stale_runs(claim: Claim, runs: list[Run]) -> list[Run]:
    """Return the runs whose variant has another config by now, or is gone."""
    hashes = {name: claim.config_hash(name) for name in claim.variants}
    return [run for run in runs if hashes.get(run.key[0]) != run.key[2]]


def about_runs(threads: int, jobs: int) -> dict:
    """Return the columns that say where and from which commit runs come."""
    import torch

    from tools.benchmark.measure import commit, machine

    where = machine('cuda' if torch.cuda.is_available() else 'cpu')
    where += f'; {jobs} at a time, {threads} thread{"s"[: threads > 1]} each'
    return dict(
        commit=commit(),
        machine=where,
        torch=torch.__version__,
        date=date.today().isoformat(),
    )


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('claim', help=f'one of {", ".join(claim_names())}')
    parser.add_argument('--seeds', nargs='+', type=int, help="default: the claim's")
    parser.add_argument(
        '--variants', nargs='+', help='run only these; default: all of the claim'
    )
    parser.add_argument(
        '--budget', type=float, help='minutes after which no further run begins'
    )
    parser.add_argument(
        '--jobs', type=int, default=1, help='runs at a time, default %(default)s'
    )
    parser.add_argument(
        '--prefix',
        type=shlex.split,
        default=[],
        help="command before each training, such as 'nice -n 19' or 'srun -c 2'",
    )
    parser.add_argument(
        '--tables', type=Path, default=TABLES, help='folder of the csv files'
    )
    parser.add_argument(
        '--work-dirs', type=Path, default=WORK_DIRS, help='folder of the trainings'
    )
    args = parser.parse_args(argv)
    if args.jobs < 1:
        parser.error(f'--jobs must be positive, got {args.jobs}')
    return args


def chosen_variants(claim: Claim, names: list[str] | None) -> list[str]:
    unknown = sorted(set(names or ()) - set(claim.variants))
    if unknown:
        raise UserError(
            f'--variants must be among {list(claim.variants)}, got {unknown}'
        )
    return [name for name in claim.variants if names is None or name in names]


def prepare(args: argparse.Namespace) -> tuple[Series, list[tuple[str, int]]]:
    """Return the series and its runs that are to be done."""
    claim = load_claim(args.claim)
    counts = {name: sizes(claim, name) for name in claim.variants}
    check_sizes(claim, counts)
    variants = chosen_variants(claim, args.variants)
    threads = int(os.environ.get('OMP_NUM_THREADS', 0))
    threads = threads or max(1, (os.cpu_count() or 1) // args.jobs)
    paths = [str(ROOT), *filter(None, [os.environ.get('PYTHONPATH')])]
    minutes = float('inf') if args.budget is None else args.budget
    series = Series(
        claim=claim,
        name=args.claim,
        tables=args.tables,
        work_dirs=args.work_dirs.resolve(),
        prefix=args.prefix,
        about=about_runs(threads, args.jobs),
        sizes=counts,
        deadline=time.monotonic() + 60 * minutes,
        environment=os.environ
        | {'OMP_NUM_THREADS': str(threads), 'PYTHONPATH': os.pathsep.join(paths)},
    )
    runs = read_runs(series.table)
    for run in stale_runs(claim, runs):
        print(f'stale: {run.key} has another config than the claim', flush=True)
    seeds = list(claim.seeds) if args.seeds is None else args.seeds
    return series, pending_runs(claim, runs, seeds, variants)


def run_all(series: Series, pending: list[tuple[str, int]], jobs: int) -> int:
    """Do the runs, and return how many of them were done."""
    done, start = 0, time.monotonic()
    with ThreadPoolExecutor(jobs) as pool:
        futures = [pool.submit(execute, series, *each) for each in pending]
        try:
            for future in as_completed(futures):
                run = future.result()
                if run is None:
                    continue
                done += 1
                minutes = (time.monotonic() - start) / 60
                print(
                    f'{done}/{len(pending)} after {minutes:.1f} min: {run.key[0]}, '
                    f'seed {run.key[1]}: {dict(run.metrics)}',
                    flush=True,
                )
        except BaseException:
            series.stop()
            raise
    return done


def main(argv: list[str] | None = None) -> None:
    args = parse_args(argv)
    # As Ctrl-C: let the trainings save what they have.
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        series, pending = prepare(args)
        done = run_all(series, pending, args.jobs)
    except (DamagedTable, FailedRun, ValueError) as error:
        sys.exit(f'run: {error}')
    except KeyboardInterrupt:
        sys.exit('run: interrupted; the same command continues')
    finally:
        signal.signal(signal.SIGTERM, before)
    left = len(pending) - done
    print(f'{done} runs done, {left} left of {args.claim}')


if __name__ == '__main__':
    main()

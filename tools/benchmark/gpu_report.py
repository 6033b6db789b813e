"""Check and time everything on a GPU, and write one report.

    python -m tools.benchmark.gpu_report
    python -m tools.benchmark.gpu_report --minutes 20 --out reports/h200

Requires PyTorch with CUDA, Triton, timm, rich and this checkout. Packages of OpenMMLab
are optional. Each part runs commands of the other benchmarks within its share of the
time, and `report.md` is written anew after each command, from the csv files of all, so
an interrupted run leaves what was done. A command that fails is listed with the end of
its output, and the others go on. The verdict and the exit status are `right` (0),
`wrong` (1) if a result was, or `undecided` (2) if not all was compared.

`--dry-run` runs small shapes on a CPU under Triton's interpreter.
"""

import itertools
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch

from mmattn.cli.terminal import command_parser, run_main
from tools.benchmark.measure import ROOT, read_csv
from tools.benchmark.real_shapes import OPERATORS
from tools.dev.markdown import markdown

MAX_ROWS, MAX_OUTPUT = 400, 3000  # of a table and of a failure in report.md
VERDICTS = {'right': 0, 'wrong': 1, 'undecided': 2}  # and the exit status
DETERMINISTIC = {'CUBLAS_WORKSPACE_CONFIG': ':4096:8'}  # matrix products of cuBLAS
INTERPRETED = dict(
    TRITON_INTERPRET='1', MMATTN_BACKEND='triton', CUDA_VISIBLE_DEVICES=''
)
DETECTION = '200x334'  # patches of 4 x 4 pixels of an image of 800 x 1333
# Sides and batches of operators; the papers' come first.
SPEED = {
    'masked_attention': (f'56 {DETECTION}', '32 1'),
    'neighborhood_attention': (f'56 {DETECTION}', '32 1'),
    'landmark_attention': (f'14 50x84 {DETECTION}', '128 2 1'),
    'structure_aware_attention': (f'14 28 56 {DETECTION}', '32 32 32 1'),
    'deformable_attention': (f'56 50x84 {DETECTION}', '128 1 1'),
    'ms_deform_attn': (f'100x167 {DETECTION}', '1 1'),
    'ms_deform_attn_decoder': ('100x167', '4'),
}
SIZES = {'224': '224 --batch 64', '800x1333': '800 1333 --batch 2'}


@dataclass(frozen=True)
class Part:
    """A part of the report.

    Args:
        share: its weight when the time is divided among the parts.
        commands: arguments of `python -m`, by the name of the csv file.
        small: the options of a dry run, in place of those after the dash; None to
            leave the part out.
        compares: whether it compares results. Its commands may then run side by side,
            and make the report fail where they fail.
    """

    share: int
    commands: dict[str, str]
    small: str | None = None
    compares: bool = False


# By what is learned in a minute: whether kernels are right and fast, then the rest.
PARTS = {
    'device': Part(3, {'device': 'mmattn env'}, ''),
    'first': Part(
        8,
        {
            f'{name}_first_check': f'tools.benchmark.check {name} --quick'
            for name in OPERATORS
        },
        '--device cpu --quick',
        compares=True,
    ),
    'rates': Part(4, {'rates': 'tools.benchmark.graphs'}),
    'speed': Part(
        25,
        {
            f'{name}_gpu': f'tools.benchmark.op {name} - --device cuda --dtype '
            f'bfloat16 --rounds 3 --seconds 0.02 --sides {sides} --batch {batches}'
            for name, (sides, batches) in SPEED.items()
        },
        '--quick --sides 4',
    ),
    'models': Part(
        20,
        {
            f'models_{name}{suffix}_gpu': 'tools.benchmark.model - --preset gpu '
            f'--device cuda --rounds 3 --seconds 0.2 {option} --size {size}'
            for name, size in SIZES.items()
            for suffix, option in (('', ''), ('_compiled', '--compile'))
        },
        '--quick --models mmattn_pvt_v2_b0 resnet18',
    ),
    'detector': Part(
        8,
        {
            'train_step_gpu': 'tools.benchmark.train_step - --device cuda --rounds 3 '
            '--size 800 1333 --batch 2'
        },
        '--quick',
    ),
    'compile': Part(20, {'compile': 'tools.benchmark.check --compile'}),
    'correctness': Part(
        28,
        {f'{name}_check': f'tools.benchmark.check {name}' for name in OPERATORS},
        '--device cpu --quick',
        compares=True,
    ),
    'tiles': Part(
        14,
        {f'{name}_tiles': f'tools.benchmark.tiles {name}' for name in OPERATORS},
        '--device cpu --quick',
    ),
}


@dataclass
class Outcome:
    """How a command of a part ended; `failure` is empty if it did well."""

    part: str
    name: str
    failure: str = ''
    output: str = ''
    is_stopped: bool = False

    @property
    def is_wrong(self) -> bool:
        if not self.failure or self.is_stopped:
            return False  # a slow command is no wrong one
        return PARTS[self.part].compares or 'AssertionError' in self.output

    @property
    def undecided(self) -> str:
        """Return what was not compared, or an empty string."""
        if not PARTS[self.part].compares:
            return ''
        ended = re.findall(r'^compared (\d+) of (\d+)$', self.output, re.M)
        if ended and ended[-1][0] == ended[-1][1] and not self.is_stopped:
            return ''
        if ended:
            return f'compared {ended[-1][0]} of {ended[-1][1]}'
        started = re.findall(r'^(\d+) of (\d+): (.*)$', self.output, re.M)
        if not started:
            return 'compared nothing'
        number, total, call = started[-1]
        return f'compared {int(number) - 1} of {total}, in progress: {call}'


def run_command(part: str, name: str, seconds: float, args) -> Outcome:
    """Run a command of a part, and stop it after some seconds."""
    words, _, options = PARTS[part].commands[name].partition(' - ')
    environment = DETERMINISTIC | os.environ
    if args.dry_run:
        options, environment = PARTS[part].small, environment | INTERPRETED
    command = [sys.executable, '-m', *words.split(), *options.split()]
    if part != 'device':
        command += ['--csv', str(args.out / f'{name}.csv')]
    outcome, start = Outcome(part, name), time.monotonic()
    with (args.out / f'{name}.log').open('w+') as log:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            status = process.wait(max(1.0, seconds))
            outcome.failure = f'ended with status {status}' if status else ''
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # with those that it started
            process.wait()
            outcome.failure = f'stopped after {seconds:.0f} s, its share of the time'
            outcome.is_stopped = True
        log.seek(0)
        outcome.output = log.read()[-MAX_OUTPUT:]
    ended = outcome.failure or outcome.undecided or 'done'
    print(f'  {name}: {ended}, {time.monotonic() - start:.0f} s', flush=True)
    return outcome


def run_part(part: str, until: float, args) -> Iterator[Outcome]:
    """Run the commands of a part, each in an equal share of the time."""
    names = [
        name
        for name in PARTS[part].commands
        if not args.tasks or any(name.startswith(task) for task in args.tasks)
    ]
    at_once = max(1, min(8, os.cpu_count() // 2)) if PARTS[part].compares else 1
    print(f'{part}: at most {until - time.monotonic():.0f} s', flush=True)

    def run(index: int) -> Outcome:
        rounds = -(-(len(names) - index) // at_once)
        seconds = (until - time.monotonic()) / rounds
        return run_command(part, names[index], seconds, args)

    with ThreadPoolExecutor(at_once) as pool:
        yield from pool.map(run, range(len(names)))


def wrong_results(outcomes: list[Outcome], out: Path) -> list[str]:
    """Return what makes the report fail: wrong results, and checks that failed."""
    wrong = [f'{o.name}: {o.failure}' for o in outcomes if o.is_wrong]
    for path in sorted(out.glob('*_check.csv')):
        for row in read_csv(path):
            if row.get('passed') == 'False':
                wrong.append(', '.join(f'{k} {row[k]}' for k in shown(row) if row[k]))
    return wrong


def shown(row: dict) -> list[str]:
    """Return the columns before those about the run."""
    return list(itertools.takewhile(lambda column: column != 'machine', row))


def as_table(rows: list[dict]) -> str:
    columns = shown(rows[0])
    cells = [[(row.get(c) or '').replace('|', '/') for c in columns] for row in rows]
    return markdown([columns, *cells])


def report(outcomes: list[Outcome], args) -> tuple[str, list[str]]:
    """Write report.md, and return the verdict and what was wrong or undecided."""
    wrong = wrong_results(outcomes, args.out)
    undecided = [f'{o.name}: {o.undecided}' for o in outcomes if o.undecided]
    reasons = dict(wrong=wrong, undecided=undecided)
    failed = [outcome for outcome in outcomes if outcome.failure]
    kind = 'dry run' if args.dry_run else f'at most {args.minutes:g} minutes'
    lines = ['# GPU report', '', f'{time.strftime("%Y-%m-%d %H:%M")}, {kind}', '']
    compared = any(PARTS[o.part].compares for o in outcomes)
    verdict = 'undecided' if undecided or not compared else 'right'
    verdict = 'wrong' if wrong else verdict
    lines += [f'**Verdict: {verdict}**', '', f'- wrong results: {len(wrong)}']
    lines += [f'- **{kind}**: {x}' for kind, found in reasons.items() for x in found]
    lines += [f'- {o.name}: {o.failure}' for o in failed]
    for outcome in outcomes:
        path = args.out / f'{outcome.name}.csv'
        lines += ['', f'## {outcome.name}', '']
        if path.is_file():
            lines.append(as_table(read_csv(path)[:MAX_ROWS]))
        if outcome.output and (outcome.failure or outcome.part in ('device', 'tiles')):
            lines += ['', '```', outcome.output.strip(), '```']
    (args.out / 'report.md').write_text('\n'.join(lines) + '\n')
    return verdict, [f'{kind}: {x}' for kind, found in reasons.items() for x in found]


def main(argv: list[str] | None = None) -> int:
    parser = command_parser(__doc__)
    parser.add_argument('--minutes', type=float, default=8.0)
    parser.add_argument('--out', type=Path, default=Path('gpu_report'), metavar='DIR')
    parser.add_argument(
        '--parts', nargs='+', choices=PARTS, default=list(PARTS), metavar='PART',
        help=f'of {", ".join(PARTS)}; default: all',
    )  # fmt: skip
    parser.add_argument('--tasks', nargs='+', help='names of operators; default: all')
    parser.add_argument('--dry-run', action='store_true')
    args = parser.parse_args(argv)
    if args.minutes <= 0:
        parser.error(f'--minutes must be positive, got {args.minutes}')
    if not args.dry_run and not torch.cuda.is_available():
        parser.error('PyTorch sees no CUDA device; --dry-run needs none')
    args.out = args.out.resolve()
    parts = [x for x in args.parts if not args.dry_run or PARTS[x].small is not None]
    args.out.mkdir(parents=True, exist_ok=True)
    for path in [*args.out.glob('*.csv'), *args.out.glob('*.log')]:
        path.unlink()
    end, outcomes = time.monotonic() + 60 * args.minutes, []
    verdict, reasons = report(outcomes, args)
    for i, part in enumerate(parts):
        now, shares = time.monotonic(), [PARTS[x].share for x in parts[i:]]
        until = now + max(0.0, end - now) * shares[0] / sum(shares)
        for outcome in run_part(part, until, args):
            outcomes.append(outcome)
            verdict, reasons = report(outcomes, args)
    print(f'wrote {args.out / "report.md"}')
    for reason in reasons:
        print(reason, file=sys.stderr)
    print(f'verdict: {verdict}')
    return VERDICTS[verdict]


if __name__ == '__main__':
    run_main(main)

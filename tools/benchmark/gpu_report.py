"""Check and time everything on a GPU, and write one report.

    python -m tools.benchmark.gpu_report
    python -m tools.benchmark.gpu_report --minutes 20 --out reports/h200

Requires PyTorch with CUDA, Triton, timm and this checkout. Packages of OpenMMLab are
optional. Each part runs in processes of its own within its share of the time, and
`report.md`, `report.json` and the csv files are written anew after each task, so an
interrupted run leaves what was done. A case that fails is listed with its traceback,
and the others go on. The exit status is 1 if a result was wrong.

`python -m tools.benchmark.plot OUT/report.json` draws the tables. `--dry-run` runs
small shapes on a CPU under Triton's interpreter.
"""

import argparse
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

COMMAND = sys.executable, '-m', 'tools.benchmark.gpu_report'

GRACE = 30.0  # seconds that a case may go on after its part's time
MAX_STARTS = 6  # processes of one task
POLL = 0.2


@dataclass
class Task:
    """Run one task of a part in a process, and again after a crash."""

    part: str
    name: str
    args: argparse.Namespace
    until: float = 0.0
    starts: int = 0
    process: subprocess.Popen | None = None
    begun: float = field(default_factory=time.time)

    @property
    def lines(self) -> Path:
        return self.args.out / 'lines' / f'{self.part}-{self.name}.jsonl'

    @property
    def output(self) -> Path:
        return self.lines.with_suffix('.log')

    def start(self, until: float, skip: int = 0):
        self.until, self.starts = until, self.starts + 1
        command = [*COMMAND, '--out', self.args.out]
        command += ['--task', self.part, self.name]
        command += ['--until', until, '--skip', skip]
        if self.args.dry_run:
            command.append('--dry-run')
        with self.output.open('a') as file:
            self.process = subprocess.Popen(
                [str(word) for word in command],
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def is_over(self) -> bool:
        """Return whether the task is done; stop or repeat its process if need be."""
        status = self.process.poll()
        if status is None:
            if time.time() < self.until + GRACE:
                return False
            self.kill()
            self.write_end('stopped: it went on after its time')
            return True
        if status == 0:
            return True
        lines = self.written()
        failure = f'the process ended with status {status}'
        if not lines or lines[-1]['kind'] != 'error':
            self.write_end(failure)
        begun = [line['index'] for line in lines if line['kind'] == 'begin']
        if begun and self.starts < MAX_STARTS and time.time() < self.until:
            self.start(self.until, skip=begun[-1])
            return False
        return True

    def written(self) -> list[dict]:
        from tools.benchmark.gpu_parts import read

        return read(self.lines) if self.lines.is_file() else []

    def write_end(self, message: str):
        """Write why a process ended, and the end of what it printed."""
        from tools.benchmark.gpu_parts import Log

        cases = [line['case'] for line in self.written() if line['kind'] == 'begin']
        tail = self.output.read_text(errors='replace')[-4000:]
        where = cases[-1] if cases else 'its start'
        Log(self.lines, self.until).write(
            'error', case=f'{self.name}: {where}', message=message, traceback=tail
        )

    def kill(self):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def run_tasks(tasks: list[Task], until: float, at_once: int) -> Iterator[Task]:
    """Run tasks until a time, some at once, and yield each when it is over.

    A task gets an equal share of the time that is left.
    """
    waiting, running = list(tasks), []
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                now = time.time()
                rounds = -(-len(waiting) // (at_once - len(running)))
                task = waiting.pop(0)
                task.start(now + max(0.0, until - now) / rounds)
                running.append(task)
            over = [task for task in running if task.is_over()]
            running = [task for task in running if task not in over]
            yield from over
            time.sleep(POLL if running else 0)
    finally:
        for task in running:
            task.kill()


def num_at_once(part) -> int:
    """Return how many tasks of a part fit on the machine."""
    return max(1, min(8, os.cpu_count() // 2)) if hasattr(part, 'PARALLEL') else 1


def run_part(name: str, shares: float, until: float, args: argparse.Namespace):
    from tools.benchmark import gpu_parts
    from tools.benchmark.gpu_parts import summary

    part, settings = gpu_parts.load(name), settings_of(args)
    chosen = [t for t in part.tasks(settings) if not args.tasks or t in args.tasks]
    tasks = [Task(name, task, args) for task in chosen]
    now = time.time()
    part_until = now + max(0.0, until - now) * part.SHARE / shares
    print(f'{part.TITLE}: at most {part_until - now:.0f} s', flush=True)
    for task in run_tasks(tasks, part_until, num_at_once(part)):
        print(f'  {task.name}: {time.time() - task.begun:.0f} s', flush=True)
        summary.write(settings, args.started)


def settings_of(args: argparse.Namespace):
    from tools.benchmark.gpu_parts import Settings

    return Settings(args.out, args.dry_run)


def run_task(args: argparse.Namespace):
    """Run one task in this process."""
    from tools.benchmark import gpu_parts

    part, task = args.task
    path = args.out / 'lines' / f'{part}-{task}.jsonl'
    log = gpu_parts.Log(path, args.until, args.skip)
    gpu_parts.load(part).run(task, settings_of(args), log)


def parse_args(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('--minutes', type=float, default=8.0)
    parser.add_argument('--out', type=Path, default=Path('gpu_report'), metavar='DIR')
    parser.add_argument('--parts', nargs='+', help='default: all, in their order')
    parser.add_argument('--tasks', nargs='+', help='names of operators; default: all')
    parser.add_argument('--dry-run', action='store_true')
    for name, kind in (('--until', float), ('--skip', int)):
        parser.add_argument(name, type=kind, default=0, help=argparse.SUPPRESS)
    parser.add_argument('--task', nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.minutes <= 0:
        parser.error(f'--minutes must be positive, got {args.minutes}')
    args.out = args.out.resolve()
    return args


def prepare(args: argparse.Namespace):
    """Set what processes of tasks inherit, and empty the folder of lines."""
    # Matrix products of cuBLAS are deterministic with it.
    os.environ.setdefault('CUBLAS_WORKSPACE_CONFIG', ':4096:8')
    if args.dry_run:
        os.environ |= {'TRITON_INTERPRET': '1', 'MMATTN_BACKEND': 'triton'}
        os.environ |= {'CUDA_VISIBLE_DEVICES': ''}
    shutil.rmtree(args.out / 'lines', ignore_errors=True)
    (args.out / 'lines').mkdir(parents=True)


def main(argv: list[str] | None = None) -> int:
    args = parse_args(argv)
    if args.task:
        run_task(args)
        return 0
    prepare(args)
    import torch

    from tools.benchmark import gpu_parts
    from tools.benchmark.gpu_parts import summary

    names = args.parts or list(gpu_parts.PARTS)
    unknown = [name for name in names if name not in gpu_parts.PARTS]
    if unknown:
        sys.exit(
            f'gpu_report: --parts takes {list(gpu_parts.PARTS)}, got {unknown[0]!r}'
        )
    if not args.dry_run and not torch.cuda.is_available():
        sys.exit('gpu_report: PyTorch sees no CUDA device; --dry-run needs none')
    args.started = time.time()
    until = args.started + 60 * args.minutes
    shares = [gpu_parts.load(name).SHARE for name in names]
    try:
        for i, name in enumerate(names):
            run_part(name, sum(shares[i:]), until, args)
    finally:
        wrong = summary.write(settings_of(args), args.started)
    print(f'wrote {args.out / "report.md"}')
    for failure in wrong:
        print(f'WRONG: {failure}', file=sys.stderr)
    return int(bool(wrong))


if __name__ == '__main__':
    sys.exit(main())

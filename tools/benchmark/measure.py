"""Timing, peak memory, machine, csv and table of all benchmarks.

Calls that are compared take turns in one process, round after round, every second round
backwards, so whatever slows the machine down slows all of them. A time is the median of
the rounds, each of them a median of its own or, of a long call, its time; a ratio
divides two such times.
"""

import argparse
import csv
import importlib
import importlib.util
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
import timeit
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from statistics import median

os.environ.setdefault('KINETO_LOG_LEVEL', '99')  # the profiler logs each start
if 'ATEN_CPU_CAPABILITY' in os.environ:
    # Inductor's cache does not tell instruction sets apart: what it compiled for
    # AVX-512 computed garbage with AVX2.
    os.environ.setdefault(
        'TORCHINDUCTOR_CACHE_DIR',
        f'{tempfile.gettempdir()}/inductor_{os.environ["ATEN_CPU_CAPABILITY"]}',
    )

import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils.benchmark import Timer, timer

from mmattn.cli.terminal import positive
from tools.dev.markdown import markdown

ROOT = Path(__file__).resolve().parents[2]
DTYPES = ('float32', 'float16', 'bfloat16')
QUICK = dict(rounds=2, seconds=1e-3)


def user_seconds() -> float:
    """Return the CPU seconds of this process, without those in the kernel."""
    import resource  # which Windows lacks

    return resource.getrusage(resource.RUSAGE_SELF).ru_utime


CLOCKS = {'wall': timer, 'cpu': time.process_time, 'user': user_seconds}
MIB = 2**20
EPILOG = """
The column isa of a csv is the instruction set of PyTorch's own operators. To measure as
on a CPU without AVX-512, set ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2
MKL_ENABLE_INSTRUCTIONS=AVX2. The last of the three alone measures as on a CPU of AMD
with AVX-512, which MKL does not use.
"""


@dataclass(frozen=True)
class Timing:
    """Seconds that one call took, an entry for each round."""

    seconds: Sequence[float]

    @property
    def median(self) -> float:
        return median(self.seconds)

    @property
    def spread(self) -> float:
        """Return the largest minus the smallest, over the median."""
        return (max(self.seconds) - min(self.seconds)) / self.median

    def speedup_over(self, other: 'Timing') -> float:
        """Return the speed over the speed of `other`, timed in the same rounds."""
        return other.median / self.median

    def columns(self, baseline: 'Timing | None') -> dict:
        """Return the columns of a csv; `speedup` is empty without a baseline."""
        speedup = '' if baseline is None else rounded(self.speedup_over(baseline), 3)
        spread = rounded(100 * self.spread, 2)
        return {'spread_percent': spread, 'speedup': speedup}


def in_turns(names: Iterable, rounds: int) -> list:
    """Return the order to measure things in: forwards, then backwards, ..."""
    names = list(names)
    return [name for n in range(rounds) for name in names[:: -1 if n % 2 else 1]]


def interleave(
    calls: Mapping[str, Callable[[], object]],
    rounds: int,
    seconds: float,
    clock: str = 'wall',
) -> dict[str, Timing]:
    """Time calls in turns, each for at least `seconds` in each of the rounds."""
    how = dict(timer=CLOCKS[clock], num_threads=torch.get_num_threads())
    timers = {
        name: Timer('call()', globals={'call': call}, **how)
        for name, call in calls.items()
    }
    for call in calls.values():
        call()  # compiles kernels, fills caches
    times = {name: [] for name in calls}
    for name in in_turns(calls, rounds):
        taken = timeit.timeit(calls[name], timer=CLOCKS[clock], number=1)
        if taken < seconds:
            taken = timers[name].blocked_autorange(min_run_time=seconds).median
        times[name].append(taken)
    return {name: Timing(values) for name, values in times.items()}


def peak_memory(call: Callable[[], object], device: str) -> int:
    """Measure the most bytes that PyTorch holds during a call beyond those before it.

    Counts what goes through PyTorch's allocators: outputs, gradients, tensors saved for
    the backward and temporaries, also inside an operator; on the CPU, only in the
    calling thread. Not counted are what existed before (on the CPU it is not
    subtracted either when the call frees it), buffers that libraries take by
    themselves, and memory that an allocator keeps for later.
    """
    if device == 'cuda':
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        call()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        call()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, 'trace.json')
        profiler.export_chrome_trace(str(path))
        events = json.loads(path.read_text())['traceEvents']
    events = [event for event in events if event['name'] == '[memory]']
    live, held, peak = {}, 0, 0
    for event in sorted(events, key=lambda event: event['ts']):
        address, size = event['args']['Addr'], event['args']['Bytes']
        if size > 0:
            live[address] = size
            held += size
        else:
            held -= live.pop(address, 0)
        peak = max(peak, held)
    return peak


def synchronize(device: str):
    if device == 'cuda':
        torch.cuda.synchronize()


def about(device: str, *packages: str, **settings) -> dict:
    """Return machine, settings, versions, commit and day as columns of a csv."""
    row = {'machine': machine(device), 'isa': isa() if device == 'cpu' else ''}
    row |= {'threads': torch.get_num_threads(), **settings}
    for package in ('torch', 'triton', *packages, 'mmattn'):
        found = importlib.util.find_spec(package) is not None
        row[package] = importlib.import_module(package).__version__ if found else ''
    return row | {'commit': commit(), 'date': date.today().isoformat()}


def machine(device: str) -> str:
    if device == 'cuda':
        return torch.cuda.get_device_name()
    name = platform.processor() or platform.machine()
    cpuinfo = Path('/proc/cpuinfo')
    if cpuinfo.is_file():
        first = cpuinfo.read_text().partition('\n\n')[0].splitlines()
        facts = {
            key.strip(): value.strip()
            for key, _, value in (line.partition(':') for line in first)
        }
        name = facts.get('model name', name)
        if 'cpu family' in facts:  # virtual machines hide the name, and not these
            name += f' (family {facts["cpu family"]}, model {facts["model"]})'
    return f'{name}, {os.cpu_count()} cores'


def isa() -> str:
    """Return the instruction set of PyTorch's own operators, such as AVX2."""
    return torch.backends.cpu.get_cpu_capability().replace(' ', '')


def commit() -> str:
    """Return the commit of the checkout, with `+` if code differs; '' without git."""

    def git(*command: str) -> str:
        command = ['git', '-C', ROOT, *command]
        return subprocess.run(command, capture_output=True, text=True).stdout.strip()

    changed = git('status', '--porcelain', '--', 'mmattn', 'tools', 'configs')
    return git('rev-parse', '--short', 'HEAD') + ('+' if changed else '')


def rounded(value: float, digits: int = 4) -> float:
    return float(f'{value:.{digits}g}')


def report(
    rows: Iterable[dict],
    args: argparse.Namespace,
    *packages: str,
    title: str,
    **settings,
) -> list[dict]:
    """Print the rows as a table, and return them.

    With --csv they are written, each one as it comes: what was done remains if a run is
    interrupted.

    Args:
        args: what `parse` returned.
        packages: names of packages whose versions are columns.
        settings: further columns, before --rounds and --seconds.
    """
    given = {k: v for k, v in vars(args).items() if k in ('rounds', 'seconds')}
    about_run = about(getattr(args, 'device', 'cpu'), *packages, **settings | given)
    done, path = [], args.csv
    for row in rows:
        done.append(row)
        if path is not None:
            write_csv(path, done, about_run)
    columns = list(dict.fromkeys(column for row in done for column in row))
    cells = ([row.get(column, '') for column in columns] for row in done)
    print(f'{title}\n\n{markdown([columns, *cells])}')
    print(', '.join(f'{name} {value}' for name, value in about_run.items()))
    if path is not None:
        print(f'wrote {path}')
    return done


def read_csv(path: Path) -> list[dict]:
    with path.open(newline='') as file:
        return list(csv.DictReader(file))


def write_csv(path: Path, rows: Sequence[dict], about_run: dict):
    """Write rows, in one step: a kill leaves the old file or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    columns = dict.fromkeys(column for row in rows for column in row)
    draft = path.with_name(f'.{path.name}')
    with draft.open('w', newline='') as file:
        writer = csv.DictWriter(file, [*columns, *about_run], lineterminator='\n')
        writer.writeheader()
        writer.writerows(row | about_run for row in rows)
    draft.replace(path)


def progress(message: str):
    print(message, file=sys.stderr, flush=True)


def make_parser(
    description: str,
    *,
    rounds: int | None = None,
    seconds: float | None = None,
    device: str | None = 'cpu',
) -> argparse.ArgumentParser:
    """Add the arguments of every benchmark, without those that are None."""
    parser = argparse.ArgumentParser(
        description=description,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    if device is not None:
        parser.add_argument('--device', default=device, choices=['cpu', 'cuda'])
    if rounds is not None:
        parser.add_argument('--rounds', type=positive, default=rounds)
    if seconds is not None:
        parser.add_argument(
            '--seconds', type=float, default=seconds, help='least time of a round'
        )
    parser.add_argument('--csv', type=Path, help='file to write the rows to')
    parser.add_argument(
        '--quick', action='store_true', help='something small, to see that it runs'
    )
    return parser


def add_clock(parser: argparse.ArgumentParser):
    parser.add_argument(
        '--clock',
        default='wall',
        choices=CLOCKS,
        help='cpu: seconds of the CPU, which other programs disturb less; of several '
        'threads it is the sum; user: without those in the kernel, such as for memory',
    )


def add_size(parser: argparse.ArgumentParser, default: list[int] | None):
    """Add --size, of which `parse` makes a height and a width."""
    parser.add_argument(
        '--size',
        nargs='+',
        type=positive,
        default=default,
        help='height and width of the images, or one number for both',
    )


def size_text(size: tuple[int, int]) -> int | str:
    """Return the column `size`; one number stands for both sides."""
    return size[0] if size[0] == size[1] else f'{size[0]} x {size[1]}'


def parse(
    parser: argparse.ArgumentParser, argv: list[str] | None
) -> argparse.Namespace:
    """Return the arguments, with --size as two numbers."""
    args = parser.parse_args(argv)
    if args.quick:
        vars(args).update({k: v for k, v in QUICK.items() if k in args})
    if size := vars(args).get('size'):
        if len(size) > 2:
            parser.error(f'--size takes one or two numbers, got {size}')
        args.size = size[0], size[-1]
    if vars(args).get('device') == 'cuda' and not torch.cuda.is_available():
        parser.error('--device cuda: PyTorch sees no CUDA device')
    return args

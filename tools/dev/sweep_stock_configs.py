"""Build, train for a step and predict with every stock model of the mm packages.

    python -m tools.dev.sweep_stock_configs                   # what is not done yet
    python -m tools.dev.sweep_stock_configs 'mmdet/carafe/*'  # some configs
    python -m tools.dev.sweep_stock_configs --retry operator  # those that failed so
    python -m tools.dev.sweep_stock_configs --table           # write the page

It reads the config folders of mmdet, mmseg and mmpretrain. Models that are equal but
for their weights are tried once, with random weights, on small random images. Each
model runs in a forked process with limits on memory and CPU time. Results are appended
to `--results` as they come, so a second run continues where the first stopped.
`--table` writes `docs/stock_configs.csv` and `docs/stock_configs.md` from them.
"""

import argparse
import faulthandler
import fnmatch
import gc
import importlib
import json
import os
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path

import mmattn  # noqa: F401  serves mmcv's operators
from tools.dev import stock_models, stock_table

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / 'work_dirs/stock_configs.jsonl'
MEMORY_GIB = 8
CPU_SECONDS = 240
GIB = 1 << 30
OUT_OF_TIME = signal.SIGXCPU, signal.SIGKILL
TRACE = 3000
IMPORTED = (
    'mmdet.datasets',
    'mmdet.models',
    'mmdet.testing',
    'mmpretrain.datasets',
    'mmpretrain.models',
    'mmseg.datasets',
    'mmseg.models',
    'tools.dev.stock_trial',
    'transformers',
)


def read_lines(path: Path) -> Iterator[dict]:
    """Return the objects of a file of JSON lines; a cut last line is skipped."""
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            yield json.loads(line)
        except json.JSONDecodeError:
            continue


def latest(path: Path) -> dict[str, dict]:
    """Return the last result of each model."""
    return {line['model']: line for line in read_lines(path)}


def append(path: Path, line: dict):
    """Add a line, after ending one that a killed run left unfinished."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open('a+b') as file:
        if file.tell():
            file.seek(-1, os.SEEK_END)
            cut = file.read() != b'\n'
            file.write(b'\n' * cut)
        file.write(json.dumps(line).encode() + b'\n')


def plan(path: Path) -> list[dict]:
    """Return the entries of all distinct models, from a file beside the results.

    Reading all configs takes a minute, and the file saves it. Delete it after an
    update of a package.
    """
    if not path.exists():
        entries = [
            e for p in stock_models.PACKAGES for e in stock_models.read_models(p)
        ]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(''.join(json.dumps(entry) + '\n' for entry in entries))
    return stock_models.breadth_first(list(read_lines(path)))


def to_do(
    entries: list[dict], done: dict[str, dict], retry: list[str], patterns: list[str]
) -> list[dict]:
    """Return the entries of this run: those without a result, and those to retry."""

    def wanted(entry: dict) -> bool:
        names = [f'{entry["package"]}/{path}' for path in entry['configs']]
        if patterns and not any(fnmatch.filter(names, p) for p in patterns):
            return False
        if entry['model'] not in done:
            return True
        reason = done[entry['model']].get('reason')
        return reason is not None and ('failed' in retry or reason in retry)

    return [entry for entry in entries if wanted(entry)]


def import_everything():
    """Import the packages once, so that each forked process starts at once."""
    import torch

    for name in IMPORTED:
        importlib.import_module(name)
    torch.set_num_threads(1)
    gc.collect()
    gc.freeze()


def limited(memory_gib: float, cpu_seconds: int):
    """Limit this process, and make it fail instead of using the network."""
    import socket

    used = int(Path('/proc/self/statm').read_text().split()[5]) * resource.getpagesize()
    memory = used + int(memory_gib * GIB)
    resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds + 5))

    def refuse(host, *args, **kwargs):
        raise OSError(f'the sweep downloads nothing, got host {host}')

    socket.getaddrinfo = refuse


def in_child(work: Callable[[Callable], None], limits: tuple[float, int]) -> dict:
    """Run `work(report)` in a forked process and return all that it reported."""
    read, write = os.pipe()
    errors = tempfile.TemporaryFile()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.close(read)
            silence = os.open(os.devnull, os.O_WRONLY)
            os.dup2(silence, 1)
            os.dup2(errors.fileno(), 2)
            faulthandler.enable(errors.fileno())
            limited(*limits)
            work(lambda **line: os.write(write, json.dumps(line).encode() + b'\n'))
            status = 0
        except BaseException:  # noqa: BLE001  the parent reads it as a trace
            os.write(2, traceback.format_exc().encode())
        finally:
            os._exit(status)
    os.close(write)
    with open(read, 'rb') as pipe:
        text = pipe.read()
    _, status, usage = os.wait4(child, 0)
    result = stock_table.gathered(map(json.loads, text.splitlines()))
    result['cpu_seconds'] = round(usage.ru_utime + usage.ru_stime, 1)
    result['gib'] = round(usage.ru_maxrss / (1 << 20), 2)
    if code := os.waitstatus_to_exitcode(status):
        errors.seek(0)
        result['trace'] = errors.read(TRACE).decode(errors='replace')
        if -code in OUT_OF_TIME and result['cpu_seconds'] >= limits[1] - 1:
            result.update(reason='time', detail=f'more than {limits[1]} s of CPU time')
        else:
            name = signal.Signals(-code).name if code < 0 else f'exit status {code}'
            result.update(reason='killed', detail=name)
    errors.close()
    return result


def environment(package: str) -> str:
    """Return the versions of a package and what it stands on, machine and day."""
    import torch

    cpu = f'{os.cpu_count()} CPU cores with {torch.backends.cpu.get_cpu_capability()}'
    versions = ', '.join(
        f'{name} {importlib.import_module(name).__version__}'
        for name in (package, 'mmcv', 'mmengine', 'torch')
    )
    return f'{versions}, {cpu}, {date.today()}'


def sweep(entries: list[dict], results: Path, limits: tuple[float, int]):
    """Try the models one after the other."""
    environments = {package: environment(package) for package in stock_models.PACKAGES}
    for number, entry in enumerate(entries, 1):
        start = time.perf_counter()
        if 'error' in entry:
            result = {'reason': 'config', 'detail': entry['error']}
        else:

            def work(report: Callable, entry: dict = entry):
                from tools.dev.stock_trial import try_model

                try_model(entry['package'], entry['configs'][0], report)

            result = in_child(work, limits)
        append(results, {**entry, **result, 'on': environments[entry['package']]})
        seconds = time.perf_counter() - start
        verdict = result.get('reason') or 'passes'
        print(
            f'[{number}/{len(entries)}] {entry["package"]}/{entry["configs"][0]}: '
            f'{verdict} {result.get("detail", "")[:150]} ({seconds:.0f} s)',
            flush=True,
        )


def parse_args(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        'patterns', nargs='*', help='configs to try, as in mmdet/carafe/*; default: all'
    )
    parser.add_argument('--results', type=Path, default=RESULTS, help='JSON lines')
    parser.add_argument(
        '--retry',
        action='append',
        default=[],
        help='try those again that failed for this reason; `failed` means any',
    )
    parser.add_argument('--memory', type=float, default=MEMORY_GIB, help='GiB a model')
    parser.add_argument(
        '--seconds', type=int, default=CPU_SECONDS, help='CPU time of a model'
    )
    parser.add_argument('--table', action='store_true', help='write the page and stop')
    parser.add_argument(
        '--docs', type=Path, default=ROOT / 'docs', help='folder of the page'
    )
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    args = parse_args(arguments)
    entries = plan(args.results.with_name('stock_configs_plan.jsonl'))
    done = latest(args.results)
    if args.table:
        stock_table.write(args.docs, entries, done)
        return 0
    chosen = to_do(entries, done, args.retry, args.patterns)
    if chosen:
        os.environ.update(HF_HUB_OFFLINE='1', TRANSFORMERS_OFFLINE='1')
        import_everything()
    sweep(chosen, args.results, (args.memory, args.seconds))
    return 0


if __name__ == '__main__':
    sys.exit(main())

"""Use fewer threads, which sleep while they wait, where other programs use the CPUs.

OpenMP's threads spin while they wait for each other. Two of them on CPUs that other
programs use can be many times slower than one. Import this module before torch, because
OpenMP reads `OMP_WAIT_POLICY` when it is loaded. What the user has set in
`OMP_NUM_THREADS` or `OMP_WAIT_POLICY` stays.
"""

import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

STAT = Path('/proc/stat')
SECONDS = 0.3
PASSIVE_FROM = 0.25  # of the CPUs; sleeping threads are slower where nobody disturbs


class Choice(NamedTuple):
    """Describe what was chosen: None leaves a setting as it is."""

    max_threads: int | None
    wait_policy: str | None
    reason: str


def choose(cpus: int, taken: float, environ: Mapping[str, str]) -> Choice:
    """Choose for a process that may run on `cpus`, of which others use `taken`."""
    taken_cpus = min(round(taken), cpus)
    threads = max(1, cpus - taken_cpus) if taken_cpus else None
    policy = 'PASSIVE' if taken_cpus >= max(1, PASSIVE_FROM * cpus) else None
    reason = f'other programs use {taken:.1f} of {cpus} CPUs'
    for name in ('OMP_NUM_THREADS', 'OMP_WAIT_POLICY'):
        if name in environ:
            reason += f', {name}={environ[name]} is set'
    if 'OMP_NUM_THREADS' in environ:
        threads = None
    if 'OMP_WAIT_POLICY' in environ:
        policy = None
    return Choice(threads, policy, reason)


def allowed_cpus() -> set[int]:
    if hasattr(os, 'sched_getaffinity'):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def taken_cpus(cpus: set[int]) -> float:
    """Measure how many of the CPUs other programs use, while this one sleeps.

    The load average is the fallback. It still counts programs that ended within the
    last minute.
    """
    if not STAT.is_file():
        load = os.getloadavg()[0] if hasattr(os, 'getloadavg') else 0.0
        return min(load, len(cpus))
    before = _ticks(cpus)
    time.sleep(SECONDS)
    taken = 0.0
    for cpu, (idle, total) in _ticks(cpus).items():
        idle, total = idle - before[cpu][0], total - before[cpu][1]
        taken += 1 - idle / total if total > 0 else 0
    return taken


def _ticks(cpus: set[int]) -> dict[str, tuple[int, int]]:
    """Return the idle and all clock ticks of each CPU."""
    ticks = {}
    for line in STAT.read_text().splitlines():
        name, *fields = line.split()
        if name.startswith('cpu') and name[3:].isdigit() and int(name[3:]) in cpus:
            counts = [int(field) for field in fields[:8]]  # the rest is counted in them
            ticks[name] = counts[3] + counts[4], sum(counts)
    return ticks


def prepare() -> Choice:
    """Choose, and set the wait policy. Change nothing after torch has been loaded."""
    if 'torch' in sys.modules:
        return Choice(None, None, 'torch was loaded before')
    cpus = allowed_cpus()
    choice = choose(len(cpus), taken_cpus(cpus), os.environ)
    if choice.wait_policy is not None:
        os.environ['OMP_WAIT_POLICY'] = choice.wait_policy
    return choice


def limit_threads() -> str:
    """Reduce torch's threads to the choice, and return a line about it for the log."""
    import torch

    if CHOICE.max_threads is not None:
        torch.set_num_threads(min(CHOICE.max_threads, torch.get_num_threads()))
    policy = f', OMP_WAIT_POLICY={CHOICE.wait_policy}' if CHOICE.wait_policy else ''
    return f'CPU threads: {torch.get_num_threads()}{policy} ({CHOICE.reason})'


CHOICE = prepare()

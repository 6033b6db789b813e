"""Measure what the device reaches: a copy, matrix products, exponentials."""

from functools import partial

import torch

from tools.benchmark import graphs
from tools.benchmark.measure import rounded

from .log import Log, Settings

TITLE = 'Measured rates'
SHARE = 4
TERA = 1e12


def tasks(settings: Settings) -> list[str]:
    return ['rates']


def run(task: str, settings: Settings, log: Log):
    """Measure nothing in a dry run: a CPU's rates would say nothing."""
    products = partial(graphs.matmul_rate)
    calls = {
        'bytes': graphs.copy_rate,
        'flops': partial(products, torch.bfloat16),
        'float16_flops': partial(products, torch.float16),
        'tf32_flops': partial(products, torch.float32),
        'vector_flops': partial(products, torch.float32, precision='highest'),
        'exponentials': graphs.exponential_rate,
    }
    for name, call in calls.items():
        log.attempt(name, partial(measured, name, call, settings))


def measured(name: str, call, settings: Settings):
    rate = None if settings.dry_run else call()
    tera = None if rate is None else rounded(rate / TERA)
    yield 'rates', {'rate': name, 'per_second': rate, 'tera_per_second': tera}

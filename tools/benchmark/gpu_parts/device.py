"""List the device and the versions."""

import torch

from mmattn.environment import report

from .log import Log, Settings

TITLE = 'Device and versions'
SHARE = 3
PROPERTIES = (
    'total_memory',
    'multi_processor_count',
    'L2_cache_size',
    'clock_rate',
    'memory_clock_rate',
    'memory_bus_width',
    'shared_memory_per_block_optin',
    'regs_per_multiprocessor',
)


def tasks(settings: Settings) -> list[str]:
    return ['device']


def run(task: str, settings: Settings, log: Log):
    log.attempt('properties of the device', lambda: properties(settings))
    log.attempt('environment', environment)


def properties(settings: Settings):
    if settings.dry_run:
        return
    device = torch.cuda.current_device()
    found = torch.cuda.get_device_properties(device)
    major, minor = torch.cuda.get_device_capability(device)
    yield 'device', {'name': 'device', 'value': torch.cuda.get_device_name(device)}
    yield 'device', {'name': 'compute capability', 'value': f'{major}.{minor}'}
    for name in PROPERTIES:
        if hasattr(found, name):
            yield 'device', {'name': name, 'value': getattr(found, name)}
    free, total = torch.cuda.mem_get_info(device)
    yield 'device', {'name': 'free memory', 'value': free}


def environment():
    found = report()
    sections = found['machine'] | found['packages']
    sections['mmcv operators'] = found['mmcv operators']
    for package, families in found['mm packages'].items():
        versions = [f'{n} {v}' for f in families.values() for n, v in f.items()]
        sections[package] = ', '.join(versions) or 'not installed'
    for name, value in sections.items():
        yield 'device', {'name': name, 'value': value}
    for problem in found['problems']:
        value = f'{problem["what"]} (run: {problem["mend"]})'
        yield 'device', {'name': 'problem', 'value': value}

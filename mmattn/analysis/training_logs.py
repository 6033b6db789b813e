"""Find and read what a training leaves in its work dir."""

import json
import os
import platform
from datetime import datetime
from pathlib import Path

import torch
from mmengine.config import Config

SCALARS = 'vis_data/scalars.json'


def work_dir_of(config: str | Path, cfg: Config) -> Path:
    """Return the work dir that `tools/train.py` gives to a config."""
    return Path(cfg.get('work_dir') or Path('work_dirs', Path(config).stem))


def read_log(scalars: Path) -> list[dict]:
    """Return the records of a log file.

    A run may be writing: a last line without an end is left out.
    """
    lines = scalars.read_text().splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith('\n')]


def last_log(work_dir: Path) -> tuple[list[dict], Path | None]:
    """Return the records of the last run that has some, and its folder."""
    for scalars in sorted(work_dir.glob(f'*/{SCALARS}'), reverse=True):
        if records := read_log(scalars):
            return records, scalars.parents[1]
    return [], None


def summarize(config: str, run: Path, records: list[dict], metrics: tuple[str, ...]):
    """Return the last metrics, and the wall time of training and validation."""
    last = {m: round(r[m], 3) for r in records for m in metrics if m in r}
    started = datetime.strptime(run.name, '%Y%m%d_%H%M%S')
    ended = datetime.fromtimestamp((run / SCALARS).stat().st_mtime)
    return {
        'config': config,
        'metrics': last,
        'iterations': max((r['step'] for r in records if 'loss' in r), default=0),
        'minutes': round((ended - started).total_seconds() / 60, 1),
        'date': started.date().isoformat(),
        'machine': f'{os.cpu_count()} CPU cores, {platform.machine()}',
        'torch': torch.__version__,
    }

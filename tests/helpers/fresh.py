"""Run Python in a fresh process that finds this checkout."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


LAUNCH_VARIABLES = (
    'NNODES NODE_RANK PORT MASTER_ADDR MASTER_PORT TORCHRUN_ARGS GPUS GPUS_PER_NODE '
    'CPUS_PER_TASK SRUN_ARGS VIRTUAL_ENV CONDA_PREFIX RDZV_ID LOCAL_ADDR'
).split()
MM = 'mmengine', 'mmcv', 'mmdet', 'mmseg', 'mmpretrain'


def without(*names: str) -> str:
    """Make `import name` and `find_spec(name)` behave as where it is not installed."""
    return f'import sys; sys.modules.update(dict.fromkeys({names}))\n'


def plain_environment() -> dict[str, str]:
    """Return the environment without the variables that the launch scripts read."""
    return {k: v for k, v in os.environ.items() if k not in LAUNCH_VARIABLES}


def run_python(
    *arguments, cwd=None, paths=(), status: int = 0, **variables: str
) -> subprocess.CompletedProcess:
    """Return the ended process of `python ARGUMENTS`, which finds `paths` first."""
    found = os.pathsep.join([*map(str, paths), str(ROOT)])
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=cwd,
        env=os.environ | dict(PYTHONPATH=found, OMP_NUM_THREADS='1') | variables,
        capture_output=True,
        text=True,
    )
    assert done.returncode == status, done.stdout[-2000:] + done.stderr[-4000:]
    return done

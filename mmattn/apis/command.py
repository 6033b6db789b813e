"""Run a command of `mmattn` as a shell does, in a process of its own."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from threading import Timer

import mmattn
from mmattn.errors import UserError

KEPT = 20  # lines of a command that fails


def run_command(
    *arguments, say: Callable[[str], None] | None = print, limit: float | None = None
):
    """Run `mmattn ARGUMENTS` to its end.

    Args:
        arguments: the command and its arguments, as text or paths.
        say: takes each line that the command prints; None keeps them to itself.
        limit: seconds after which a training is asked to stop, as by Ctrl-C.

    Raises:
        ValueError: the command fails; the message has the end of what it printed.
    """
    command = [sys.executable, '-m', 'mmattn', *map(str, arguments)]
    lines, asked = [], []
    # The same mmattn as here, also where it is not installed.
    paths = [str(Path(mmattn.__file__).parents[1]), os.environ.get('PYTHONPATH')]
    env = os.environ | dict(PYTHONPATH=os.pathsep.join(filter(None, paths)))
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors='replace',
        env=env,
    ) as process:
        timer = Timer(limit or 0, lambda: asked.append(process.terminate()))
        if limit is not None:
            timer.start()
        for line in process.stdout:
            lines = [*lines[1 - KEPT :], line.rstrip()]
            if say is not None:
                say(line.rstrip())
        timer.cancel()
    if process.returncode and not asked:
        reason = '\n'.join(lines) if say is None else (lines or ['no output'])[-1]
        raise UserError(f'mmattn {" ".join(command[3:])} failed: {reason}')

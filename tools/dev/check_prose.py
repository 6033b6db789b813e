"""Fail when a docstring begins with a clause that has no verb of its own.

`Of a config: ...` or `What a run needs.` leaves the reader to guess what the function
does. A docstring begins with its verb instead: `Return ...`, `Build ...`, `Check ...`.
"""

import argparse
import ast
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HEADLESS = re.compile(r'(?:Of|What|Whose|Where|Whether|Which|Who|One of each)\b')
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def headless_docstrings(source: str) -> list[tuple[int, str]]:
    """Return line and first line of each docstring that begins without a verb."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, DOCUMENTED):
            continue
        text = ast.get_docstring(node)
        if text and HEADLESS.match(text):
            found.append((node.body[0].lineno, text.partition('\n')[0]))
    return sorted(found)


def python_files(folders: list[Path]) -> list[Path]:
    """Return the Python files that git tracks, below the folders if there are any."""
    command = ['git', 'ls-files', '-z', '--', *(folders or ['.'])]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout
    files = [ROOT / name for name in listed.decode().split('\0')]
    return [file for file in files if file.suffix == '.py' and file.is_file()]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        'paths', nargs='*', type=Path, help='files, or folders of git; by default all'
    )
    paths = parser.parse_args().paths
    files = [path for path in paths if path.is_file()]
    folders = [path.resolve() for path in paths if path.is_dir()]
    if folders or not paths:
        files += python_files(folders)
    failed = 0
    for file in files:
        for number, line in headless_docstrings(file.read_text()):
            print(f'{file}:{number}: begin the docstring with a verb: {line}')
            failed += 1
    return 1 if failed else 0


if __name__ == '__main__':
    sys.exit(main())

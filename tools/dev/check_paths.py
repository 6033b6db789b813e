"""Fail when a file of the project names a path outside it.

All files that git tracks or would add are searched for absolute paths of somebody's
machine, and for relative paths that leave the checkout from the file's folder.
"""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ABSOLUTE = re.compile(r'(?<![\w./:}])/(?:home|root|Users|work|mnt|scratch)/[\w./-]+')
PARENT = re.compile(r'(?<![\w./])(?:\.\./)+[\w./-]*')


def outside_paths(file: Path, text: str) -> list[str]:
    """Return the paths in the text of `file` that lead outside the project."""
    found = ABSOLUTE.findall(text)
    for path in PARENT.findall(text):
        if not (file.parent / path).resolve().is_relative_to(ROOT):
            found.append(path)
    return found


def project_files() -> list[Path]:
    command = ['git', 'ls-files', '--cached', '--others', '--exclude-standard', '-z']
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout
    return [ROOT / name for name in listed.decode().split('\0') if name]


def main() -> int:
    failed = 0
    for file in project_files():
        if not file.is_file() or file.suffix in ('.png', '.jpg'):
            continue
        for number, line in enumerate(file.read_text().splitlines(), 1):
            for path in outside_paths(file, line):
                print(f'{file.relative_to(ROOT)}:{number}: outside the project: {path}')
                failed += 1
    return 1 if failed else 0


if __name__ == '__main__':
    sys.exit(main())

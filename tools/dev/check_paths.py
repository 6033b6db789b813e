"""Fail when a file of the project names a path outside it, or links to no file.

All files that git tracks or would add are searched for absolute paths of somebody's
machine, and for relative paths that leave the checkout from the file's folder. Links of
Markdown files must lead to a file or a folder; Sphinx checks their anchors.
"""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ABSOLUTE = re.compile(r'(?<![\w./:}])/(?:home|root|Users|work|mnt|scratch)/[\w./-]+')
PARENT = re.compile(r'(?<![\w./])(?:\.\./)+[\w./-]*')

LINK = re.compile(r'\]\((?![a-z]+:|#)([^)#\s]+)')


def broken_links(file: Path, text: str) -> list[str]:
    """Return the links in the text of `file` to files that do not exist."""
    return [link for link in LINK.findall(text) if not (file.parent / link).exists()]


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
            found = [f'outside the project: {x}' for x in outside_paths(file, line)]
            if file.suffix == '.md':
                found += [f'no such file: {x}' for x in broken_links(file, line)]
            for problem in found:
                print(f'{file.relative_to(ROOT)}:{number}: {problem}')
                failed += 1
    return 1 if failed else 0


if __name__ == '__main__':
    sys.exit(main())

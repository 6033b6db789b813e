"""Reduce large PNG files of the documentation to a palette of 256 colors.

    python -m tools.dev.shrink_pictures

rewrites the PNG files below docs and projects with more than 200 kB, the limit for a
committed picture, and prints their sizes. Drawings and pictures with few hues look the
same afterwards. Look at them, and save photographs as JPEG files instead.
"""

import subprocess
import sys
from pathlib import Path

from PIL import Image

ROOT = Path(__file__).resolve().parents[2]
MAX_BYTES = 200_000
SUFFIXES = {'.gif', '.jpeg', '.jpg', '.png', '.svg', '.webp'}


def large_pictures() -> list[Path]:
    """Return the tracked pictures below docs and projects that exceed the limit."""
    command = ['git', 'ls-files', '-z', 'docs', 'projects']
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    paths = [ROOT / name for name in done.stdout.split('\0') if name]
    paths = [path for path in paths if path.suffix in SUFFIXES and path.is_file()]
    return [path for path in paths if path.stat().st_size > MAX_BYTES]


def shrink(path: Path):
    """Write a picture again, with a palette."""
    with Image.open(path) as image:
        palette = image.convert('RGB').quantize(
            256, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE
        )
    palette.save(path, 'PNG', optimize=True)


def main() -> int:
    too_large = []
    for path in large_pictures():
        before = path.stat().st_size
        if path.suffix == '.png':
            shrink(path)
        after = path.stat().st_size
        print(f'{path.relative_to(ROOT)}: {before:,} to {after:,} bytes')
        if after > MAX_BYTES:
            too_large.append(path)
    if too_large:
        print(f'still above {MAX_BYTES:,} bytes: draw them smaller', file=sys.stderr)
    return 1 if too_large else 0


if __name__ == '__main__':
    sys.exit(main())

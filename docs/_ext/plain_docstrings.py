"""Prepare docstrings for reStructuredText, which they are not written in.

They are plain text in Google's style. `*` is a product, an indented paragraph is an
equation or code, and names of arguments may continue on a second line.
"""

import re

from sphinx.application import Sphinx

SECTION = re.compile(r'^[A-Z][\w ]*:$')
CODE = re.compile(r'(`+[^`]*`+)')
NAMES = re.compile(r'^ +[\w, ]+,$')


def escape(line: str) -> str:
    """Escape what would be markup, outside of backticks."""
    if '>>>' in line:
        return line
    parts = CODE.split(line)
    parts[::2] = [re.sub(r'([*|]|(?<=\w)_(?=\W|$))', r'\\\1', p) for p in parts[::2]]
    return ''.join(parts)


def prepared(lines: list[str]) -> list[str]:
    """Return the lines of a docstring as reStructuredText in Google's style."""
    result, in_sections, in_block = [], False, False
    for line in lines:
        if SECTION.match(line):
            in_sections = True
        if in_block and line.strip() and not line.startswith('    '):
            in_block = False
        if not in_sections and line.startswith('    ') and not in_block:
            in_block = not result or not result[-1].strip()
            if in_block:
                result += ['::', '']
        line = line if in_block else escape(line)
        if in_sections and result and NAMES.match(result[-1]):
            result[-1] = f'{result[-1]} {line.strip()}'
        else:
            result.append(line)
    return result


def process(app: Sphinx, what: str, name: str, obj, options, lines: list[str]):
    lines[:] = prepared(lines)


def setup(app: Sphinx) -> dict:
    app.connect('autodoc-process-docstring', process, priority=400)  # before napoleon
    return {'parallel_read_safe': True, 'parallel_write_safe': True}

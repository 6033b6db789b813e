"""Write tables in Markdown, and put them into pages."""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from mmattn.errors import UserError

BLOCK = re.compile(
    r'^(?P<begin><!-- (?P<kind>[a-z]+)(?P<words>[^>\n]*?) -->\n)'
    r'(?:(?:(?!<!-- ).*\n)*?(?P<end><!-- end of (?P=kind) -->\n))?',
    re.MULTILINE,
)


def markdown(rows: Sequence[Sequence]) -> str:
    """Return a table in Markdown, with the first row as its head."""
    rows = [rows[0], ['---'] * len(rows[0]), *rows[1:]]
    return ''.join(f'| {" | ".join(map(str, row))} |\n' for row in rows)


def replace_between(page: Path, begin: str, end: str, text: str):
    """Replace what is between two marks of a page.

    Raises:
        ValueError: the page lacks a mark. It is not changed.
    """
    before, begins, rest = page.read_text().partition(begin)
    _, ends, after = rest.partition(end)
    if not begins or not ends:
        raise UserError(f'{page} must have the marks {begin!r} and {end!r}')
    page.write_text(f'{before}{begin}{text}{end}{after}')


def filled(text: str, tables: Mapping[str, Callable[..., str]]) -> str:
    """Return a page with a table after each mark `<!-- KIND WORDS -->`.

    A table that a line `<!-- end of KIND -->` closes is replaced.

    Args:
        tables: return the table of a kind, given the words of the mark.
    """

    def fill(found: re.Match) -> str:
        if found['kind'] not in tables:
            return found.group()
        table = tables[found['kind']](*found['words'].split())
        return f'{found["begin"]}\n{table}\n{found["end"] or ""}'

    return BLOCK.sub(fill, text)

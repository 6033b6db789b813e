"""Let pages link to the checkout's files, and include its READMEs, as on GitHub.

Pages link relative to their own folder, also out of `docs`. In the site, a link to a
README that a page includes leads to that page, a link to another file downloads it,
and a link to a folder becomes its text.
"""

import os
import re
from pathlib import Path

from sphinx.application import Sphinx

INCLUDE = re.compile(r'^```\{include\} (\S+)\n```$', re.MULTILINE)
LINK = re.compile(
    r'(?P<image>!?)\[(?P<text>[^\]]*)\]\((?P<path>[^)\s#]+)(?P<anchor>#[^)\s]*)?\)'
)
FENCE = re.compile(r'^(```|~~~).*?^\1', re.MULTILINE | re.DOTALL)


def including_pages(docs: Path) -> dict[Path, Path]:
    """Return the page of `docs` that includes a file of the checkout, by that file."""
    found = {}
    for page in docs.rglob('*.md'):
        for path in INCLUDE.findall(page.read_text()):
            found[(page.parent / path).resolve()] = page
    return found


def outside_fences(text: str, change) -> str:
    """Apply a function to the parts of a text that are not in fenced blocks."""
    parts, end = [], 0
    for fence in FENCE.finditer(text):
        parts += [change(text[end : fence.start()]), fence.group()]
        end = fence.end()
    return ''.join([*parts, change(text[end:])])


def is_page(file: Path) -> bool:
    """Return whether a file is in the folder of the site's sources."""
    return any((folder / 'conf.py').is_file() for folder in file.parents)


def relink(text: str, source: Path, page: Path, pages: dict[Path, Path]) -> str:
    """Return the text of `source` with links that are right in `page`.

    Args:
        text: Markdown, whose links are relative to the folder of `source`.
        source: file that the text is from.
        page: page of the site that shows the text.
        pages: pages that include files, by file.
    """

    def target(found: re.Match) -> str:
        path, anchor = found['path'], found['anchor'] or ''
        if re.match(r'[a-z]+:', path):
            return found.group()
        file = (source.parent / path).resolve()
        file = pages.get(file) or pages.get(file / 'README.md') or file
        if file.is_dir():
            return found['text']
        relative = os.path.relpath(file, page.parent)
        if file.suffix == '.md' and not is_page(file):
            relative = f'path:{relative}'  # MyST would look for a page
        return f'{found["image"]}[{found["text"]}]({relative}{anchor})'

    return outside_fences(text, lambda part: LINK.sub(target, part))


def read(app: Sphinx, name: str, content: list[str]):
    """Fill in the files that a page includes, and resolve its links."""
    page = Path(app.env.doc2path(name))
    pages = app.env.checkout_pages

    def include(found: re.Match) -> str:
        file = (page.parent / found[1]).resolve()
        app.env.note_dependency(str(file))
        return relink(file.read_text(), file, page, pages)

    text = relink(content[0], page, page, pages)
    content[0] = INCLUDE.sub(include, text)


def find_pages(app: Sphinx, env, docnames):
    env.checkout_pages = including_pages(Path(app.srcdir))


def setup(app: Sphinx) -> dict:
    app.connect('env-before-read-docs', find_pages)
    app.connect('source-read', read)
    return {'parallel_read_safe': True, 'parallel_write_safe': True}

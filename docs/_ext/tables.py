"""Fill in the tables that pages ask for, and draw the diagrams of models."""

import re
from pathlib import Path

from sphinx.application import Sphinx
from sphinx.util import logging

from tools.dev.diagrams import write_diagrams
from tools.dev.markdown import filled
from tools.dev.tables import committed_pages, tables_for

LOGGER = logging.getLogger(__name__)
DIAGRAM = re.compile(r'\]\(\.\./images/models/(\w+?)_([\w-]+)\.svg\)')


def draw(app: Sphinx):
    docs = Path(app.srcdir)
    pages = sorted((docs / 'models').glob('*.md'))
    shown = [each for page in pages for each in DIAGRAM.findall(page.read_text())]
    write_diagrams(docs / 'images/models', shown)


def fill(app: Sphinx, name: str, content: list[str]):
    page = Path(app.env.doc2path(name))
    text = filled(content[0], tables_for(page))
    if text != content[0] and page in committed_pages():
        LOGGER.warning('%s is out of date: run python -m tools.dev.tables', page)
    content[0] = text


def setup(app: Sphinx) -> dict:
    app.connect('builder-inited', draw)
    app.connect('source-read', fill, priority=400)  # before links are resolved
    return {'parallel_read_safe': True, 'parallel_write_safe': True}

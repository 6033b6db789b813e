"""Fill in the tables that pages ask for, and draw the diagrams of models."""

import re
from pathlib import Path

from sphinx.application import Sphinx

from tools.dev.diagrams import write_diagrams
from tools.dev.markdown import filled
from tools.dev.tables import tables_for

DIAGRAM = re.compile(r'\]\(\.\./images/models/(\w+?)_([\w-]+)\.svg\)')


def draw(app: Sphinx):
    docs = Path(app.srcdir)
    pages = sorted((docs / 'models').glob('*.md'))
    shown = [each for page in pages for each in DIAGRAM.findall(page.read_text())]
    write_diagrams(docs / 'images/models', shown)


def fill(app: Sphinx, name: str, content: list[str]):
    page = Path(app.env.doc2path(name))
    if page.name != 'model_zoo.md':  # which has its tables in git
        content[0] = filled(content[0], tables_for(page))


def setup(app: Sphinx) -> dict:
    app.connect('builder-inited', draw)
    app.connect('source-read', fill, priority=400)  # before links are resolved
    return {'parallel_read_safe': True, 'parallel_write_safe': True}

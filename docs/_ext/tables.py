"""Fill in the tables that pages ask for."""

from pathlib import Path

from sphinx.application import Sphinx
from sphinx.util import logging

from tools.dev.markdown import filled
from tools.dev.tables import committed_pages, tables_for

LOGGER = logging.getLogger(__name__)


def fill(app: Sphinx, name: str, content: list[str]):
    page = Path(app.env.doc2path(name))
    text = filled(content[0], tables_for(page))
    if text != content[0] and page in committed_pages():
        LOGGER.warning('%s is out of date: run python -m tools.dev.tables', page)
    content[0] = text


def setup(app: Sphinx) -> dict:
    app.connect('source-read', fill, priority=400)  # before links are resolved
    return {'parallel_read_safe': True, 'parallel_write_safe': True}

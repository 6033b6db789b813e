"""Settings of the documentation site; `make docs` builds it into `build/docs`."""

import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / 'docs' / '_ext')]

import mmattn  # noqa: E402

project = 'mmattn'
author = 'The mmattn developers'
project_copyright = author
version = release = mmattn.__version__

extensions = [
    'myst_nb',
    'sphinx.ext.autodoc',
    'sphinx.ext.autosummary',
    'sphinx.ext.napoleon',
    'sphinx_copybutton',
    'sphinx_design',
    'checkout_links',
    'equations',
    'plain_docstrings',
    'tables',
]
exclude_patterns = ['_ext', '_templates']
templates_path = ['_templates']
default_role = 'literal'  # of docstrings, whose code is in single backticks
nitpicky = False

# Facts of the first page, which `pyproject.toml` has.
package = tomllib.loads((ROOT / 'pyproject.toml').read_text())['project']
address = package.get('urls', {}).get('Repository')
nowhere = 'no public address yet: it will stand here'
myst_substitutions = {
    'release': release,
    'license': package['license'],
    'repository': f'<{address}>' if address else nowhere,
}

# Fences and headings are GitHub's, so that pages can be read there too.
myst_enable_extensions = ['colon_fence', 'dollarmath', 'substitution']
myst_fence_as_directive = ['math']
myst_heading_anchors = 3
# A tutorial may begin with its second level, and print what no lexer knows.
suppress_warnings = ['myst.header', 'misc.highlighting_failure']

# Tutorials run when their text changes; `-D nb_execution_mode=off` skips them.
nb_execution_mode = 'cache'
nb_execution_cache_path = str(ROOT / 'build' / 'notebooks')
nb_execution_raise_on_error = True
nb_execution_timeout = 1200
nb_merge_streams = True
nb_output_stderr = 'remove'  # progress bars and warnings; an error ends the build

autodoc_typehints = 'signature'
autodoc_inherit_docstrings = False
autodoc_member_order = 'bysource'
napoleon_custom_sections = [
    'Forward',
    ('Settings of the backbones', 'params_style'),
]
napoleon_use_ivar = True
napoleon_use_rtype = False

html_theme = 'furo'
html_title = f'mmattn {release}'
html_static_path = ['_static']
html_css_files = ['site.css']
html_show_sphinx = False
copybutton_exclude = '.linenos, .gp, .go'

# The page of `mmattn export --web` in `build/live/demo`, where somebody has made it.
LIVE = ROOT / 'build' / 'live'
if LIVE.is_dir():
    html_extra_path = [str(LIVE)]
    tags.add('live_demo')  # noqa: F821  of Sphinx

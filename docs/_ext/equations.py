"""Draw equations as SVG, by matplotlib: alike in all browsers, without fonts of theirs.

A row of `aligned` is a row of a table, whose columns meet at `&`.
"""

import re
from html import escape

from docutils import nodes
from matplotlib.font_manager import FontProperties
from matplotlib.mathtext import MathTextParser
from matplotlib.path import Path
from matplotlib.textpath import TextPath
from sphinx.application import Sphinx

SIZE = 100  # of an em, in units of the paths
FONT = FontProperties(size=SIZE, math_fontfamily='cm')
PARSER = MathTextParser('path')
LETTERS = {Path.MOVETO: 'M', Path.LINETO: 'L', Path.CURVE3: 'Q', Path.CURVE4: 'C'}
ALIGNED = re.compile(r'^\\begin{aligned}(.*)\\end{aligned}$')
SUM = re.compile(r'\\sum(_(\w|{[^}]*}))?')  # with its limit, before a thin space
# What TeX has and matplotlib lacks.
PLAIN = {r'\tfrac': r'\frac', r'\big': '', r'\Big': ''}


def svg(tex: str) -> str:
    """Return a formula as an SVG image that stands on the baseline of its line."""
    tex = SUM.sub(r'\g<0>\\,', tex)
    tex = re.sub(r'\\[A-Za-z]+', lambda found: PLAIN.get(found[0], found[0]), tex)
    width, height, depth, *_ = PARSER.parse(f'${tex}$', dpi=72, prop=FONT)
    parts = [
        'Z' if code == Path.CLOSEPOLY else LETTERS[code] + '%.0f ' * len(xy) % tuple(xy)
        for xy, code in TextPath((0, 0), f'${tex}$', prop=FONT).iter_segments()
    ]
    return (
        f'<svg style="width:{width / SIZE:.2f}em;height:{height / SIZE:.2f}em;'
        f'vertical-align:{-depth / SIZE:.2f}em" '
        f'viewBox="0 {depth - height:.0f} {width:.0f} {height:.0f}">'
        f'<path transform="scale(1 -1)" d="{"".join(parts)}"/></svg>'
    )


def formula(tex: str, tag: str, content: str) -> str:
    label = f'role="math" aria-label="{escape(tex)}"'
    return f'<{tag} class="equation" {label}>{content}</{tag}>'


def visit_math(writer, node: nodes.math):
    tex = node.astext()
    writer.body.append(formula(tex, 'span', svg(tex)))
    raise nodes.SkipNode


def visit_math_block(writer, node: nodes.math_block):
    tex = ' '.join(node.astext().split())
    aligned = ALIGNED.match(tex)
    rows = aligned[1].split(r'\\') if aligned else [tex]
    lines = []
    for row in rows:
        cells = [cell.strip() for cell in row.split('&')]
        drawn = [f'<td>{svg(cell) if cell else ""}</td>' for cell in cells]
        lines.append(f'<tr>{"".join(drawn)}</tr>')
    writer.body.append(formula(tex, 'div', f'<table>{"".join(lines)}</table>'))
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict:
    app.add_html_math_renderer('svg', (visit_math, None), (visit_math_block, None))
    app.config.html_math_renderer = 'svg'
    return {'parallel_read_safe': True, 'parallel_write_safe': True}

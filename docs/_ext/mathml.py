"""Write equations as MathML, which browsers draw without a script or a network."""

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.application import Sphinx


def visit_math(writer, node: nodes.math):
    writer.body.append(convert(node.astext()))
    raise nodes.SkipNode


def visit_math_block(writer, node: nodes.math_block):
    # GitHub draws `aligned`, which the converter has as `align*`.
    text = node.astext().replace('{aligned}', '{align*}')
    equation = convert(text, display='block')
    writer.body.append(f'<div class="equation">{equation}</div>')
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict:
    app.add_html_math_renderer('mathml', (visit_math, None), (visit_math_block, None))
    app.config.html_math_renderer = 'mathml'
    return {'parallel_read_safe': True, 'parallel_write_safe': True}

"""Tables of figures as text."""

from collections.abc import Mapping


def class_table(rows: Mapping[str, Mapping[str, float]]) -> str:
    """Return a table of the figures of each class, with three decimals."""
    widths = {item: max(len(item), 5) for item in next(iter(rows.values()))}
    first = max(map(len, [*rows, 'class']))
    lines = [['class'.ljust(first), *(item.rjust(n) for item, n in widths.items())]]
    for name, row in rows.items():
        figures = (f'{row[item]:{n}.3f}' for item, n in widths.items())
        lines.append([name.ljust(first), *figures])
    return '\n'.join('  '.join(line) for line in lines)

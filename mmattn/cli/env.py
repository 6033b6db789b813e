"""Report versions, mm packages, the backend of each operator, and problems.

Paste the output into an issue. Each problem comes with a command that mends it, and the
exit status is 1 if there is a problem. The tool requires only torch. It asks backends
what they support and runs none of them.
"""

import argparse
import json
import sys

from .terminal import command_parser


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    parser = command_parser(__doc__)
    parser.add_argument('--json', action='store_true', help='print the report as JSON')
    return parser.parse_args(argv)


def as_text(found: dict) -> str:
    """Return the report as sections of aligned lines."""
    sections = [_section('Machine', found['machine'])]
    sections.append(_section('Packages', found['packages']))
    packages = {
        package: ', '.join(
            f'{name} {version} ({family})'
            for family, versions in families.items()
            for name, version in versions.items()
        )
        or 'not installed'
        for package, families in found['mm packages'].items()
    }
    packages['mmcv operators'] = found['mmcv operators']
    sections.append(_section('mm packages', packages))
    corrections = found['corrections']
    sections.append(_section('Corrections of other packages', corrections))
    sections.append(_section('Operators', _operator_lines(found['operators'])))
    problems = [f'{p["what"]}\n    run: {p["remedy"]}' for p in found['problems']]
    sections.append('\n  '.join([f'Problems: {len(problems) or "none"}', *problems]))
    return '\n\n'.join(sections)


def _section(title: str, rows: dict[str, str]) -> str:
    width = max(map(len, rows), default=0)
    return '\n'.join([title, *(f'  {k:<{width}}  {v}' for k, v in rows.items())])


def _operator_lines(operators: list[dict]) -> dict[str, str]:
    """Return the backend of each call, and the reasons against the others."""
    lines = {}
    for row in operators:
        reasons = '; '.join(f'{k}: {v}' for k, v in row['unsupported'].items())
        lines[f'{row["operator"]} {row["device"]} {row["dtype"]}'] = (
            f'{row["backend"] or "none"}{f" ({reasons})" if reasons else ""}'
        )
    return lines


def main(argv: list[str] | None = None) -> int:
    args = parse_args(argv)
    from .environment import report

    found = report(lambda line: print(line, file=sys.stderr, flush=True))
    print(json.dumps(found, indent=2) if args.json else as_text(found))
    return int(bool(found['problems']))

"""Reports versions, mm packages, the backend of each operator, and problems.

Paste its output into an issue. Each problem comes with what to run to mend it, and the
exit status is 1 when there is one. It needs torch alone; mm packages may be missing.
"""

import argparse
import json
import sys

from mmattn.analysis.environment import report


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('--json', action='store_true', help='print it as JSON')
    return parser.parse_args(argv)


def as_text(found: dict) -> str:
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
    sections.append(_section('Operators', _operator_lines(found['operators'])))
    problems = [f'{p["what"]}\n    run: {p["mend"]}' for p in found['problems']]
    sections.append('\n  '.join([f'Problems: {len(problems) or "none"}', *problems]))
    return '\n\n'.join(sections)


def _section(title: str, rows: dict[str, str]) -> str:
    width = max(map(len, rows), default=0)
    return '\n'.join([title, *(f'  {k:<{width}}  {v}' for k, v in rows.items())])


def _operator_lines(operators: list[dict]) -> dict[str, str]:
    """One line for each call, then the reasons against the other backends."""
    lines = {}
    for row in operators:
        reasons = '; '.join(f'{k}: {v}' for k, v in row['unsupported'].items())
        lines[f'{row["operator"]} {row["device"]} {row["dtype"]}'] = (
            f'{row["backend"] or "none"}{f" ({reasons})" if reasons else ""}'
        )
    return lines


def main(argv: list[str] | None = None) -> int:
    args = parse_args(argv)
    found = report()
    print(json.dumps(found, indent=2) if args.json else as_text(found))
    return int(bool(found['problems']))


if __name__ == '__main__':
    sys.exit(main())

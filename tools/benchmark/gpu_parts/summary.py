"""Turn what tasks wrote into report.md, report.json and csv files."""

import csv
import json
import os
import time
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

from . import log as lines_of
from . import tiles

MAX_ROWS = 400  # of a table in report.md
MAX_TRACE = 3000  # characters of a traceback in report.md


def write(settings: lines_of.Settings, started: float) -> list[str]:
    """Rewrite the report, and return what was wrong."""
    lines = {
        path.stem: lines_of.read(path)
        for path in sorted(settings.lines.glob('*.jsonl'))
    }
    tables, errors, left_out = {}, [], []
    for task, found in lines.items():
        for line in found:
            if line['kind'] == 'row':
                tables.setdefault(line['table'], []).append(line['row'])
            elif line['kind'] == 'error':
                errors.append({'task': task} | line)
            elif line['kind'] == 'left out':
                left_out.append({'task': task} | line)
    wrong = list(failures(tables, errors))
    about = {
        'dry run': settings.dry_run,
        'minutes': round((time.time() - started) / 60, 1),
        'finished': time.strftime('%Y-%m-%d %H:%M:%S'),
    }
    report = {
        'about': about,
        'wrong': wrong,
        'tables': tables,
        'errors': errors,
        'left out': left_out,
    }
    replace(settings.out / 'report.json', json.dumps(report, indent=1))
    for name, rows in tables.items():
        write_csv(settings.out / f'{name}.csv', rows)
    replace(settings.out / 'report.md', '\n'.join(markdown(report)) + '\n')
    return wrong


def failures(tables: dict[str, list[dict]], errors: list[dict]) -> Iterator[str]:
    """Yield what makes the report fail: wrong results, and errors of checks."""
    for rows in tables.values():
        for row in rows:
            if row.get('passed') is False:
                yield ', '.join(f'{key} {value}' for key, value in row.items())
    for error in errors:
        part = import_module(f'.{error["task"].partition("-")[0]}', __package__)
        if error['message'].startswith('stopped'):
            continue  # a slow case is no wrong one
        is_wrong = error['message'].startswith('AssertionError')
        if is_wrong or getattr(part, 'CRITICAL', False):
            yield f'{error["task"]}, {error["case"]}: {error["message"]}'


def replace(path: Path, text: str):
    """Write a file in one step, so that a kill leaves the old one or the new one."""
    draft = path.with_name(f'.{path.name}')
    draft.write_text(text)
    os.replace(draft, path)


def write_csv(path: Path, rows: list[dict]):
    columns = list(dict.fromkeys(column for row in rows for column in row))
    draft = path.with_name(f'.{path.name}')
    with draft.open('w', newline='') as file:
        writer = csv.DictWriter(file, columns, lineterminator='\n')
        writer.writeheader()
        writer.writerows(rows)
    os.replace(draft, path)


def markdown(report: dict) -> Iterator[str]:
    yield '# GPU report'
    yield ''
    for name, value in report['about'].items():
        yield f'- {name}: {value}'
    yield f'- wrong results: {len(report["wrong"])}'
    yield f'- errors: {len(report["errors"])}'
    yield f'- left out: {len(report["left out"])}'
    for failure in report['wrong']:
        yield f'- **wrong**: {first_line(failure)}'
    for name, rows in report['tables'].items():
        yield from ('', f'## {name}', '')
        yield from as_table(summarized(name, rows)[:MAX_ROWS])
        if name == 'tiles':
            entries = list(tiles.advice(rows)) or ['no other tiles are faster']
            yield from ('', 'To put into the launchers:', '', '```', *entries, '```')
    if report['left out']:
        yield from ('', '## Left out', '')
        for line in report['left out']:
            yield f'- {line["case"]}: {line["why"]}'
    if report['errors']:
        yield from ('', '## Errors', '')
    for error in report['errors']:
        yield f'- {error["task"]}, {error["case"]}: {first_line(error["message"])}'
        yield from ('', '```', error['traceback'][-MAX_TRACE:].strip(), '```', '')


def summarized(name: str, rows: list[dict]) -> list[dict]:
    """Return one row for each operator, backend and dtype of the checks."""
    if name != 'correctness':
        return rows
    groups = {}
    for row in rows:
        key = row['operator'], row['backend'], row['dtype']
        groups.setdefault(key, []).append(row)
    made = []
    for (operator, backend, dtype), group in groups.items():
        worst = max(group, key=lambda row: row['error'])
        made.append(
            {
                'operator': operator,
                'backend': backend,
                'dtype': dtype,
                'calls': len(group),
                'passed': sum(row['passed'] for row in group),
                'largest error / tolerance': worst['error'],
                'of': f'{worst["of"]}: {worst["call"]}',
            }
        )
    return made


def as_table(rows: list[dict]) -> Iterator[str]:
    columns = list(dict.fromkeys(column for row in rows for column in row))
    yield f'| {" | ".join(columns)} |'
    yield f'|{"|".join("---" for _ in columns)}|'
    for row in rows:
        cells = (str(row.get(column, '')) for column in columns)
        yield f'| {" | ".join(cell.replace("|", "/") for cell in cells)} |'


def first_line(text: str) -> str:
    return text.partition('\n')[0]

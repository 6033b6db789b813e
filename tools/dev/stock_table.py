"""Name the reasons why a model fails, and write the page of results."""

import csv
import re
import traceback
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import mmattn
from tools.dev.readme_tables import markdown

# Reasons that lie outside of the packages' code, of mmcv's operators and of mmattn.
SURROUNDINGS = {
    'dependency': 'needs a package that is not installed',
    'download': 'downloads weights or a vocabulary, which the sweep does not',
    'memory': 'needs more memory than the sweep allows',
    'time': 'needs more time than the sweep allows',
    'config': 'cannot be read by mmengine, so there is no model to build',
}
PACKAGE_ERROR = 'package'
OTHERS = {
    PACKAGE_ERROR: "fails in the package's own code, at the line given below",
    'operator': 'calls an operator of mmcv that mmattn does not provide',
    'error': 'fails otherwise',
    'killed': 'ends its process',
}
NOT_REACHED = 'not reached'
STAGES = {'build': 'builds', 'step': 'steps', 'predict': 'predicts'}
CSV = 'stock_configs.csv'
MMATTN = str(Path(mmattn.__file__).parent)
OPERATORS = '/mmcv/ops/'
PACKAGE = re.compile(r'/((?:mmdet|mmseg|mmpretrain|mmengine|mmcv)/.*)')
# Reasons by what messages say, with the errors that may say so. What the pattern's
# group has, or the last entry, is the detail; None stands for the whole message.
ANY, MISSING = Exception, (ImportError, RuntimeError)
SIGNS = [
    ('operator', ANY, r"mmattn does not provide '(\w+)'", None),
    ('dependency', ANY, 'has no attribute batch_encode_plus', 'transformers<5'),
    # mmdet's fusion layers derive from `object` where their import failed.
    ('dependency', ANY, r'object.__init__\(\) takes exactly one', 'transformers<5'),
    ('dependency', ANY, 'To use VPD model', 'ldm'),
    ('design', ANY, 'train `detector` and `reid` models firstly', None),
    ('design', ANY, "doesn't support to train", None),
    ('dependency', ANY, r"No module named '(\w+)", None),
    ('download', OSError, r'downloads nothing, got host ([\w.-]+)', None),
    ('download', OSError, 'offline|t connect|t load|Hub', None),
    ('dependency', MISSING, r'pip install (?:-\S+ )*"?([\w-]+(?:\[\w+\])?)', None),
    ('dependency', MISSING, r'([\w-]+) is not installed', None),
    ('dependency', MISSING, r'[Pp]lease install ([\w-]+)', None),
    ('memory', MemoryError, '', None),
    ('memory', ANY, 't allocate memory|not enough memory|DefaultCPUAllocator', None),
]


def raised_at(error: Exception) -> str:
    """Return the line of an OpenMMLab package that an error comes from.

    It is empty if an operator of mmcv or mmattn is on the way to the error: then their
    result may be the cause.
    """
    line = ''
    for frame in traceback.extract_tb(error.__traceback__):
        if frame.filename.startswith(MMATTN) or OPERATORS in frame.filename:
            return ''
        if match := PACKAGE.search(frame.filename):
            line = f'{match[1]}:{frame.lineno}'
    return line


def classify(error: Exception) -> tuple[str, str]:
    """Return the reason for a failure, and what it says about it."""
    text = ' '.join(str(error).split())
    message = f'{type(error).__name__}: {text}'[:300]
    for reason, kinds, pattern, detail in SIGNS:
        if isinstance(error, kinds) and (match := re.search(pattern, text)):
            if match.groups():
                detail = match[1].lower() if kinds is MISSING else match[1]
            return reason, detail or message
    if place := raised_at(error):
        return PACKAGE_ERROR, f'{place}: {message}'
    return 'error', message


def gathered(lines: Iterable[dict]) -> dict:
    """Return one result from all that a trial reported, at whichever size it passed."""
    result: dict = {'passed': []}
    for line in lines:
        stage = line.pop('stage', None)
        if stage and stage not in result['passed']:
            result['passed'].append(stage)
        result.update(line)
    if 'predict' in result['passed']:
        for key in ('reason', 'detail', 'trace', 'failed_at'):
            result.pop(key, None)
    return result


def rows_of(entries: Iterable[dict], done: dict[str, dict]) -> list[dict]:
    """Return one row for each distinct model of a method, tried or not."""
    rows = []
    for entry in entries:
        result = done.get(entry['model'], {'reason': NOT_REACHED})
        methods: dict[str, list[str]] = {}
        for path in entry['configs']:
            methods.setdefault(path.partition('/')[0], []).append(path)
        for method, paths in methods.items():
            row = {
                'package': entry['package'],
                'method': method,
                'configs': len(paths),
            }
            for stage, column in STAGES.items():
                row[column] = int(stage in result.get('passed', ()))
            if 'untrained' in result:
                row['steps'] = ''
            row['reason'] = result.get('reason', '')
            row['detail'] = result.get('detail', '')
            row['on'] = result.get('on', '')
            rows.append({key: str(value) for key, value in row.items()})
    return rows


def count(rows: Iterable[dict]) -> int:
    """Return the number of configs that the rows stand for."""
    return sum(int(row['configs']) for row in rows)


def where(rows: Iterable[dict], **values: str) -> list[dict]:
    """Return the rows that have these values."""
    return [row for row in rows if all(row[k] == v for k, v in values.items())]


def percent(part: int, whole: int) -> str:
    """Return a share, rounded down so that 100 % means all."""
    return f'{int(1000 * part / whole) / 10:.1f} %' if whole else ''


def groups(rows: Iterable[dict], *keys: str) -> dict[tuple[str, ...], list[dict]]:
    """Return the rows by the values of some columns, in order."""
    found: dict[tuple[str, ...], list[dict]] = {}
    for row in rows:
        found.setdefault(tuple(row[key] for key in keys), []).append(row)
    return dict(sorted(found.items()))


def stages(rows: list[dict]) -> list[str]:
    """Return how many configs pass each stage; `-` where no model has the stage."""
    counts = []
    for column in STAGES.values():
        have = [row for row in rows if row[column]]
        counts.append(str(count(where(have, **{column: '1'}))) if have else '-')
    return counts


def by_method(rows: Iterable[dict]) -> list[dict]:
    """Return one row for each method of a package, with counts of its configs."""
    found = []
    for (package, method), group in groups(rows, 'package', 'method').items():
        why: Counter[str] = Counter()
        for row in group:
            if row['reason']:
                why[explained(row)] += int(row['configs'])
        row = dict(package=package, method=method, models=str(len(group)))
        row['configs'] = str(count(group))
        row |= zip(STAGES.values(), stages(group), strict=True)
        row['reasons'] = '; '.join(f'{number} x {text}' for text, number in why.items())
        row['on'] = ' / '.join(sorted({each['on'] for each in group} - {''}))
        found.append(row)
    return found


def explained(row: dict) -> str:
    """Return why a model did not pass, in a few words."""
    detail = re.sub('[|`;]', ' ', row['detail']).partition(': ')[0]
    is_told = detail and row['reason'] not in ('config', 'memory', 'time', 'killed')
    return f'{row["reason"]}: {detail}' if is_told else row['reason']


def failures(rows: Iterable[dict]) -> Counter[tuple[str, str]]:
    """Return the number of configs by their reason and its detail."""
    found: Counter[tuple[str, str]] = Counter()
    for row in rows:
        for text in filter(None, row['reasons'].split('; ')):
            number, _, why = text.partition(' x ')
            reason, _, detail = why.partition(': ')
            found[reason, detail] += int(number)
    return found


def summary(rows: list[dict]) -> str:
    """Return the table with a line for each package and one for all."""
    lines = []
    for name, group in [*groups(rows, 'package').items(), (('all',), rows)]:
        failed: Counter[str] = Counter()
        for (reason, _), number in failures(group).items():
            failed[reason] += number
        tried = count(group) - failed[NOT_REACHED]
        good = count(group) - failed.total()
        passed = [
            sum(int(row[column]) for row in group if row[column] != '-')
            for column in STAGES.values()
        ]
        line = [*name, count(group), tried, *passed, good, percent(good, tried)]
        for elsewhere in (SURROUNDINGS, [*SURROUNDINGS, PACKAGE_ERROR]):
            able = tried - sum(failed[reason] for reason in elsewhere)
            line += [able, percent(good, able)]
        lines.append(line)
    head = ['package', 'configs', 'tried', *STAGES.values(), 'pass', 'of tried']
    head += ['with dependencies', 'of these', 'up to operators', 'of these']
    return markdown([head, *lines])


def reasons(rows: list[dict]) -> str:
    """Return the table of reasons, the frequent ones first."""
    words = {**SURROUNDINGS, **OTHERS, NOT_REACHED: 'waits for the next run'}
    failed: dict[str, dict[str, int]] = {}
    for (reason, detail), number in sorted(failures(rows).items()):
        failed.setdefault(reason, {})[detail] = number
    lines = []
    for reason, details in failed.items():
        which = [f'`{detail}` ({number})' for detail, number in details.items()]
        is_listed = reason in ('dependency', 'operator')
        text = ', '.join(which) if is_listed else ''
        lines.append((reason, sum(details.values()), words[reason], text))
    lines.sort(key=lambda line: -line[1])
    return markdown([['reason', 'configs', 'the model', 'which'], *lines])


def methods(rows: list[dict]) -> str:
    """Return a list of the methods that pass and a table of the others, by package."""
    text = ''
    for (package,), group in groups(rows, 'package').items():
        good = [f'{row["method"]} {row["configs"]}' for row in where(group, reasons='')]
        text += f'### {package}\n\nAll configs pass: {", ".join(good)}.\n\n'
        columns = 'method', 'configs', *STAGES.values(), 'reasons'
        others = [[row[key] for key in columns] for row in group if row['reasons']]
        if others:
            text += markdown([['other methods', *columns[1:-1], 'why not'], *others])
            text += '\n'
    return text


PAGE = """# Stock configs without a compiled mmcv

`python -m tools.dev.sweep_stock_configs` takes every config of mmdet, mmseg and
mmpretrain, builds its model, trains for one step and predicts. mmcv is installed
without compiled operators: `mmattn.compat` provides them. With `--table` the tool
writes this page and `stock_configs.csv`, which has one row for each method.

- Models of a method that are equal but for their weights are tried once:
  {models} models stand for {configs} configs. Files without a model, which other
  configs inherit, are left out.
- Weights and images are random. Images have 64 to 256 pixels a side, or the config's
  own size where the model accepts no other. Proposals and samples are few.
- A config passes if its model builds, trains one step with finite losses, and predicts.
  The model's own data preprocessor, loss and test step run.
- Self-supervised models and backbones without a head extract features instead of
  predicting. Trackers that have no loss by design are not trained.
- BERT, which GLIP and Grounding DINO download, is an untrained one with two layers.
- The sweep does not show that results are right. The tests of `mmattn.compat` do.

{summary}
The columns from `with dependencies` on leave out configs that fail for a reason outside
of the packages' code: a missing dependency, a download, memory, time, or a config that
mmengine cannot read. Those from `up to operators` on also leave out configs whose error
is raised in the package's own Python code, with neither mmcv's operators nor mmattn in
the traceback. The tables of methods name the line. No compiled mmcv was at hand to try
them with.

## Reasons

{reasons}
## Methods

{methods}Measured with {environments}.
"""


def page(rows: list[dict]) -> str:
    """Return the page as Markdown."""
    return PAGE.format(
        models=sum(int(row['models']) for row in rows),
        configs=count(rows),
        summary=summary(rows),
        reasons=reasons(rows),
        methods=methods(rows),
        environments='; '.join(sorted({row['on'] for row in rows} - {''})),
    )


def write(docs: Path, entries: Iterable[dict], done: dict[str, dict]):
    """Write the csv, and the page from it."""
    rows = by_method(rows_of(entries, done))
    with (docs / CSV).open('w', newline='') as file:
        writer = csv.DictWriter(file, rows[0], lineterminator='\n')
        writer.writeheader()
        writer.writerows(rows)
    (docs / 'stock_configs.md').write_text(page(read(docs / CSV)))


def read(path: Path) -> list[dict]:
    """Return the rows of the csv."""
    with path.open(newline='') as file:
        return list(csv.DictReader(file))

"""Score the tests by random one-line mutants of `mmattn`.

    python -m tools.dev.mutants map                 which tests run which line
    python -m tools.dev.mutants draw --number 300   random mutants, one a line
    python -m tools.dev.mutants run                 the tests' verdict on each

All keep their results in `--work`. `run` goes on where it stopped. A mutant gets
the tests that run its line, the quickest first, up to `--seconds` of CPU time.
`draw --of OTHER` and `run --of OTHER` compare two suites: they draw the same mutants
again, found by the text of their lines, and leave out those that survived the other.

Needs Python 3.12 (sys.monitoring) and Linux (fork).
"""

import argparse
import ast
import collections
import contextlib
import importlib
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tools.dev.line_map import INTERPRETED, MAP, ROOT

# Slow to import, and not corrected by mmattn.compat: loaded once, then forked.
PRELOADED = (
    'torch torch._dynamo torchvision timm scipy.optimize matplotlib.pyplot cv2 pandas '
    'pycocotools.mask onnx onnxruntime onnxscript gradio pytest'
).split()
SWAPS = {
    ast.Lt: '<=', ast.LtE: '<', ast.Gt: '>=', ast.GtE: '>', ast.Eq: '!=',
    ast.NotEq: '==', ast.Is: 'is not', ast.IsNot: 'is', ast.In: 'not in',
    ast.NotIn: 'in', ast.Add: '-', ast.Sub: '+', ast.Mult: '/', ast.Div: '*',
    ast.FloorDiv: '*', ast.Mod: '*', ast.Pow: '*', ast.MatMult: '+', ast.And: 'or',
    ast.Or: 'and', ast.BitAnd: '|', ast.BitOr: '&',
}  # fmt: skip


def make_map(work: Path, arguments: list[str]):
    folder = work / 'lines'
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    environment = os.environ | {
        MAP: str(folder),
        'PYTEST_ADDOPTS': '-p tools.dev.line_map',
        'PYTHONPATH': str(ROOT),
    }
    command = [sys.executable, '-m', 'pytest', '-q', *arguments]
    subprocess.run(command, cwd=ROOT, env=environment)


# --- mutants ------------------------------------------------------------------------


def mutants_of(file: str) -> list[dict]:
    """Return every mutant of a file that replaces a part of one line."""
    text = (ROOT / file).read_text()
    lines = text.splitlines()
    found = []

    def add(first, last, new, runs):
        """Replace what lies between two positions, which are (line, column)."""
        line = lines[first[0] - 1]
        if first[0] != last[0] or not line.isascii():
            return
        mutated = line[: first[1]] + new + line[last[1] :]
        if mutated != line and parses(
            [*lines[: first[0] - 1], mutated, *lines[first[0] :]]
        ):
            found.append(
                dict(file=file, line=first[0], text=line, mutated=mutated, runs=runs)
            )

    def swap(left, right, operator, runs):
        first = left.end_lineno, left.end_col_offset
        last = right.lineno, right.col_offset
        # Parentheses around an operand lie between the two, as well.
        if not set('()') & set(lines[first[0] - 1][first[1] : last[1]]):
            add(first, last, f' {SWAPS[type(operator)]} ', runs)

    for node, runs in walk(ast.parse(text)):
        if not hasattr(node, 'lineno'):
            continue
        begin = node.lineno, node.col_offset
        end = node.end_lineno, node.end_col_offset
        match node:
            case ast.Compare(left=left, ops=[operator], comparators=[right]):
                swap(left, right, operator, runs)
            case ast.BinOp(left=left, op=operator, right=right):
                if type(operator) in SWAPS:
                    swap(left, right, operator, runs)
            case ast.BoolOp(op=operator, values=[left, right, *_]):
                swap(left, right, operator, runs)
            case ast.UnaryOp(op=ast.Not()):
                add(begin, (begin[0], begin[1] + len('not ')), '', runs)
            case ast.Constant(value=bool(value)):
                add(begin, end, str(not value), runs)
            case ast.Constant(value=int(value) | float(value)):
                add(begin, end, repr(value + 1), runs)
            case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test):
                first = test.lineno, test.col_offset
                last = test.end_lineno, test.end_col_offset
                old = lines[first[0] - 1][first[1] : last[1]]
                add(first, last, f'(not ({old}))', runs)
            case ast.Return(value=ast.expr()):
                add(begin, end, 'return None', runs)
            case ast.Raise() | ast.Expr(value=ast.Call()):
                add(begin, end, 'pass', runs)
    return found


def parses(lines: list[str]) -> bool:
    try:
        ast.parse('\n'.join(lines))
    except SyntaxError:
        return False
    return True


def walk(node: ast.AST, within: tuple[int, int] | None = None):
    """Yield nodes with the lines that a test of them runs; None is any of the file.

    What runs while a module is imported counts for one test only in the map.
    """
    for child in ast.iter_child_nodes(node):
        lines = within
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = child.body[0].lineno, child.end_lineno
        elif isinstance(child, ast.ClassDef):
            lines = None
        elif within and isinstance(child, ast.stmt):
            body = getattr(child, 'body', None)
            last = body[0].lineno - 1 if body else child.end_lineno
            lines = child.lineno, max(child.lineno, last)
        yield child, lines
        yield from walk(child, lines)


def draw(work: Path, number: int, seed: int, keep: Path | None):
    """Write random mutants, those of another suite first that still have their line."""
    files = subprocess.run(
        ['git', 'ls-files', 'mmattn/*.py'], cwd=ROOT, capture_output=True, text=True
    ).stdout.split()
    every = [mutant for file in files for mutant in mutants_of(file)]
    chosen = []
    if keep:
        index = collections.defaultdict(list)
        for mutant in every:
            index[mutant['text'].strip(), mutant['mutated'].strip()].append(mutant)
        for old in json.loads((keep / 'mutants.json').read_text()):
            found = index[old['text'].strip(), old['mutated'].strip()]
            found.sort(key=lambda mutant: mutant['file'] != old['file'])
            if found:
                chosen.append(found[0] | {'before': old['id']})
    kept = len(chosen)
    generator = random.Random(seed)
    while len(chosen) < number:
        mutant = generator.choice(every)
        taken = {(other['file'], other['line']) for other in chosen}
        if (mutant['file'], mutant['line']) not in taken:
            chosen.append(mutant)
    for i, mutant in enumerate(chosen):
        mutant['id'] = i
    work.mkdir(parents=True, exist_ok=True)
    (work / 'mutants.json').write_text(json.dumps(chosen, indent=1))
    print(f'{len(chosen)} of {len(every):,} mutants drawn, {kept} of them kept')


# --- verdicts -----------------------------------------------------------------------


class Tests:
    """The tests that run a line."""

    def __init__(self, work: Path):
        self.tests = []
        for path in (work / 'lines').glob('*.json'):
            self.tests += json.loads(path.read_text())
        self.by_line = collections.defaultdict(list)
        self.by_file = collections.defaultdict(list)
        for number, (*_, files) in enumerate(self.tests):
            for file, lines in files.items():
                self.by_file[file].append(number)
                for line in lines:
                    self.by_line[file, line].append(number)

    def of(self, mutant: dict, seconds: float) -> list[tuple[bool, list[str]]]:
        """Return the quickest tests of a mutant, and those that interpret Triton."""
        found = self.by_file[mutant['file']]
        if mutant['runs']:
            first, last = mutant['runs']
            found = set().union(
                *(self.by_line[mutant['file'], i] for i in range(first, last + 1))
            )
        quickest = sorted(found, key=lambda i: (self.tests[i][2], i))
        groups = []
        for interpreted in (False, True):
            names, left = [], seconds
            for name, within, cost, _ in map(self.tests.__getitem__, quickest):
                if within == interpreted:
                    left -= cost
                    if names and left < 0:
                        break
                    names.append(name)
            groups.append((interpreted, names))
        return groups


@contextlib.contextmanager
def mutated(tree: Path, mutant: dict):
    path = tree / mutant['file']
    original = path.read_text()
    lines = original.splitlines()
    if lines[mutant['line'] - 1] != mutant['text']:
        raise ValueError(f'{path}:{mutant["line"]} is not {mutant["text"]!r}')
    lines[mutant['line'] - 1] = mutant['mutated']
    path.write_text('\n'.join(lines) + '\n')
    # Python takes a file of the same second and size for unchanged.
    shutil.rmtree(path.parent / '__pycache__', ignore_errors=True)
    yield
    path.write_text(original)
    shutil.rmtree(path.parent / '__pycache__', ignore_errors=True)


def verdict_of(tree: Path, names: list[str], interpreted: bool) -> str:
    child = os.fork()
    if child == 0:
        _test(tree, names, interpreted)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    return {0: 'survived', 1: 'killed'}.get(code, f'killed ({code})')


def _test(tree: Path, names: list[str], interpreted: bool):
    os.setsid()
    os.chdir(tree)
    sys.path.insert(0, str(tree))
    os.environ['PYTHONPATH'] = str(tree)
    if interpreted:
        os.environ[INTERPRETED] = '1'
    resource.setrlimit(resource.RLIMIT_CPU, (180, 190))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    quiet = os.open(tree / 'mutant.log', os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(quiet, 1), os.dup2(quiet, 2)
    import pytest

    code = 3
    with contextlib.suppress(SystemExit):
        code = pytest.main(['-x', '-q', '-p', 'no:cacheprovider', *names])
    os._exit(int(code))


def try_each(queue: list[dict], tests: Tests, tree: Path, work: Path, seconds: float):
    for name in PRELOADED:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    import torch

    torch.set_num_threads(1)
    for mutant in queue:
        path = work / 'verdicts' / f'{mutant["id"]}.json'
        if path.exists():
            continue
        begin = time.monotonic()
        verdict = 'no test runs it'
        with mutated(tree, mutant):
            for interpreted, names in tests.of(mutant, seconds):
                if names and not verdict.startswith('killed'):
                    verdict = verdict_of(tree, names, interpreted)
        took = time.monotonic() - begin
        row = mutant | dict(verdict=verdict, seconds=took)
        path.write_text(json.dumps(row))
        place = f'{mutant["file"]}:{mutant["line"]}'
        print(f'{verdict:10} {took:5.0f} s  {place}', flush=True)


def run(work: Path, seconds: float, jobs: int, of: Path | None):
    (work / 'verdicts').mkdir(exist_ok=True)
    queue = json.loads((work / 'mutants.json').read_text())
    if of:
        before = {row['id']: row['verdict'] for row in verdicts(of)}
        queue = [m for m in queue if 'killed' in before.get(m.get('before'), 'killed')]
    tests = Tests(work)
    children = []
    for job in range(jobs):
        tree = Path(tempfile.mkdtemp(prefix='mutants-'))
        files = subprocess.run(
            ['git', 'ls-files'], cwd=ROOT, capture_output=True, text=True
        ).stdout.splitlines()
        for file in files:
            (tree / file).parent.mkdir(parents=True, exist_ok=True)
            if (ROOT / file).is_file():
                shutil.copy2(ROOT / file, tree / file)
        child = os.fork()
        if child == 0:
            try_each(queue[job::jobs], tests, tree, work, seconds)
            shutil.rmtree(tree)
            os._exit(0)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)
    report(work)


def verdicts(work: Path) -> list[dict]:
    return [json.loads(p.read_text()) for p in (work / 'verdicts').glob('*.json')]


def report(work: Path):
    rows = verdicts(work)
    packages = collections.defaultdict(collections.Counter)
    for row in rows:
        killed = row['verdict'].startswith('killed')
        for name in ('all', '/'.join(row['file'].split('/')[1:2])):
            packages[name][killed] += 1
    for name, counts in sorted(packages.items()):
        print(f'{name:16} {counts[True]:4} of {counts.total():4} killed')
    for row in sorted(rows, key=lambda row: (row['file'], row['line'])):
        if not row['verdict'].startswith('killed'):
            print(f'{row["file"]}:{row["line"]} {row["verdict"]}')
            print(f'    - {row["text"].strip()}\n    + {row["mutated"].strip()}')


def main():
    if sys.version_info < (3, 12):
        raise SystemExit('mutants.py needs Python 3.12')
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
    parser.add_argument('step', choices=['map', 'draw', 'run', 'report'])
    parser.add_argument('--work', type=Path, default=ROOT / 'build' / 'mutants')
    parser.add_argument('--number', type=int, default=300)
    parser.add_argument('--seed', type=int, default=0)
    parser.add_argument('--seconds', type=float, default=15, help='CPU time a mutant')
    parser.add_argument('--jobs', type=int, default=2)
    parser.add_argument('--of', type=Path, help='work folder of the other suite')
    args, rest = parser.parse_known_args()
    work = args.work.resolve()
    if args.step == 'map':
        make_map(work, rest or ['-m', 'not slow and not gpu', '-n', str(args.jobs)])
    elif args.step == 'draw':
        draw(work, args.number, args.seed, args.of)
    elif args.step == 'run':
        run(work, args.seconds, args.jobs, args.of)
    else:
        report(work)


if __name__ == '__main__':
    main()

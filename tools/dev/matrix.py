"""Run the fast tests with each supported PyTorch; write the table of docs/install.md.

    python -m tools.dev.matrix
    python -m tools.dev.matrix --only newest

Each row has an environment of its own in build/matrix, made anew where its requirements
changed. A row keeps its last result in build/matrix, too, so that rows may run apart.
pip decides what `newest` is; a constraint of pip's configuration binds it.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

from tools.dev.readme_tables import markdown, replace_between

ROOT = Path(__file__).parents[2]
MATRIX = ROOT / 'build/matrix'
MARKS = '<!-- matrix -->\n', '<!-- end of matrix -->'
EXTRAS = 'mm,export,predict,web,tests'
# What pip installs, and the Python that runs it, if it is at hand.
ROWS = {
    'floor': ('torch=={floor}.*', '3.11'),
    '2.12': ('torch==2.12.*', '3.12'),
    '2.14.1': ('torch==2.14.1', '3.11'),
    'newest': ('torch', '3.13'),
}
VERSIONS = """
import json, platform
from importlib.metadata import version
names = 'torch', 'triton', 'torchvision'
found = {name: version(name) for name in names}
print(json.dumps(found | {'Python': platform.python_version()}))
"""


def floor() -> str:
    """Return the oldest PyTorch that the requirements accept."""
    requirements = (ROOT / 'requirements/runtime.txt').read_text()
    return re.search(r'^torch>=(\S+)$', requirements, re.MULTILINE)[1]


def interpreter(version: str) -> str:
    """Return Python of a version, or the running one where that is not at hand."""
    found = shutil.which(f'python{version}')
    if found and not subprocess.run([found, '-c', ''], capture_output=True).returncode:
        return found
    print(f'python{version} is not at hand, {sys.version.split()[0]} takes its place')
    return sys.executable


def install(folder: Path, requirement: str, version: str) -> Path:
    """Install a release of PyTorch and mmattn's extras; return the interpreter."""
    python = folder / 'bin/python'
    files = sorted((ROOT / 'requirements').glob('*.txt'))
    wanted = '\n'.join([requirement, *(file.read_text() for file in files)])
    stamp = folder / 'installed.txt'
    if stamp.is_file() and stamp.read_text() == wanted:
        return python
    base = interpreter(version)
    subprocess.run([base, '-m', 'venv', '--clear', folder], check=True)
    packages = [requirement, '--editable', f'{ROOT}[{EXTRAS}]']
    subprocess.run([python, '-m', 'pip', 'install', '-q', *packages], check=True)
    stamp.write_text(wanted)
    return python


def run_tests(name: str, python: Path):
    """Run the fast tests and write versions and counts to build/matrix."""
    report = MATRIX / f'{name}.xml'
    tests = ['-m', 'pytest', '-q', '-m', 'not slow', '-n', '2', '--dist', 'loadfile']
    command = [python, *tests, f'--junitxml={report}']
    # Tests start programs of the environment by name.
    path = f'{python.parent}{os.pathsep}{os.environ["PATH"]}'
    environment = os.environ | {'OMP_NUM_THREADS': '1', 'PATH': path}
    code = subprocess.run(command, cwd=ROOT, env=environment).returncode
    if code not in (0, 1):
        raise SystemExit(f'{name}: pytest ended with exit code {code}')
    result = json.loads(subprocess.check_output([python, '-c', VERSIONS], text=True))
    suite = ElementTree.parse(report).getroot().find('testsuite')
    keys = 'tests', 'failures', 'errors', 'skipped'
    result |= {key: int(suite.get(key)) for key in keys}
    commit = ['git', 'rev-parse', '--short', 'HEAD']
    result['commit'] = subprocess.check_output(commit, cwd=ROOT, text=True).strip()
    (MATRIX / f'{name}.json').write_text(json.dumps(result))


def table() -> str:
    """Return the results of the rows that have run, as a table."""
    head = 'PyTorch', 'Triton', 'torchvision', 'Python', 'passed', 'failed', 'commit'
    rows = [head]
    for name in ROWS:
        file = MATRIX / f'{name}.json'
        if file.is_file():
            result = json.loads(file.read_text())
            failed = result['failures'] + result['errors']
            passed = result['tests'] - failed - result['skipped']
            names = 'torch', 'triton', 'torchvision', 'Python'
            versions = [result[key].split('+')[0] for key in names]
            rows.append([*versions, f'{passed:,}', failed, result['commit']])
    return markdown(rows)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('--only', choices=ROWS, nargs='+', default=list(ROWS))
    args = parser.parse_args()
    MATRIX.mkdir(parents=True, exist_ok=True)
    for name in args.only:
        requirement, version = ROWS[name]
        requirement = requirement.format(floor=floor())
        run_tests(name, install(MATRIX / name, requirement, version))
    replace_between(ROOT / 'docs/install.md', *MARKS, table())
    print(table())


if __name__ == '__main__':
    main()

"""Run the fast tests with each supported PyTorch: `nox`, or `nox -s "tests(newest)"`.

pip decides what `newest` is; a constraint of pip's configuration binds it.
"""

import nox

EXTRAS = 'mm,export,predict,web,tests'
# What pip installs, and the Python that runs it.
ROWS = {
    'floor': ('torch==2.10.*', '3.11'),
    '2.12': ('torch==2.12.*', '3.12'),
    '2.14': ('torch==2.14.1', '3.11'),
    'newest': ('torch', '3.13'),
}


@nox.session(reuse_venv=True)
@nox.parametrize('torch, python', ROWS.values(), ids=ROWS)
def tests(session: nox.Session, torch: str):
    """Install a PyTorch and the extras, and run the fast tests."""
    session.install(torch, '--editable', f'.[{EXTRAS}]')
    fast = '-m', 'not slow', '-n', '2', '--dist', 'loadfile'
    session.run('python', '-m', 'pytest', *fast, env={'OMP_NUM_THREADS': '1'})

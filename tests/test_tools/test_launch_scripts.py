"""The launch scripts: what they call, with which arguments, and what they refuse."""

import socket
import subprocess
from pathlib import Path

import pytest
from fresh import plain_environment

ROOT = Path(__file__).parents[2]
TOOLS = ROOT / 'tools'
SCRIPTS = sorted(TOOLS.glob('*.sh'))
FAKE = '#!/bin/sh\nprintf "%s\\n" "${0##*/}" "$@"\n'


@pytest.fixture
def fakes(tmp_path):
    """A folder with a `python` and an `srun` that print their arguments."""
    for name in ('python', 'srun'):
        fake = tmp_path / 'bin' / name
        fake.parent.mkdir(exist_ok=True)
        fake.write_text(FAKE)
        fake.chmod(0o755)
    return tmp_path / 'bin'


def launch(script, *args, path, tools=TOOLS, cwd=None, **variables):
    env = plain_environment()
    env |= {'PATH': f'{path}:{env["PATH"]}', 'VIRTUAL_ENV': '/an/environment'}
    env = {key: value for key, value in (env | variables).items() if value}
    options = dict(env=env, cwd=cwd, capture_output=True, text=True)
    return subprocess.run(['bash', tools / script, *args], **options)


def printed(*args, **kwargs):
    done = launch(*args, **kwargs)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize(
    ('script', 'args', 'command'),
    [
        ('dist_train.sh', ['a b.py', '4'], ['train.py', 'a b.py']),
        ('dist_test.sh', ['a b.py', 'c.pth', '4'], ['test.py', 'a b.py', 'c.pth']),
    ],
    ids=['train', 'test'],
)
def test_dist_scripts_call_torchrun(fakes, script, args, command):
    def call(**variables):
        extra = ['--cfg-options', 'a="x y"']
        out = printed(script, *args, *extra, path=fakes, cwd=fakes, **variables)
        assert out[:3] == ['python', '-m', 'mmattn.cli.torchrun']
        at = out.index(f'{TOOLS / command[0]}')
        assert out[at + 1 :] == [*command[1:], *extra, '--launcher', 'pytorch']
        return out[3:at]

    one_machine = ['--nnodes=1', '--nproc_per_node=4']
    assert call() == [*one_machine, '--standalone']
    port = ['--master_addr=127.0.0.1', '--master_port=1234']
    assert call(PORT='1234') == [*one_machine, *port]
    meeting = ['--rdzv-backend=c10d', '--rdzv-endpoint=host:29500', '--rdzv-id=mmattn']
    several = dict(NNODES='1:4', MASTER_ADDR='host')
    assert call(**several) == ['--nnodes=1:4', '--nproc_per_node=4', *meeting]
    rank = call(**several, NODE_RANK='1', LOCAL_ADDR='me', RDZV_ID='a')[2:]
    own = '--rdzv-id=a', '--rdzv-conf=is_host=0', '--local-addr=me'
    assert rank == [*meeting[:2], *own]
    assert '--rdzv-conf=is_host=1' in call(**several, NODE_RANK='0')
    options = call(TORCHRUN_ARGS='--max-restarts=1 --monitor-interval=1')
    assert options[-2:] == ['--max-restarts=1', '--monitor-interval=1']


@pytest.mark.parametrize(
    ('script', 'command'),
    [
        ('slurm_train.sh', ['train.py', 'a b.py', '--work-dir=my dir']),
        ('slurm_test.sh', ['test.py', 'a b.py', 'my dir']),
    ],
    ids=['train', 'test'],
)
def test_slurm_scripts_call_srun(fakes, script, command):
    def call(**variables):
        args = ['part', 'job', 'a b.py', 'my dir', '--cfg-options', 'a=1']
        out = printed(script, *args, path=fakes, cwd=fakes, **variables)
        at = out.index('-u') - 1
        tool, *rest = command
        end = [f'{TOOLS / tool}', *rest, *args[4:], '--launcher', 'slurm']
        assert out[at:] == ['python', '-u', *end]
        assert out[:3] == ['srun', '--partition=part', '--job-name=job']
        assert '--kill-on-bad-exit=1' in out
        return out[3:at]

    def resources(gpus, per_node, cpus):
        tasks = f'--ntasks={gpus}', f'--ntasks-per-node={per_node}'
        return [f'--gres=gpu:{per_node}', *tasks, f'--cpus-per-task={cpus}']

    assert call()[:4] == resources(8, 8, 5)
    assert call(GPUS='2')[:4] == resources(2, 2, 5)
    options = call(GPUS='16', GPUS_PER_NODE='4', CPUS_PER_TASK='3', SRUN_ARGS='-x a -v')
    assert options[:4] == resources(16, 4, 3)
    assert options[-3:] == ['-x', 'a', '-v']


def test_scripts_say_what_they_want(fakes):
    usages = {p.name: f'usage: {p.name}' for p in SCRIPTS if p.stem != 'launch'}
    for script, said in usages.items():
        done = launch(script, 'config.py', path=fakes)
        assert done.returncode == 2 and said in done.stderr
    done = launch('dist_train.sh', 'config.py', '4', path=fakes, NNODES='2')
    assert done.returncode == 2
    assert 'NNODES=2 needs MASTER_ADDR' in done.stderr


def test_the_port_of_slurm_is_free(fakes):
    (fakes / 'srun').write_text('#!/bin/sh\necho $MASTER_PORT\n')
    (port,) = printed('slurm_train.sh', 'p', 'j', 'c', 'w', path=fakes, cwd=fakes)
    assert 20000 <= int(port) < 30000
    # Only one port is left: something listens on all others, as bash sees it.
    script = (TOOLS / 'launch.sh').read_text()
    script = script.replace('20000 + RANDOM % 10000', '++tries')
    with socket.create_server(('127.0.0.1', 0)) as taken:
        first = taken.getsockname()[1]
        script += f'\ntries={first - 1}; free_port\n'
        found = subprocess.run(['bash', '-c', script], capture_output=True, text=True)
    assert int(found.stdout) > first

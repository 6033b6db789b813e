"""Mutate valid files, and check that what reads them answers in one line.

    python -m tools.dev.fuzz
    python -m tools.dev.fuzz coco --first 1234 --count 1

Each mutation is made from the name of its format and its number alone, so the second
command repeats one. A finding is another error than those that our commands print in
one line, more than 10 s, more than 2 GB, or the end of the process. Batches run in
forked processes, so this requires Linux. The formats are listed by --help.
"""

import argparse
import contextlib
import io
import json
import os
import pickle
import random
import re
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from mmengine.logging import HistoryBuffer
from torch import nn

import mmattn  # noqa: F401
from mmattn.datasets import check
from mmattn.errors import UserError
from mmattn.export import Metadata
from mmattn.export import load as load_exported
from mmattn.files import read_config_file
from mmattn.terminal import run_main
from tools.dev.fuzz_mutations import (
    mutate_bytes,
    mutate_config,
    mutate_json,
    mutate_onnx,
    mutate_safetensors,
    mutate_zip,
)

ROOT = Path(__file__).resolve().parents[2]

SECONDS = 10
MEMORY = 2 << 30
BATCH = 100
LONGEST = 2000  # characters of a message
OUT_OF_MEMORY = re.compile('MemoryError|bad_alloc|allocate')
EXPECTED = ImportError, OSError, ValueError  # that the commands print in one line
CONFIG = """default_scope = 'mmpretrain'
custom_imports = dict(imports=['mmdet.datasets'], allow_failed_imports=False)
classes = ('cat', 'dog')
model = dict(
    type='ImageClassifier',
    backbone=dict(type='LeNet5'),
    neck=dict(type='GlobalAveragePooling'),
    head=dict(type='LinearClsHead', num_classes=len(classes), in_channels=120),
)
val_dataloader = dict(
    batch_size=2,
    num_workers=0,
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(
        type='mmdet.CocoDataset',
        ann_file='ann.json',
        metainfo=dict(classes=classes),
        data_prefix=dict(img=''),
        pipeline=[dict(type='mmdet.PackDetInputs')],
        test_mode=True,
    ),
)
"""


class Format(NamedTuple):
    """How one format is made, mutated and read."""

    suffix: str
    make: Callable[[], bytes]
    mutate: Callable[[random.Random, bytes], bytes]
    read: Callable[[Path], object]


def model() -> nn.Module:
    torch.manual_seed(0)  # so that a number gives the same file again
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))


def make_checkpoint(zipped: bool) -> bytes:
    weights = dict(model().state_dict())
    if not zipped:  # the legacy format orders storages by their addresses
        sizes = [weight.numel() for weight in weights.values()]
        flat = torch.cat([weight.float().flatten() for weight in weights.values()])
        parts = zip(weights.items(), flat.split(sizes), strict=True)
        weights = {name: part.view_as(weight) for (name, weight), part in parts}
    history = HistoryBuffer([1.0, 2.0], [1, 1])
    content = dict(
        meta=dict(epoch=1, cfg='model = 1', classes=('cat', 'dog')),
        state_dict=weights,
        message_hub=dict(log_scalars={'loss': history}, lr=np.float64(0.1)),
        optimizer=dict(param_groups=[dict(lr=0.1, betas=(0.9, 0.99), params=[0])]),
    )
    file = io.BytesIO()
    torch.save(content, file, _use_new_zipfile_serialization=zipped)
    if zipped:
        return file.getvalue()
    key = b'X' + (1).to_bytes(4, 'little') + b'0'
    return re.sub(rb'X.\0{3}\d{9,}', lambda _: key, file.getvalue(), flags=re.DOTALL)


def make_safetensors() -> bytes:
    from safetensors.torch import save

    return save(dict(model().state_dict()))


def make_onnx() -> bytes:
    import onnx
    from onnx import TensorProto, helper

    metadata = Metadata(
        'classification', ['image'], ['scores'], [8, 8], classes=['a', 'b', 'c']
    )
    image = helper.make_tensor_value_info('image', TensorProto.FLOAT, [1, 3, 8, 8])
    scores = helper.make_tensor_value_info('scores', TensorProto.FLOAT, [1, 3])
    nodes = [
        helper.make_node('GlobalAveragePool', ['image'], ['pooled']),
        helper.make_node('Flatten', ['pooled'], ['scores']),
    ]
    graph = helper.make_graph(nodes, 'graph', [image], [scores])
    opset = helper.make_opsetid('', 20)
    exported = helper.make_model(graph, opset_imports=[opset], ir_version=9)
    onnx.helper.set_model_props(exported, {'mmattn': metadata.to_json()})
    return exported.SerializeToString()


def make_coco() -> bytes:
    content = dict(
        info={},
        categories=[dict(id=1, name='cat'), dict(id=2, name='dog')],
        images=[
            dict(id=number, file_name=f'{number}.jpg', width=64, height=48)
            for number in (1, 2)
        ],
        annotations=[
            dict(
                id=number,
                image_id=1 + number % 2,
                category_id=1 + number % 2,
                bbox=[4, 4, 20, 10],
                area=200,
                iscrowd=0,
                segmentation=[[4, 4, 24, 4, 24, 14, 4, 14]],
            )
            for number in range(4)
        ],
    )
    return json.dumps(content).encode()


def read_checkpoint(path: Path):
    from mmattn.engine.checkpoints.weights import initialize_from_checkpoint

    initialize_from_checkpoint(model(), str(path))


def read_onnx(path: Path):
    load_exported(path, threads=1)(np.zeros((8, 8, 3), np.uint8))


def check_config(path: Path):
    """Run the command `mmattn data check`; its errors become a ValueError."""
    printed = io.StringIO()
    try:
        with contextlib.redirect_stderr(printed):
            run_main(lambda: check.main([str(path)]))
    except SystemExit as done:
        if type(done.code) is str:
            raise UserError(done.code) from None
        if done.code:
            _, _, errors = printed.getvalue().partition('error: ')
            raise UserError(errors.replace('\nerror: ', '; ')) from None


@cache
def small_config():
    Path('config.py').write_text(CONFIG)
    cfg = read_config_file('config.py')
    return cfg, check.build_checked(cfg)


def check_coco(path: Path):
    cfg, model = small_config()
    cfg.val_dataloader.dataset.ann_file = str(path)
    args = argparse.Namespace(decode=False)
    check.check_split(cfg.val_dataloader.dataset, 'val_dataloader', model, args)


FORMATS = {
    'zip': Format('.pth', lambda: make_checkpoint(True), mutate_zip, read_checkpoint),
    'legacy': Format(
        '.pth', lambda: make_checkpoint(False), mutate_bytes, read_checkpoint
    ),
    'safetensors': Format(
        '.safetensors', make_safetensors, mutate_safetensors, read_checkpoint
    ),
    'onnx': Format('.onnx', make_onnx, mutate_onnx, read_onnx),
    'config': Format('.py', CONFIG.encode, mutate_config, check_config),
    'coco': Format('.json', make_coco, mutate_json, check_coco),
}


def answer(form: Format, path: Path) -> tuple[str, str]:
    """Return 'read', 'refused' or 'finding', and the message or the traceback."""
    try:
        form.read(path)
    except EXPECTED as error:
        message = str(error)
        is_line = len(message.splitlines()) == 1 and len(message) <= LONGEST
        is_line = is_line and not OUT_OF_MEMORY.search(message)
        return ('refused' if is_line else 'finding'), message
    except BaseException:  # noqa: BLE001  a finding, whatever it is
        return 'finding', traceback.format_exc()
    return 'read', ''


def rng_of(name: str, number: int) -> random.Random:
    return random.Random(f'{name} {number}')


def run_batch(name: str, content: bytes, numbers: range, write: Callable):
    """Read each mutation, in a process of its own."""
    form, path = FORMATS[name], Path(f'mutation{FORMATS[name].suffix}').absolute()
    size = int(Path('/proc/self/statm').read_text().split()[0])
    limit = size * resource.getpagesize() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    for number in numbers:
        path.write_bytes(form.mutate(rng_of(name, number), content))
        write(number)
        signal.alarm(SECONDS)
        start = time.monotonic()
        kind, message = answer(form, path)
        signal.alarm(0)
        write((number, kind, message, time.monotonic() - start))


def fork_batch(name: str, content: bytes, numbers: range) -> list[tuple]:
    """Return the answers to the mutations, up to one that ended the process."""
    with tempfile.TemporaryFile() as results:

        def write(value):
            pickle.dump(value, results)
            results.flush()

        child = os.fork()
        if child == 0:
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, 1)
            os.dup2(null, 2)
            run_batch(name, content, numbers, write)
            os._exit(0)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        results.seek(0)
        answers, begun = [], None
        with contextlib.suppress(EOFError):
            while True:
                value = pickle.load(results)
                if isinstance(value, int):
                    begun = value
                else:
                    answers.append(value)
    if status:
        how = 'took too long' if status == -signal.SIGALRM else f'ended with {status}'
        answers.append((begun, 'finding', f'the process {how}', SECONDS))
    return answers


def fuzz(name: str, numbers: range) -> list[tuple]:
    """Return the answers to the mutations of a format, in a folder for its files."""
    content = FORMATS[name].make()
    Path('ann.json').write_bytes(make_coco())
    Path(f'valid{FORMATS[name].suffix}').write_bytes(content)
    FORMATS[name].read(Path(f'valid{FORMATS[name].suffix}').absolute())
    answers, done = [], numbers.start
    while done < numbers.stop:
        batch = range(done, min(done + BATCH, numbers.stop))
        answers += fork_batch(name, content, batch)
        done = answers[-1][0] + 1
    return answers


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        'formats',
        nargs='*',
        metavar='FORMAT',
        help=f'{", ".join(FORMATS)} (default: all)',
    )
    parser.add_argument('--first', type=int, default=0, help='number of the first one')
    parser.add_argument('--count', type=int, default=2000, help='mutations of each')
    args = parser.parse_args(argv)
    if unknown := set(args.formats) - set(FORMATS):
        parser.error(f'FORMAT must be of {", ".join(FORMATS)}, got {sorted(unknown)}')
    return args


def main(argv: list[str] | None = None) -> int:
    args = parse_args(argv)
    torch.set_num_threads(1)
    findings = 0
    print('format       read  refused  findings  slowest  time')
    for name in args.formats or FORMATS:
        start, here = time.monotonic(), os.getcwd()
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            try:
                answers = fuzz(name, range(args.first, args.first + args.count))
            finally:
                os.chdir(here)
        counts = Counter(kind for _, kind, *_ in answers)
        slowest = max(seconds for *_, seconds in answers)
        print(
            f'{name:<11}{counts["read"]:>6}{counts["refused"]:>9}'
            f'{counts["finding"]:>10}{slowest:>8.1f}s{time.monotonic() - start:>5.0f}s',
            flush=True,
        )
        findings += counts['finding']
        for number, kind, message, _ in answers:
            if kind == 'finding' or args.count == 1:
                print(f'python -m tools.dev.fuzz {name} --first {number} --count 1')
                print(f'  {kind}: {message}')
    return int(findings > 0)


if __name__ == '__main__':
    sys.exit(main())

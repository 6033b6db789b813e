"""Give mutated files to every reader, and name what ends in more than a line of error.

    python -m tools.dev.fuzz --cases 1000
    python -m tools.dev.fuzz pickle coco --cases 5000 --seed 1

A reader may return, or raise a `UserError` (or an `OSError` with a file's name) of one
line. A case fails if it ends otherwise, takes more than 10 s of CPU time or 30 s by the
clock, or grows the process by more than 2 GB. It needs Linux (fork).
"""

import argparse
import collections
import contextlib
import io
import logging
import multiprocessing
import random
import re
import resource
import sys
import tempfile
import traceback
import warnings
import zipfile
from pathlib import Path

import numpy as np
import onnx.parser
import safetensors.torch
import tifffile
import torch
from mmengine.logging import HistoryBuffer
from PIL import Image

from mmattn.data import convert
from mmattn.errors import UserError
from mmattn.export import load
from mmattn.export.metadata import Metadata
from mmattn.images import read_channels, read_image
from mmattn.weights.load import find_weights, load_weights
from mmattn.weights.read import read_checkpoint

CPU_SECONDS, SECONDS, MEMORY = 10, 30, 2 << 30
TOKENS = (
    b'-1 0 1e308 NaN Infinity null true "x" "1" [] {} [[]] [1] "" 1e-9 4294967296 [ {'
    b' 9223372036854775808 0.5 {"a":1} [1,2,3,4] [[1,2,3,4,5,6]] \xff\xfe \xef\xbb\xbf'
).split()
COCO = b"""{"images": [{"id": 1, "file_name": "a.png", "width": 12, "height": 9},
{"id": 2, "file_name": "b.png", "width": 12, "height": 9}],
"categories": [{"id": 1, "name": "cell", "supercategory": "none"}],
"annotations": [{"id": 1, "image_id": 1, "category_id": 1, "bbox": [1, 1, 5, 4],
"area": 20, "iscrowd": 0, "segmentation": [[1, 1, 6, 1, 6, 5, 1, 5]]},
{"id": 2, "image_id": 2, "category_id": 1, "bbox": [1, 1, 3, 3], "area": 9,
"segmentation": {"size": [9, 12], "counts": [10, 3, 6, 3, 86]}, "iscrowd": 1}]}"""
SEED = bytes(8)
GRAPH = """<ir_version: 8, opset_import: ["": 17]> graph (float[1, 3, 8, 8] image)
=> (float[1, 3, 8, 8] map) {map = Relu(image)}"""
PIXELS = np.random.default_rng(0).integers(0, 255, (9, 12, 5), np.uint8)


MODEL = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))
META = dict(epoch=1, CLASSES=('a', 'b'), log=HistoryBuffer([1.0], [1]))
WHOLE = dict(state_dict=MODEL.state_dict(), meta=META)


def written(write, *args, **options) -> bytes:
    """Return what a function writes into a file; the last argument is its place."""
    buffer = io.BytesIO()
    write(*[buffer if each is io.BytesIO else each for each in args], **options)
    return buffer.getvalue()


def zipped(pickled: bytes) -> bytes:
    """Return a checkpoint with another pickle, so that its checksums are right."""
    old, new = io.BytesIO(written(torch.save, WHOLE, io.BytesIO)), io.BytesIO()
    with zipfile.ZipFile(old) as source, zipfile.ZipFile(new, 'w') as target:
        for name in source.namelist():
            found = pickled if name.endswith('data.pkl') else source.read(name)
            target.writestr(name, found)
    return new.getvalue()


def state_dict(content: bytes) -> bytes:
    """Return a checkpoint whose state dict has what bytes choose."""
    dice, one = random.Random(content), torch.ones(1)
    values = [torch.ones(3, 2), torch.ones(3), torch.tensor(1), one[:0], 1, 'a', None]
    values += [[one], {}, one.expand(3, 2), np.ones(3), b'a', 1j, one.half()]
    values += [one.to_sparse(), one.to('meta'), one.to(torch.int8)]
    names = ['0.weight', '0.bias', '1.weight', '1.running_var', '', 'a' * 9999, '.', 0]
    names += [None, (1, 2), b'0.bias', '\n\x1b[2J', 'module.0.bias', '0']
    weights = collections.OrderedDict()
    weights['0.bias'] = values[1]
    for _ in range(dice.randrange(4) if content != SEED else 0):
        weights[dice.choice(names)] = dice.choice(values)
    weights._metadata = dice.choice(
        [{}] * 9 + [{0: {}}, {'': {'version': 1j}}, {'0': 1}]
    )
    return written(torch.save, dict(model=weights), io.BytesIO)


def onnx_file(metadata: bytes) -> bytes:
    """Return a tiny ONNX file with a description."""
    model = onnx.parser.parse_model(GRAPH)
    onnx.helper.set_model_props(model, {'mmattn': metadata.decode('utf8', 'replace')})
    return model.SerializeToString()


def read_coco(path: Path):
    images, out = path.parent / 'images', path.parent / f'out{random.random()}'
    images.mkdir(exist_ok=True)
    for name in ('a.png', 'b.png'):
        Image.fromarray(PIXELS[..., 0]).save(images / name)
    options = ['--out', str(out), '--no-estimate', '--val=0.5']
    convert.main(['coco', str(images), str(path), *options])


def kinds() -> dict[str, tuple]:
    """Return suffix, contents to mutate, what makes files of them, and the reader."""
    old = dict(_use_new_zipfile_serialization=False)
    files = [written(torch.save, WHOLE, io.BytesIO, **each) for each in ({}, old)]
    pickled = zipfile.ZipFile(io.BytesIO(files[0])).read('archive/data.pkl')

    def read(path: Path):
        load_weights(MODEL, find_weights(read_checkpoint(path), str(path)))

    safe = safetensors.torch.save(WHOLE['state_dict'])
    text = Metadata('features', ['image'], ['map'], [8, 8]).to_json().encode()
    modes = [('PNG', each) for each in ('RGB', 'RGBA', 'P', '1', 'I;16')]
    modes += [(each, 'RGB') for each in ('JPEG', 'TIFF', 'WEBP', 'GIF', 'BMP', 'PPM')]
    color = Image.fromarray(PIXELS[..., :3])
    images = [written(color.convert(x).save, io.BytesIO, kind) for kind, x in modes]
    tiffs = [
        written(tifffile.imwrite, io.BytesIO, PIXELS, photometric=0, **each)
        for each in ({}, dict(compression='zlib'), dict(tile=(16, 16)))
    ]
    return {
        'pth': ('.pth', files, bytes, read),
        'pickle': ('.pth', [pickled], zipped, read),
        'weights': ('.pth', [SEED], state_dict, read),
        'safetensors': ('.safetensors', [safe], bytes, read),
        'coco': ('.json', [COCO], bytes, read_coco),
        'metadata': ('.onnx', [text], onnx_file, load),
        'onnx': ('.onnx', [onnx_file(text)], bytes, load),
        'images': ('.png', images, bytes, read_image),
        'tiff': ('.tif', tiffs, bytes, lambda path: read_channels(path, 5)),
    }


def mutated(content: bytes, dice: random.Random) -> bytes:
    content = bytearray(content)
    for _ in range(dice.choice((1, 1, 2, 4))):
        start = dice.randrange(len(content) + 1)
        end = min(len(content), start + dice.choice((1, 1, 2, 4, 8, 64)))
        tokens = [*re.finditer(rb'-?\d+(\.\d+)?|"[^"]*"|\[[^\[\]]*\]', content)]
        # Most JSON files stay readable, so that their values are tried.
        way = dice.randrange(6) if dice.random() < 0.3 or content[:1] != b'{' else 0
        if way == 0 and tokens:
            start, end = dice.choice(tokens).span()
        old, token = content[start:end], dice.choice(TOKENS)
        new = [token, dice.randbytes(end - start), b'', old * dice.choice((2, 50))]
        new += [dice.choice((b'\0', b'\xff')) * (end - start)]
        new += [old + token * dice.choice((1, 1, 20_000))]
        content[start:end] = new[way]
    return bytes(content[: None if dice.random() < 0.95 else start])


def fault(error: Exception) -> str:
    """Return what is wrong with an error, or ''."""
    text, named = str(error), isinstance(error, OSError) and error.filename is not None
    if isinstance(error, UserError) or named:
        whole = 'is not loaded: ' in text  # the report on a model is a list
        return '' if whole or text.isprintable() else f'no line of text: {text[:200]!r}'
    ours = [f for f in traceback.extract_tb(error.__traceback__) if 'mmattn' in f[0]]
    return f'{type(error).__name__} at {ours[-1][:2]}: {text[:90]!r}'


def work(pipe, path: Path, content: bytes, read):
    """Send what a reader makes of a file: 'accepted', a fault, or ''."""
    path.write_bytes(content)
    before, found = resource.getrusage(resource.RUSAGE_SELF), 'accepted'
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            read(path)
    except Exception as error:  # noqa: BLE001  any error is a finding
        found = fault(error)
    after = resource.getrusage(resource.RUSAGE_SELF)
    seconds = after.ru_utime - before.ru_utime
    grown = 1024 * (after.ru_maxrss - before.ru_maxrss)
    if seconds > CPU_SECONDS or grown > MEMORY:
        found = f'too much: {seconds:.0f} s of CPU time, {grown / 1e9:.1f} GB'
    pipe.send(found)


def run(kind: str, args: argparse.Namespace) -> int:
    """Run all cases of a kind, print the faults, and return their number."""
    suffix, contents, make, read = kinds()[kind]
    faults, accepted = collections.defaultdict(list), 0
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, f'case{suffix}')
        for number in range(-1, args.cases):
            dice = random.Random(f'{kind} {args.seed} {number}')
            content = dice.choice(contents)
            if number < 0:  # imports what the reader needs, and must be accepted
                path.write_bytes(make(content))
                read(path)
                continue
            here, there = multiprocessing.Pipe()
            given = there, path, make(mutated(content, dice)), read
            process = multiprocessing.Process(target=work, args=given)
            process.start()
            found = here.recv() if here.poll(SECONDS) else 'too long, or a dead process'
            process.kill()
            process.join()
            accepted += found == 'accepted'
            if found not in ('', 'accepted'):
                faults[found.partition(': ')[0]].append(f'case {number}: {found}')
    failed = sum(map(len, faults.values()))
    print(
        f'{kind}: {args.cases} cases, {accepted} accepted, {failed} failed', flush=True
    )
    for cases in sorted(faults.values(), key=len, reverse=True):
        print(f'  {len(cases)} such as {cases[0]}', flush=True)
    return failed


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
    parser.add_argument('kinds', nargs='*', metavar='KIND', help=' '.join(kinds()))
    parser.add_argument('--cases', type=int, default=1000, help='of each kind')
    parser.add_argument('--seed', type=int, default=0)
    args = parser.parse_args(argv)
    multiprocessing.set_start_method('fork')
    warnings.simplefilter('ignore')
    logging.disable()
    torch.set_num_threads(1)
    with contextlib.redirect_stderr(io.StringIO()):
        return int(sum(run(kind, args) for kind in args.kinds or kinds()) > 0)


if __name__ == '__main__':
    sys.exit(main())

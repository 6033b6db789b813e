"""Write a page that runs an exported model in the browser, without a server."""

import json
import shutil
import tarfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from mmattn.errors import UserError

from ..files import file_digest
from ..files.atomic import write_atomically
from ..images import read_image
from ..images.draw import class_colors
from ..weights.download import download
from ..weights.read import copy_of
from .choices import ONNXRUNTIME_WEB
from .errors import ExportError
from .metadata import Metadata
from .runner import load

URL = f'https://registry.npmjs.org/onnxruntime-web/-/{ONNXRUNTIME_WEB}'
SHA256 = 'd2228df7e4616bc3348bf504ee888f3bec43789a273f0a63f3e68d203ce3bf71'
# Files of the archive by their names in the folder; servers know the suffix `.js`.
RUNTIME = {
    'onnxruntime-web.js': 'package/dist/ort.wasm.bundle.min.mjs',
    'onnxruntime-web.wasm': 'package/dist/ort-wasm-simd-threaded.wasm',
}
LOADED = 'model.onnx', 'onnxruntime-web.wasm'  # with a share of what is here
PAGE = Path(__file__).parent / 'page'
RESIZES = {
    'cv2': ('nearest', 'bilinear'),
    'pillow': ('bilinear', 'bicubic', 'box', 'hamming', 'lanczos'),
}
MIN_COLORS = 24  # objects of a single class differ in color


def check_for_page(metadata: Metadata):
    """Raise an ExportError for a model that the page cannot run or show."""
    if metadata.task == 'features':
        raise ExportError('a page shows predictions, and the file has feature maps')
    if metadata.batch != 1:
        raise ExportError(f'a page requires a batch of 1, got {metadata.batch}')
    if metadata.raw is not None:
        raise ExportError(
            f'a page reads images in RGB, and the file takes {metadata.raw} channels'
        )
    resize = metadata.resize or dict(interpolation='bilinear', backend='cv2')
    if resize['interpolation'] not in RESIZES.get(resize['backend'], ()):
        raise ExportError(
            f'a page resizes by {RESIZES}, got {resize["interpolation"]!r} of '
            f'{resize["backend"]!r}'
        )


def write_page(
    model: str | Path,
    folder: str | Path,
    *,
    examples: Sequence[str | Path] = (),
    archive: str | Path | None = None,
    force: bool = False,
) -> Path:
    """Write a folder that any web server of files can serve, and return its page.

    The page has the model, ONNX Runtime as WebAssembly, and code that prepares images
    as the model's test pipeline does. It reaches nothing outside of the folder.

    Args:
        model: an .onnx file of `export_model`.
        folder: new or empty folder.
        examples: images that a visitor may choose. They are copied into the folder.
        archive: onnxruntime-web-1.30.0.tgz, if it is here. Otherwise it is downloaded
            from npm once. Its SHA-256 is checked.
        force: write into a folder with files.

    Raises:
        ExportError: the page cannot prepare images for the model or show its results.
        ValueError: the model, the archive or an example is not one of those above.
        FileExistsError: the folder has files, and `force` is not set.
        ConnectionError: the archive cannot be downloaded.
    """
    folder, examples = Path(folder), [Path(each) for each in examples]
    check_folder(folder, force)
    if Path(model).suffix != '.onnx':
        raise UserError(f'a page requires an .onnx file, got {model}')
    metadata = load(model).metadata
    check_for_page(metadata)
    names = [each.name for each in examples]
    if len(set(names)) < len(names):
        raise UserError(f'examples must have different names, got {names}')
    for each in examples:
        read_image(each)
    archive = _checked(archive or download(URL, copy_of(URL), SHA256))
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(archive) as package:
        for name, member in RUNTIME.items():
            write_atomically(folder / name, package.extractfile(member).read())
    for file in PAGE.iterdir():
        shutil.copyfile(file, folder / file.name)
    if Path(model).resolve() != (folder / 'model.onnx').resolve():
        shutil.copyfile(model, folder / 'model.onnx')
    if examples:
        (folder / 'examples').mkdir(exist_ok=True)
    for each in examples:
        shutil.copyfile(each, folder / 'examples' / each.name)
    # Objects have the colors of `Detections.draw`, not of the data set.
    colors = metadata.palette if metadata.task == 'segmentation' else None
    colors = colors or class_colors(max(len(metadata.classes or ()), MIN_COLORS))
    described = asdict(metadata) | dict(
        title=Path(metadata.config or model).stem,
        colors=colors,
        examples=[f'examples/{name}' for name in names],
        bytes=sum((folder / name).stat().st_size for name in LOADED),
    )
    write_atomically(folder / 'model.json', json.dumps(described).encode())
    return folder / 'index.html'


def check_folder(folder: Path, force: bool):
    """Raise an OSError unless a folder is new or empty, or `force` is set."""
    if folder.is_file():
        raise NotADirectoryError(f'{folder} is a file; give the name of a folder')
    if folder.is_dir() and any(folder.iterdir()) and not force:
        raise FileExistsError(f'{folder} has files; `force` (--force) overwrites them')


def _checked(archive: str | Path) -> Path:
    digest = file_digest(archive)
    if digest != SHA256:
        raise UserError(
            f'{archive} is not {ONNXRUNTIME_WEB} of npm: its SHA-256 is '
            f'{digest}, expected {SHA256}'
        )
    return Path(archive)

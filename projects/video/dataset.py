"""Data sets of videos that a list file or Something-Something's json names."""

import json
import re
from pathlib import Path

from mmengine.dataset import BaseDataset
from mmengine.registry import DATASETS

from mmattn.errors import UserError


@DATASETS.register_module()
class VideoDataset(BaseDataset):
    """Labeled videos.

    `ann_file` is one of two kinds.

    - A text file has a video on each line, its path below `data_prefix['video_path']`
      and the number of its class: `archery/abc.mp4 5`. This is the usual layout of
      Kinetics-400. Paths may contain spaces; empty lines are skipped.
    - A json file is one of Something-Something v2, a list of objects with `id` and
      `template`. `label_file` is its json of labels, from template to number. Videos
      are called `<id><suffix>`.

    Args:
        ann_file: see above.
        label_file: json of labels of Something-Something v2, relative to `data_root`.
        suffix: end of the file names of Something-Something v2.
        data_prefix: folder of the videos, `dict(video_path=...)`, relative to
            `data_root`.
        **kwargs: see mmengine's `BaseDataset`: `data_root`, `pipeline` and others.

    Raises:
        ValueError: a file is missing or malformed. The message names the line or the
            entry.
    """

    def __init__(
        self,
        ann_file: str = '',
        *,
        label_file: str | None = None,
        suffix: str = '.webm',
        data_prefix: dict | None = None,
        **kwargs,
    ):
        self.label_file, self.suffix = label_file, suffix
        data_prefix = dict(video_path='') if data_prefix is None else data_prefix
        super().__init__(ann_file=ann_file, data_prefix=data_prefix, **kwargs)

    def load_data_list(self) -> list[dict]:
        path = Path(self.ann_file)
        folder = Path(self.data_prefix['video_path'])
        read = self._read_json if path.suffix == '.json' else self._read_list
        rows = read(path)
        if not rows:
            raise UserError(f'{path} names no video')
        return [
            dict(video_path=str(folder / name), gt_label=label) for name, label in rows
        ]

    def _read_list(self, path: Path) -> list[tuple[str, int]]:
        rows = []
        for number, line in enumerate(_read(path).splitlines(), start=1):
            if not line.strip():
                continue
            name, _, label = line.strip().rpartition(' ')
            if not name or not re.fullmatch(r'\d+', label):
                raise UserError(
                    f'line {number} of {path} must be a path and the number of a '
                    f"class, such as 'archery/abc.mp4 5', got {line!r}"
                )
            rows.append((name.strip(), int(label)))
        return rows

    def _read_json(self, path: Path) -> list[tuple[str, int]]:
        if self.label_file is None:
            raise UserError(
                f'{path} requires `label_file`, the json of labels of '
                'Something-Something v2, got None'
            )
        label_path = Path(self.data_root or '', self.label_file)
        labels, entries = _read_json(label_path, dict), _read_json(path, list)
        rows = []
        for index, entry in enumerate(entries):
            if not isinstance(entry, dict) or not {'id', 'template'} <= set(entry):
                raise UserError(
                    f'entry {index} of {path} must have `id` and `template`, '
                    f'got {entry}'
                )
            template = re.sub(r'[\[\]]', '', entry['template'])
            if template not in labels:
                raise UserError(
                    f'entry {index} of {path} has the template {template!r}, which '
                    f'{label_path} does not list'
                )
            rows.append((f'{entry["id"]}{self.suffix}', int(labels[template])))
        return rows


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError as error:
        raise UserError(f'cannot read {path}: {error.strerror}') from error


def _read_json(path: Path, kind: type):
    try:
        content = json.loads(_read(path))
    except json.JSONDecodeError as error:
        raise UserError(f'{path} is not json: {error}') from error
    if not isinstance(content, kind):
        raise UserError(
            f'{path} must be a json {kind.__name__}, got a {type(content).__name__}'
        )
    return content

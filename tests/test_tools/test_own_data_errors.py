"""docs/own_data.md quotes the errors that its mistakes raise."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip('mmdet')
pytest.importorskip('supervision')

import cv2
import torch
from mmengine.config import Config
from tool_runs import load_tool

from mmattn.datasets import check, convert

PAGE = Path(__file__).parents[2] / 'docs' / 'own_data.md'
CONFIG = 'data/mask_rcnn_ivit_n_cells.py'


@pytest.fixture
def here(tmp_path, monkeypatch):
    """The data set and the config of the page's example."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    for kind in ('images', 'masks'):
        Path('cells', kind).mkdir(parents=True)
    for index in range(5):
        image = rng.integers(0, 256, (64, 64, 3), np.uint8)
        cv2.imwrite(f'cells/images/{index}.png', image)
        mask = np.zeros((64, 64), np.uint8)
        mask[8:30, 8:30], mask[20:50, 40:60] = 1, 2
        cv2.imwrite(f'cells/masks/{index}.png', mask)
    args = ['masks', 'cells/images', 'cells/masks', '--out', 'data/cells']
    args.append('--no-estimate')
    convert.main([*args, '--classes', 'cell', '--val-images', '4*'])
    return tmp_path


def rename_category():
    path = Path('data/cells/annotations/instances_train.json')
    content = json.loads(path.read_text())
    content['categories'][0]['name'] = 'nucleus'
    path.write_text(json.dumps(content))


def write_weights_of_resnet():
    from torchvision.models import resnet18

    torch.save(resnet18().state_dict(), 'resnet18.pth')


def nothing():
    pass


CASES = {
    'channels': (nothing, ['model.neck.in_channels=[256,512,1024,2048]']),
    'arch': (nothing, ['model.backbone.arch=tinny']),
    'class': (nothing, ['model.backbone.type=mmattn.IVit']),
    'names': (rename_category, []),
    'comma': (nothing, ['train_dataloader.dataset.metainfo.classes=cell']),
    'number': (nothing, ['model.roi_head.bbox_head.num_classes=80']),
    'folder': (nothing, ['train_dataloader.dataset.data_root=data/cels/']),
    'truncated': (
        lambda: Path('data/cells/train/2.png').write_bytes(
            Path('data/cells/train/2.png').read_bytes()[:900]
        ),
        [],
    ),
    'no image': (lambda: Path('data/cells/train/2.png').write_text('text'), []),
    'weights': (write_weights_of_resnet, ['load_from=resnet18.pth']),
}


def quotes() -> list[str]:
    """Return the errors that the page quotes, in lines of text blocks."""
    section = PAGE.read_text().partition('## What goes wrong')[2]
    blocks = re.findall(r'^```text\n(.*?)^```$', section, re.MULTILINE | re.DOTALL)
    return [' '.join(block.split()) for block in blocks]


def message_of(case: str, args: list[str], capsys, forget_instances) -> str:
    """Return the error of check.py; wrong weights are found by train.py."""
    overrides = ['train_cfg.max_iters=1', 'train_dataloader.num_workers=0']
    overrides += ['train_dataloader.persistent_workers=False']
    args = [CONFIG, '--cfg-options', *overrides, *args]
    forget_instances()
    if case == 'weights':
        with pytest.raises(ValueError) as caught:
            load_tool('train').main(args)
        return str(caught.value)
    decode = ['--decode', '--num-workers', '1'] if case == 'no image' else []
    assert check.main([*args[:1], *decode, *args[1:]]) == 1
    message = capsys.readouterr().err
    assert 'Traceback' not in message
    return message.partition('error: ')[2]


@pytest.mark.parametrize('spoil, options', CASES.values(), ids=CASES)
def test_the_page_quotes_the_error(
    here, spoil, options, request, capsys, forget_instances
):
    spoil()
    case = request.node.callspec.id
    message = message_of(case, options, capsys, forget_instances)
    message = ' '.join(message.split())
    found = [quote for quote in quotes() if quote.rstrip('. ') in message]
    assert found, f'docs/own_data.md must quote: {message}'


def test_the_page_quotes_no_other_error():
    assert len(quotes()) == len(CASES)


def test_the_config_of_classification_loads(tmp_path):
    """The page's config of a classifier reads folders of images."""
    text = PAGE.read_text().partition('## Classification')[2]
    block = re.search(r'^```python\n(.*?)^```$', text, re.MULTILINE | re.DOTALL)[1]
    path = tmp_path / 'birds.py'
    path.write_text(block)
    cfg = Config.fromfile(path)
    train = cfg.train_dataloader.dataset
    assert (train.type, train.data_prefix) == ('CustomDataset', 'train')
    assert train.pipeline[1].type == 'RandomResizedCrop'
    assert 'split' not in train and cfg.model.head.num_classes == 3

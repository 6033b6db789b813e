"""mmattn data convert: splits of label maps, and the names of their classes."""

from pathlib import Path

import numpy as np
import pytest
from conversions import SIZE, run, save, write
from mmengine.config import Config
from PIL import Image

pytestmark = pytest.mark.usefixtures('empty_folder')


def label_maps(kind: str) -> list[str]:
    """Write CamVid's folders, or Pascal VOC's, and return the arguments."""
    lists = dict(train='a b', val='c', test='d')
    for split, names in lists.items():
        folders = {
            'camvid': (f'r/{split}', f'r/{split}annot'),
            'underscore': (f'r/{split}', f'r/{split}_labels'),
            'folders': (f'r/images/{split}', f'r/labels/{split}'),
            'one': (f'r/{split}/image', f'r/{split}/label'),
            'named': (f'r/{split}_images', f'r/{split}_masks'),
            'beside': (f'r/{split}', f'r/{split}'),
            'voc': ('r/JPEGImages', 'r/SegmentationClass'),
        }[kind]
        for name in names.split():
            save(f'{folders[0]}/{name}.{"jpg" if kind == "beside" else "png"}')
            mask = np.zeros(SIZE[::-1], np.uint8)
            mask[:9] = 1
            mask[9:12] = 11
            Path(folders[1]).mkdir(parents=True, exist_ok=True)
            end = dict(underscore='_L', beside='_mask').get(kind, '')
            Image.fromarray(mask).save(f'{folders[1]}/{name}{end}.png')
        write('\n'.join(names.split()), f'r/ImageSets/Segmentation/{split}.txt')
        if kind == 'beside':
            write('Pixel Value, Class\n0, sky\n1, road\n', f'r/{split}/_classes.csv')
    return ['labels', 'r', '--ignore', '11']


@pytest.mark.parametrize(
    'kind', ['camvid', 'underscore', 'folders', 'one', 'named', 'beside', 'voc']
)
def test_splits_of_label_maps(kind, capsys):
    args = label_maps(kind)
    if kind != 'beside':
        args += ['--classes', 'sky', 'road']
    run(*args)
    files = {p.parent.name: [] for p in Path('data/set/images').glob('*/*')}
    for path in sorted(Path('data/set/images').glob('*/*')):
        files[path.parent.name].append(path.stem)
    assert files == dict(train=['a', 'b'], val=['c'], test=['d'])
    labels = np.asarray(Image.open('data/set/labels/val/c.png'))
    assert [labels[0, 0], labels[10, 0], labels[20, 0]] == [1, 255, 0]
    cfg = Config.fromfile('data/upernet_ivit_n_set.py')
    assert cfg.metainfo.classes == ('sky', 'road')
    assert cfg.test_dataloader.dataset.data_prefix.img_path == 'images/test'


LEGENDS = {
    'labelmap.txt': '# label:color_rgb:parts:actions\nsky:0,0,0::\nroad:128,0,0::\n',
    'class_dict.csv': 'name,r,g,b\nsky,0,0,0\nroad,128,0,0\n',
    'class_names.txt': 'sky\nroad\n',  # of numbers, beside arrays of NumPy
}


@pytest.mark.parametrize('name', LEGENDS)
def test_names_and_colors_of_a_file_beside_label_maps(name):
    """As CVAT, CamVid and LabelMe write them; the folder of XML files has no maps."""
    for image in 'abcde':
        save(f'r/JPEGImages/{image}.jpg')
        write('<annotation/>', f'r/Annotations/{image}.xml')
        colors = np.zeros((*SIZE[::-1], 3), np.uint8)
        colors[9:] = 128, 0, 0
        folder = Path('r/SegmentationClass')
        if name == 'class_names.txt':
            write('', f'{folder}/{image}.npy')
            folder, colors = Path(f'{folder}PNG'), colors[..., 0] // 128
        folder.mkdir(exist_ok=True)
        Image.fromarray(colors).save(folder / f'{image}.png')
    write('a\nb\nc\nd\ne', 'r/ImageSets/Segmentation/default.txt')
    write(LEGENDS[name], f'r/{name}')
    run('labels', 'r')
    (path,) = Path('data/set/labels/val').iterdir()
    labels = np.asarray(Image.open(path))
    assert [labels[0, 0], labels[20, 0]] == [0, 1]
    cfg = Config.fromfile('data/upernet_ivit_n_set.py')
    assert cfg.metainfo.classes == ('sky', 'road')

"""mmattn data convert: images that training and evaluation share."""

from pathlib import Path

import pytest
from conversions import coco_json, convert, run, save, write

pytestmark = pytest.mark.usefixtures('empty_folder')
LEAKS = {
    'same name': ('a', dict(), '1 images of the same name, such as r/train/a.jpg and'),
    'same bytes': ('z', dict(copy=True), '1 files of the same bytes, such as'),
    'one video': ('day1_0007', dict(), '1 frames of one video or parts of one picture'),
    'exported': ('a_jpg.rf.0a1b2c', dict(), '1 images of the same name'),
}


@pytest.mark.parametrize('case', LEAKS.values(), ids=LEAKS)
def test_leaks_are_warned_about_once(case, capsys):
    name, options, said = case
    save('r/train/a.jpg', 'r/train/day1_0003.jpg', 'r/train/2007_01.jpg')
    save(f'r/val/{name}.jpg', 'r/val/2007_02.jpg')
    if options:
        Path(f'r/val/{name}.jpg').write_bytes(Path('r/train/a.jpg').read_bytes())
    for split in ('train', 'val'):
        names = sorted(path.stem for path in Path('r', split).glob('*.jpg'))
        write(coco_json(' '.join(names)), f'r/{split}/_annotations.coco.json')
    run('coco', 'r')
    err = capsys.readouterr().err
    assert err.count('warning: an evaluation') == 1 and said in err
    assert 'looks too good: train and val share 1 ' in err


@pytest.mark.parametrize(
    ('train', 'val', 'warned'),
    [
        ('im_0 im_1 im_2', 'im_0 im_1', False),
        ('im_2 im_3 im_4', 'im_2 im_3', True),
        ('im_0 im_1 im_2 im_3', 'im_0 im_3', True),
        ('a_0 b_1 im_2', 'a_0 b_1', True),
    ],
)
def test_equal_names_where_each_split_numbers_its_images(train, val, warned, capsys):
    for split, names in (('train', train), ('val', val)):
        save(*(f'r/{split}/{name}.jpg' for name in names.split()))
        write(coco_json(names), f'r/{split}/_annotations.coco.json')
    run('coco', 'r')
    assert ('2 images of the same name' in capsys.readouterr().err) == warned


@pytest.mark.parametrize('seed', ['0', '1', '2'])
def test_copies_of_an_image_stay_in_one_split(seed, capsys):
    """Copies are files of the same bytes, and what Roboflow makes of an image."""
    names = 'a a1 a2 b_jpg.rf.01 b_jpg.rf.02 b1 c d'
    save(*(f'r/images/{name}.jpg' for name in names.split()))
    for copy, name in (('a1', 'a'), ('a2', 'a'), ('b1', 'b_jpg.rf.02')):
        content = Path(f'r/images/{name}.jpg').read_bytes()
        Path(f'r/images/{copy}.jpg').write_bytes(content)
    write(coco_json(names), 'r/a.json')
    found = convert('coco', 'r', '--val', '0.3', '--seed', seed)
    splits = [{name[0] for name in found[split]} for split in ('train', 'val')]
    assert splits[0].isdisjoint(splits[1]) and splits[0] | splits[1] == {*'abcd'}
    assert 'looks too good' not in capsys.readouterr().err

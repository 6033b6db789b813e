"""Images that nobody has annotated are told of and left out."""

import pytest
from conversions import SIZE, convert, run, save, write
from PIL import Image

from mmattn.errors import UserError

pytestmark = pytest.mark.usefixtures('empty_folder')

BOX = '<bndbox><xmin>5</xmin><ymin>5</ymin><xmax>20</xmax><ymax>20</ymax></bndbox>'
XML = f'<annotation><object><name>a</name>{BOX}</object></annotation>'
YAML = 'train: train/images\nval: val/images\ntest: test/images\nnames: [a]'
ANNOTATED = {
    'voc': lambda name: write(XML, f'set/{name}.xml'),
    'yolo': lambda name: write('0 0.5 0.5 0.2 0.2', f'set/{name}.txt'),
    'masks': lambda name: save_mask(f'set/{name}_mask.png'),
}


def save_mask(name: str):
    mask = Image.new('L', SIZE)
    mask.paste(255, (5, 5, 20, 20))
    mask.save(name)


@pytest.mark.parametrize('kind', ANNOTATED)
def test_a_split_without_annotations(kind, capsys):
    for name in ('train/1', 'train/2', 'val/3', 'test/4'):
        save(f'set/{name}.png')
        if name != 'test/4':
            ANNOTATED[kind](name)
    written = convert(kind, 'set', *['--classes', 'a'] * (kind == 'yolo'))
    assert {name: len(found) for name, found in written.items()} == dict(train=2, val=1)
    assert (
        'test: set/test has no annotations, and is left out' in capsys.readouterr().err
    )


def test_a_split_of_a_yaml_file_without_labels(capsys):
    write(YAML, 'data.yaml')
    for name in ('train', 'val', 'test'):
        save(f'{name}/images/{name}.jpg')
    write('0 0.5 0.5 0.2 0.2', 'train/labels/train.txt')
    # A fifth of the training images validates instead: of one, none is left to train.
    with pytest.raises(UserError, match='of 1 images none is left for train'):
        run('yolo', '.')
    error = capsys.readouterr().err
    assert 'val: val/images has no annotations' in error
    assert 'test: test/images has no annotations' in error


def test_images_of_voc_without_a_file(capsys):
    save(*(f'images/{i}.png' for i in range(4)))
    write(XML, *(f'xml/{i}.xml' for i in range(3)))
    written = convert('voc', 'images', 'xml')
    assert sorted(sum(written.values(), [])) == ['0.png', '1.png', '2.png']
    assert "1 images of images that no annotations list, such as '3.png'" in (
        capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ('files', 'message'),
    [
        ((), 'xml has no XML file'),
        (('xml/0.xml', 'xml/9.xml'), "xml: 1 files without an image, such as '9'"),
    ],
)
def test_voc_files_that_match_nothing_are_errors(files, message):
    save('images/0.png', 'images/1.png', 'xml/keep.png')
    write(XML, *files)
    with pytest.raises(UserError, match=message):
        run('voc', 'images', 'xml')

"""mmattn data convert classes: a CSV file with the class of each image."""

from pathlib import Path

import pytest
from conversions import run, save, write

from mmattn.data.recognize import format_of
from mmattn.errors import UserError

pytestmark = pytest.mark.usefixtures('empty_folder')

NAMES = 'a1', 'a2', 'b1', 'b2'
PLAIN = 'image_id,breed\na1,cat\na2,cat\nb1,dog\nb2.jpg, dog \n'


def converted(text: str, *args: str, names=NAMES) -> set[str]:
    """Convert images of a table, and return the files without their splits."""
    save(*(f'images/{name}.jpg' for name in names))
    write(text, 'classes.csv')
    run('classes', 'images', 'classes.csv', *args)
    files = Path('data/set').rglob('*.jpg')
    return {str(Path(*file.parts[3:])) for file in files}


@pytest.mark.parametrize(
    'text',
    [
        PLAIN,
        PLAIN.partition('\n')[2],
        '\ufeff' + PLAIN.replace('a1,', 'images\\a1.jpg,'),
        'id,name,label,age\n7,a1,cat,1\n8,a2,cat,2\n9,b1,dog,3\n10,b2,dog,\n\n',
        ',image,kind\n0,a1,cat\n1,a2,cat\n2,b1,dog\n3,b2,dog\n',
        'image,cat,dog\na1,1,0\na2,1.0,0.0\nb1,0,1\nb2,0.0,1\n',
        '\n' + PLAIN.replace('cat\n', 'cat,\n'),
    ],
    ids=['usual', 'no-head', 'paths', 'several', 'index', 'one-hot', 'blank'],
)
def test_classes_of_a_table(text):
    assert converted(text) == {'cat/a1.jpg', 'cat/a2.jpg', 'dog/b1.jpg', 'dog/b2.jpg'}


@pytest.mark.parametrize(
    'text',
    [
        ',bild,kind\n1,2,cat\n2,1,dog\n',
        'id,image_id,label\n1,2,cat\n2,1,dog\n',
        'nr,bild,label\n1,2.jpg,cat\n2,1.jpg,dog\n',
    ],
    ids=['index', 'usual', 'suffix'],
)
def test_numbers_of_lines_are_no_images(text):
    assert converted(text, names=('1', '2')) == {'cat/2.jpg', 'dog/1.jpg'}


def test_classes_are_merged_and_images_left_out(capsys):
    names = *NAMES, 'c1', 'sub/d1', 'extra'
    text = PLAIN + 'c1,cow\nd1,cow\n'
    options = '--merge', 'pet=cat,dog'
    files = {'pet/cat/a1.jpg', 'pet/cat/a2.jpg', 'pet/dog/b1.jpg', 'pet/dog/b2.jpg'}
    assert converted(text, *options, names=names) == files | {
        'cow/c1.jpg',
        'cow/sub/d1.jpg',
    }
    said = "1 images of images that classes.csv does not list, such as 'extra.jpg', are"
    assert said in capsys.readouterr().err


def test_a_competition_is_found(capsys):
    """The test images have no classes, and the sample submission wrong ones."""
    save(*(f'set/train_images/{name}.jpg' for name in NAMES), 'set/test_images/x.jpg')
    write(PLAIN, 'set/train.csv')
    write('image_id,breed\nx,cat\n', 'set/sample_submission.csv')
    assert format_of(Path('set')) == 'classes'
    run('classes', 'set')
    files = {path.name for path in Path('data/set').rglob('*.jpg')}
    assert files == {f'{name}.jpg' for name in NAMES}


def test_tables_of_two_splits():
    save(*(f'set/{name}.jpg' for name in NAMES))
    write(PLAIN.replace('a2,cat\n', '').replace('b2.jpg, dog \n', ''), 'set/train.csv')
    write('image_id,breed\na2,cat\nb2,dog\n', 'set/valid.csv')
    run('classes', 'set')
    files = {str(p.relative_to('data/set')) for p in Path('data/set').rglob('*.jpg')}
    assert files == {
        *('train/cat/a1.jpg', 'train/dog/b1.jpg'),
        *('val/cat/a2.jpg', 'val/dog/b2.jpg'),
    }


def test_boxes_in_a_csv_file_are_objects():
    save('set/1.jpg', 'set/2.jpg')
    write('filename,xmin,ymin,xmax,ymax,class\n1.jpg,1,1,9,9,a\n', 'set/boxes.csv')
    assert format_of(Path('set')) == 'csv'
    write('1.jpg,1,1,9,9,a\n', 'set/boxes.csv')  # as DeepForest writes it
    assert format_of(Path('set')) == 'csv'


REFUSED = {
    'empty': ('', 'classes.csv must have a column that names images in images'),
    'images': ('a,b\nx,cat\n', 'must have a column that names images in images, and o'),
    'one': ('image\na1\na2\n', "must have a column of classes, got ['image']"),
    'image': (PLAIN + 'c,cat\n', "line 6 must name one image in images, got 'c'"),
    'no-head': ('a1,cat\nc,cat\n', "line 2 must name one image in images, got 'c'"),
    'twice': (PLAIN + 'a1,dog\n', 'line 6: images/a1.jpg has the class cat, too'),
    'none': (PLAIN + 'a1,\n', 'line 6 must name one class, as a folder may'),
    'slash': ('id,kind\na1,a/b\n', 'line 2 must name one class, as a folder may'),
    'root': ('id,kind\na1,..\n', 'line 2 must name one class, as a folder may'),
    'short': (PLAIN + 'a1\n', "line 6 must have 2 cells, got ['a1']"),
    'comma': (PLAIN + 'a1,cat,big\n', "must have 2 cells, got ['a1', 'cat', 'big']"),
    'two-hot': ('id,x,y\na1,1,0\na2,1,1\n', 'line 3 must name one class, as a folder'),
    'no-hot': ('id,x,y\na1,1,0\na2,0,0\n', "got ['0', '0']"),
    'other-hot': ('id,x,y\na1,1,0\na2,0,3\n', "got ['0', '3']"),
    'class': ('id,kind\na1,a\na2,a\n', 'must have images of two classes or more, '),
}  # fmt: skip


@pytest.mark.parametrize('case', REFUSED.values(), ids=REFUSED)
def test_tables_that_cannot_be_meant(case):
    text, message = case
    with pytest.raises(UserError) as error:
        converted(text)
    assert message in str(error.value) and not Path('data/set').exists()

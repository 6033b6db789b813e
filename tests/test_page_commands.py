"""Each command and example of the first pages runs in a clean folder.

The commands of a page run in its order, with two iterations where it trains. `LEFT_OUT`
names the others, and why.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from predictor_models import noise, write_run

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[1]
PAGES = 'docs/own_data', 'README', 'docs/start', 'docs/predict', 'docs/export'
PAGES += 'docs/weights', 'docs/finetune', 'docs/install', 'docs/accelerate'
PYTHON = re.compile(r'^```python\n(.*?)^```$', re.MULTILINE | re.DOTALL)
FENCED = re.compile(r'^```.*?^```$', re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r'^    ((?:mmattn|python|pip|make) .*)$|`(mmattn [^`]+)`', re.M)
LEFT_OUT = {
    '^(pip|make) |--install': 'installs, or is a job of its own',
    r'^mmattn web|http\.server': 'runs until it is stopped; see tests/test_web',
    r'datasets\.hela|tools.converters|_lite0|small_data|://': 'needs a network',
    'weights (get|verify)|data prepare': 'needs a network',
    r'ivit_t_3x_coco': 'needs COCO',
    r'^mmattn test (pvt|classification)': 'needs ImageNet',
    r'\$|_300i|configs/demo|data/hela': 'needs a demo that was trained',
    r'[A-Z]{4}|\[|^mmattn has |\.\.\.|^mmattn data convert(?!.* --out )': 'not whole',
    r'^mmattn (train|test|predict|export|report|data check)( --\S+)?$': 'not whole',
    '--int8': 'needs labeled images of my_run; see tests/test_export/test_int8.py',
}
MEANT = {
    'export WORK_DIR --': 'export work_dirs/my_run --',
    'NEW_IMAGES': 'images',
    'HEIGHT WIDTH': '96 96',
}
SHORT = '--pretrained none --cfg-options train_cfg.max_iters=2 train_cfg.val_interval=2'
SHELL = 'mmattn() { "$PYTHON" -m mmattn "$@"; }; python() { "$PYTHON" "$@"; }; '


def commands(page):
    text = FENCED.sub('', (ROOT / f'{page}.md').read_text())
    for found in dict.fromkeys(COMMAND.findall(re.sub(r'\\\n\s*', '', text))):
        command = ' '.join(''.join(found).partition('  #')[0].split())
        for word, value in MEANT.items():
            command = command.replace(word, value)
        if not any(re.search(pattern, command) for pattern in LEFT_OUT):
            yield command


def blocks(page, word=''):
    text = (ROOT / f'{page}.md').read_text()
    return [block for block in PYTHON.findall(text) if word in block]


@pytest.fixture(scope='module')
def clean_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp('pages')
    for name in ('tools', 'configs'):
        (folder / name).symlink_to(ROOT / name)
    names = 'images', 'cells/images', 'cells/masks', 'data'
    for name in (*names, 'trees/JPEGImages', 'trees/Annotations'):
        (folder / name).mkdir(parents=True)
    masks = np.kron(np.arange(16).reshape(4, 4), np.ones((24, 24))).astype(np.uint8)
    masks[::24] = masks[:, ::24] = 0
    for i in range(8):
        Image.fromarray(noise(96, 96, i)).save(folder / f'cells/images/{i}.png')
        Image.fromarray(np.roll(masks, i)).save(folder / f'cells/masks/{i}.png')
        Image.fromarray(noise(96, 96, i)).save(folder / f'images/{i}.jpg')
    for name in ('image.png', 'image.jpg'):
        Image.fromarray(noise(96, 96)).save(folder / name)
    run = write_run(folder / 'work_dirs/mask_rcnn_ivit_n_hela', 'detection')
    (run / 'detection.py').rename(run / 'mask_rcnn_ivit_n_hela.py')
    write_run(folder / 'work_dirs/my_run', 'detection')
    voc = '<annotation><object><name>tree</name><bndbox><xmin>11</xmin><ymin>6</ymin>'
    voc += '<xmax>30</xmax><ymax>26</ymax></bndbox></object></annotation>'
    for i in range(5):
        Image.fromarray(noise(400, 500, i)).save(folder / f'trees/JPEGImages/{i}.jpg')
        (folder / f'trees/Annotations/{i}.xml').write_text(voc)
    for split in ('train', 'val'):
        for i in range(6):
            path = folder / f'birds/{split}/{"abc"[i % 3]}/{i}.png'
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(noise(64, 64, i)).save(path)
    (resnet,) = blocks('docs/own_data', 'depth=18')
    (folder / 'data/mask_rcnn_r18_cells.py').write_text(resnet)
    return folder


@pytest.fixture
def folder(clean_folder, tmp_path):
    return Path(shutil.copytree(clean_folder, tmp_path / 'pages', symlinks=True))


def run(folder, command):
    env = dict(os.environ, PYTHON=sys.executable, PYTHONPATH=str(ROOT))
    options = dict(stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    script = ['bash', '-ec', SHELL + command]
    done = subprocess.run(script, cwd=folder, env=env, **options)
    assert done.returncode == 0, f'{command}\n{done.stdout[-3000:]}'


EXAMPLES = {  # words of examples; test_documents.py has those of README
    'docs/start': ['IViT('],
    'docs/predict': ['Predictor(', 'DetInferencer'],
    'docs/export': ['export.load', 'MaskRCNN'],
    'docs/accelerate': ['accelerate(', 'na2d'],
}


@pytest.mark.parametrize('page', PAGES)
def test_commands_then_examples(folder, page):
    ran = 0
    for command in commands(page):
        if re.match(r'mmattn train|python tools/train', command):
            command += f' {SHORT}'
        elif command.startswith('mmattn data convert'):
            command += ' --no-estimate'
        run(folder, command)
        ran += 1
    assert ran > 0
    for word in EXAMPLES.get(page, []):
        (block,) = blocks(page, word)
        block = block.replace('iter_200.pth', 'epoch_2.pth')
        (folder / 'example.py').write_text(block)
        run(folder, 'python example.py')


def test_a_small_classification_set(folder):
    run(folder, 'mmattn data convert classes birds --out data/birds --no-estimate')
    config = 'data/classifier_pvt_v2_b0_birds.py'
    run(folder, f'mmattn data check {config}')
    run(folder, f'mmattn train {config} {SHORT}')

"""The page in a headless Chromium, as a user uses it."""

import base64
import io
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

pytestmark = pytest.mark.slow
sync_api = pytest.importorskip('playwright.sync_api')
BROWSER = shutil.which('chromium') or shutil.which('google-chrome')
if BROWSER is None:
    pytest.skip('there is no chromium', allow_module_level=True)

from predictor_models import noise, write_run  # noqa: E402

SECONDS = 60_000  # milliseconds of a step, on a slow machine
# A file is dropped by an event that carries it, as Playwright cannot hold files.
DROP = """
([target, name, type, content]) => {
    const bytes = Uint8Array.from(atob(content), each => each.charCodeAt(0));
    const data = new DataTransfer();
    data.items.add(new File([bytes], name, {type}));
    for (const kind of ['dragenter', 'dragover', 'drop'])
        target.dispatchEvent(
            new DragEvent(kind, {dataTransfer: data, bubbles: true, cancelable: true})
        );
}
"""


@pytest.fixture(scope='module')
def site(tmp_path_factory):
    """The command with a detector and a segmentor; its address and folders."""
    root = tmp_path_factory.mktemp('site')
    for task in ('detection', 'segmentation'):
        write_run(root / 'work_dirs' / task, task)
    (root / 'images').mkdir()
    (root / 'temporary').mkdir()
    Image.fromarray(noise(50, 70, 3)).save(root / 'images/given.png')
    Image.fromarray(noise(60, 80)).save(root / 'cells.png')
    path = os.pathsep.join([str(Path(__file__).parents[2]), *sys.path])
    server = subprocess.Popen(
        [sys.executable, '-m', 'mmattn', 'web', '--images', 'images', '--device=cpu'],
        cwd=root,
        env=os.environ | dict(PYTHONPATH=path, TMPDIR=str(root / 'temporary')),
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        lines = iter(server.stdout.readline, '')
        (address,) = next(
            found for line in lines if (found := re.findall(r'http://\S+', line))
        )
        yield dict(address=address, root=root)
        assert list((root / 'temporary').glob('mmattn_web_*/*'))
    finally:
        server.send_signal(signal.SIGTERM)
        assert server.wait(30) == 0
    assert not list((root / 'temporary').glob('mmattn_web_*'))


@pytest.fixture(scope='module')
def browser():
    with sync_api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path=BROWSER, args=['--no-sandbox']
        )
        yield chromium
        chromium.close()


@pytest.fixture
def page(site, browser):
    """A page that can reach nothing but the server."""
    page = browser.new_page(viewport=dict(width=1280, height=900))
    page.set_default_timeout(SECONDS)
    outside = []

    def route(each):
        url = each.request.url
        if url.startswith((site['address'], 'data:', 'blob:')):
            each.continue_()
        else:
            outside.append(url)
            each.abort()

    page.route('**/*', route)
    page.goto(site['address'])
    page.wait_for_selector('#upload input[type=file]', state='attached')
    yield page
    page.close()
    assert not outside


def picture(page, name):
    """Return the pixels of an image of the page."""
    content = page.request.get(page.get_attribute(f'#{name} img', 'src')).body()
    return np.asarray(Image.open(io.BytesIO(content)).convert('RGB'))


def heights(page, selector):
    found = page.locator(selector)
    return found.evaluate_all('found => found.map(each => each.offsetHeight)')


def wait_for(page, name, text):
    page.wait_for_function(
        '([name, text]) => document.querySelector(name)?.innerText.match(text)',
        arg=[f'#{name}', text],
    )


def test_drop_predict_and_download(site, page):
    content = base64.b64encode((site['root'] / 'cells.png').read_bytes()).decode()
    target = page.query_selector('#upload button')
    page.evaluate(DROP, [target, 'cells.png', 'image/png', content])
    wait_for(page, 'line', 'objects with a score of at least 0.3')
    before = picture(page, 'picture')
    assert before.shape == (480, 640, 3)
    page.fill('#score input[type=number]', '0')
    page.press('#score input[type=number]', 'Enter')
    page.press('#score input[type=number]', 'Tab')
    wait_for(page, 'line', '6 objects with a score of at least 0')
    wait_for(page, 'table', r'(nucleus[^]*){6}')
    with page.expect_download() as download:
        page.click('#json')
    document = Path(download.value.path()).read_text()
    assert download.value.suggested_filename == 'cells.json'
    assert document.count('"segmentation"') == 6


def test_choose_click_and_compare(site, page):
    page.set_input_files('#upload input[type=file]', site['root'] / 'cells.png')
    wait_for(page, 'line', 'objects')
    page.click('#model input')
    page.get_by_role('option', name='segmentation').click()
    wait_for(page, 'line', r'\d classes')
    page.click('#chosen input')
    page.get_by_role('option', name='given.png').click()
    page.wait_for_function(
        "() => !document.querySelector('#upload').innerText.match('cells')"
    )
    page.get_by_role('tab', name='Attention').click()
    page.wait_for_selector('#clicked img')
    page.locator('#clicked img').click(position=dict(x=90, y=60))
    page.wait_for_selector('#gallery img')
    wait_for(page, 'legend', 'the clicked one')
    marked = picture(page, 'clicked')
    x, y = (int(page.get_by_label(label, exact=True).input_value()) for label in 'xy')
    assert 0 < x < 70 and 0 < y < 50  # pixels of the image, not of the shown picture
    assert ((marked == [255, 0, 0]).all(-1)).any()
    page.get_by_role('tab', name='Compare').click()
    page.click('#compare')
    wait_for(page, 'verdict', 'median of 7 runs')
    assert picture(page, 'a').shape == picture(page, 'b').shape == (450, 630, 3)
    assert 'detection' in page.inner_text('#times')
    page.set_viewport_size(dict(width=390, height=844))
    a, b = (page.locator(name).bounding_box() for name in ('#a', '#b'))
    assert a['y'] == b['y'] and a['width'] > 120  # side by side on a phone
    assert a['y'] - page.locator('#compare').bounding_box()['y'] < 200
    assert max(heights(page, '#a label')) < 5  # it would hide the legend
    assert max(heights(page, '#times th')) < 50  # one line


def test_a_broken_file_and_a_second_try(site, page, tmp_path):
    (tmp_path / 'broken.png').write_bytes(b'<b>no image</b>')
    page.set_input_files('#upload input[type=file]', tmp_path / 'broken.png')
    page.get_by_text('broken.png cannot be read as an image').wait_for()
    page.click('#upload button[aria-label="Clear"]')
    page.set_input_files('#upload input[type=file]', site['root'] / 'cells.png')
    wait_for(page, 'line', 'objects with a score')


def test_two_users_and_one_who_leaves(site, page, browser):
    other = browser.new_page()
    other.goto(site['address'])
    for each in (other, page):
        each.set_input_files('#upload input[type=file]', site['root'] / 'cells.png')
    other.close()
    wait_for(page, 'line', 'objects with a score')

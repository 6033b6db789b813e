"""The page as programs and attackers use it: results, limits, paths and users."""

import html
import json
import socket
import threading
import time
from pathlib import Path

import httpx
import numpy as np
import pytest
from gradio_client import Client, handle_file
from gradio_client.exceptions import AppError
from PIL import Image
from predictor_models import noise, write_run

from mmattn.apis.config_model import ConfigModel
from mmattn.results import Classification, coco_document
from mmattn.web import views
from mmattn.web.models import Models, Source, offered_models
from mmattn.web.photos import Photo, images_in
from mmattn.web.server import is_local, serve

SCORE = 0.3
PATIENT = dict(verbose=False, httpx_kwargs=dict(timeout=60))  # on a busy machine


class Gate:
    """Lets a test hold a model while it runs."""

    def __init__(self):
        self.open, self.reached = threading.Event(), threading.Event()
        self.open.set()
        self.runs = 0

    def hold(self):
        self.open.clear()
        self.reached.clear()


@pytest.fixture(scope='module')
def site(tmp_path_factory):
    """A page with a detector and a segmentor; its models, gate and folder."""
    root = tmp_path_factory.mktemp('site')
    for task in ('detection', 'segmentation'):
        write_run(root / 'runs' / task, task)
    (root / 'images').mkdir()
    Image.fromarray(noise(50, 70, 3)).save(root / 'images/given.png')
    Image.fromarray(noise(50, 70, 4)).save(root / 'secret.png')
    Image.fromarray(noise(60, 80)).save(root / 'cells.png')
    models = Models(offered_models([Source(str(root / 'runs'))]), 'cpu')
    gate = Gate()
    run = ConfigModel.__call__

    def gated(self, images, scale=None):
        gate.reached.set()
        gate.runs += 1
        assert gate.open.wait(60)
        return run(self, images, scale)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ConfigModel, '__call__', gated)
        tunnels = []
        patch.setattr('gradio.networking.setup_tunnel', lambda **kw: tunnels.append(kw))
        patch.setenv('GRADIO_SHARE', 'True')
        patch.setenv('GRADIO_ALLOWED_PATHS', str(root))
        patch.setenv('GRADIO_SERVER_NAME', '0.0.0.0')
        patch.setenv('GRADIO_MCP_SERVER', 'True')
        patch.delenv('GRADIO_ANALYTICS_ENABLED', raising=False)
        patch.chdir(root)
        limits = dict(max_megapixels=0.01, max_megabytes=1)
        page = serve(models, images_in(root / 'images'), **limits, wait=False)
        found = dict(models=models, gate=gate, root=root, tunnels=tunnels)
        yield dict(page=page, url=page.local_url, **found)
        page.close(verbose=False)


@pytest.fixture(scope='module')
def client(site):
    return ready_client(site)


def ready_client(site):
    """Return a client whose image is loaded."""
    client = Client(site['url'], **PATIENT)
    client.predict(handle_file(site['root'] / 'cells.png'), api_name='/load')
    return client


def load(client, path, **options):
    client.predict(handle_file(path), api_name='/load')
    return client.predict(**options, api_name='/predict')


@pytest.mark.parametrize('task', ['detection', 'segmentation'])
def test_results_are_the_predictor_s(site, client, task):
    path = site['root'] / 'cells.png'
    expected = site['models'][task](path)
    expected.source = 'cells.png'
    style = views.Style()
    if task == 'detection':
        style = views.Style(float(expected.scores[2:4].mean()))
    picture, line, table, file, labels, *_ = load(
        client, path, model=task, score=style.score
    )
    document = json.loads(Path(file['value']).read_text())
    drawn = views.draw(expected, Photo('cells.png', noise(60, 80)), style)
    np.testing.assert_array_equal(np.asarray(Image.open(picture)), drawn)
    if task == 'detection':
        found = expected.above(style.score)
        assert len(found) == 3 and line.startswith('3 objects with a score of at least')
        assert [row[1] for row in table['value']['data']] == [
            round(float(score), 3) for score in found.scores
        ]
        assert document == coco_document([found], ['nucleus'])
        x1, y1, x2, y2 = found.boxes[0].tolist()
        row = [x1, y1, x2 - x1, y2 - y1, int(found.masks[0].sum())]
        assert table['value']['data'][0][2:] == pytest.approx(row, abs=0.1)
    else:
        np.testing.assert_array_equal(
            np.asarray(Image.open(labels['value'])), expected.labels
        )
        assert len(table['value']['data']) == len(expected.present())


def test_names_of_classes_are_no_markdown(tmp_path):
    from mmattn.web.page import Page  # imports gradio, for seconds

    name = '![x](http://a.example/<b>) $$_www.a.example'
    found = views.Prediction(Classification(np.ones(1), [name]), [name], 'Seen.')
    photo, style = Photo('a.png', noise(8, 8)), (SCORE, views.DRAWN[0], True, 0.5)
    _, line, *_ = Page(None, {}, 10**6, tmp_path).redraw(photo, found, *style)
    assert html.unescape(line) == f'{name} 1.000. Seen.'
    assert not {*'![]()<>:/$_'} & {*line} and 'www.' not in line


def test_each_answer_has_files_of_its_own(site):
    """A file that two answers share is written while a browser reads it."""
    user = Client(site['url'], **PATIENT, download_files=False)
    path = site['root'] / 'cells.png'
    shown, *_ = user.predict(handle_file(path), api_name='/load')
    again, *_ = user.predict(handle_file(path), api_name='/load')
    files = [shown['path'], again['path']]
    options = dict(model='segmentation', x=20, y=30, layer=None)
    for _ in range(2):
        files.append(user.predict(model='segmentation', api_name='/predict')[0]['path'])
        _, marked, gallery, _ = user.predict(**options, api_name='/look')
        files += [marked['path'], *(each['image']['path'] for each in gallery)]
    assert len(set(files)) == len(files) > 6


def test_images_run_in_tiles(site, client):
    line = load(client, site['root'] / 'cells.png', model='detection', tile=128)[1]
    assert line.endswith('The model sees 160 x 120 pixels of each of 1 tiles.')
    with pytest.raises(AppError):
        client.predict(model='detection', tile=5, api_name='/predict')


def test_attention_of_a_pixel(site, client):
    load(client, site['root'] / 'cells.png', model='segmentation')
    layer, picture, gallery, legend = client.predict(
        model='segmentation', x=20, y=30, layer=None, api_name='/look'
    )
    assert len(layer['choices']) == 2 and layer['value'] == layer['choices'][-1][0]
    assert len(gallery) > 0 and 'clicked' in legend
    marked = np.asarray(Image.open(picture))
    assert tuple(marked[244, 164]) == (255, 255, 255)  # each pixel is shown as 8 x 8
    assert 'x the mean</span>' in legend
    first = layer['choices'][0][0]
    others, _ = client.predict(layer=first, api_name='/show')
    assert others[0]['caption'].startswith('head 1: ')
    with pytest.raises(AppError, match='is outside the 60x80 image'):
        client.predict(model='segmentation', x=80, y=3, layer=None, api_name='/look')


@pytest.mark.parametrize(
    'content, message',
    [
        (b'<script>alert(1)</script>', 'cannot be read as an image of BMP'),
        (None, 'million; at most 0.01 million are accepted'),
    ],
    ids=['text', 'large'],
)
def test_files_that_are_no_image_give_a_message(
    site, tmp_path, client, content, message
):
    path = tmp_path / 'a.png'
    if content is None:
        Image.fromarray(np.zeros((1000, 1000, 3), np.uint8)).save(path)
    else:
        path.write_bytes(content)
    with pytest.raises(AppError, match=message):
        client.predict(handle_file(path), api_name='/load')
    assert load(client, site['root'] / 'cells.png', model='detection')[1]


def test_models_are_chosen_by_name_only(site, client):
    for model in (str(site['root'] / 'runs/detection'), '../detection', None):
        with pytest.raises(AppError):
            client.predict(model=model, api_name='/predict')


def test_uploads_are_limited(site):
    def upload(*sizes):
        files = [('files', ('a.png', b'x' * size)) for size in sizes]
        url = f'{site["url"]}gradio_api/upload'
        return httpx.post(url, files=files).status_code

    assert upload(900_000) == 200
    assert upload(1_000_001) == 413
    assert upload(900_000, 900_000, 900_000) == 413


def paths(root):
    return {
        'system': '/etc/passwd',
        'allowed-by-environment': f'{root}/secret.png',
        'working-directory': 'secret.png',
        'checkpoint': f'{root}/runs/detection/epoch_2.pth',
        'given-images': f'{root}/images/given.png',
        'parent': 'images/../secret.png',
    }


@pytest.mark.parametrize('kind', paths(''))
def test_no_file_is_served_or_read_by_its_path(site, kind):
    path = paths(site['root'])[kind]
    with httpx.Client(base_url=site['url'], timeout=60) as http:
        for url in (f'gradio_api/file={path}', f'file={path}', f'static/{path}'):
            assert http.get(url).status_code in (403, 404), url
        encoded = path.replace('/', '%2F').replace('.', '%2e')
        for url in (f'gradio_api/file={encoded}', f'gradio_api/file=..%2f{encoded}'):
            assert http.get(url).status_code in (403, 404), url
        meta = dict(_type='gradio.FileData')
        data = [dict(path=path, orig_name='a.png', url=None, meta=meta)]
        call = http.post('gradio_api/call/load', json=dict(data=data))
        assert call.status_code == 200
        answer = http.get(f'gradio_api/call/load/{call.json()["event_id"]}').text
        assert 'event: error' in answer and 'event: complete' not in answer
        assert 'gradio_api/file=' not in answer


def test_other_hosts_and_origins_are_refused(site):
    assert httpx.get(site['url']).status_code == 200
    assert httpx.get(site['url'], headers={'Host': 'evil.example'}).status_code == 400
    origin = {'Origin': 'http://evil.example'}
    answer = httpx.get(f'{site["url"]}config', headers=origin)
    assert answer.headers.get('access-control-allow-origin') is None
    url, files = f'{site["url"]}gradio_api/upload', [('files', ('a.png', b'x'))]
    assert httpx.post(url, files=files, headers=origin).status_code == 403
    own = {'Origin': site['url'].rstrip('/')}
    assert httpx.post(url, files=files, headers=own).status_code == 200


def test_it_listens_on_this_machine_and_shares_nothing(site):
    page = site['page']
    assert page.server_name == '127.0.0.1'
    assert page.local_url.startswith('http://127.0.0.1:')
    assert page.share is False and page.share_url is None and not site['tunnels']
    assert not page.analytics_enabled and not page.mcp_server
    assert page.max_file_size == 10**6
    config = httpx.get(f'{site["url"]}config').text
    assert str(site['root']) not in config
    assert all(is_local(host) for host in ('127.0.0.1', '127.9.9.9', 'localhost'))
    assert not any(is_local(host) for host in ('0.0.0.0', '192.168.0.1', 'host.name'))
    with socket.socket() as other, pytest.raises(OSError):
        other.bind(('127.0.0.1', page.server_port))
    dropdown = next(each for each in page.blocks.values() if each.elem_id == 'chosen')
    assert [name for name, _ in dropdown.choices] == [dropdown.value] == ['given.png']


def test_two_users_at_once(site):
    """Each gets the result of the own image, one after the other."""
    clients = [Client(site['url'], **PATIENT) for _ in range(2)]
    sizes = [(40, 90), (90, 40)]
    for i, (client, size) in enumerate(zip(clients, sizes, strict=True)):
        path = site['root'] / f'user{i}.png'
        Image.fromarray(noise(*size, i)).save(path)
        client.predict(handle_file(path), api_name='/load')
    site['gate'].hold()
    before = site['gate'].runs
    asked = dict(model='segmentation', api_name='/predict')
    jobs = [client.submit(**asked) for client in clients]
    assert site['gate'].reached.wait(30)
    time.sleep(0.5)
    assert not any(job.done() for job in jobs)
    assert site['gate'].runs == before + 1  # the other one waits
    site['gate'].open.set()
    for job, size in zip(jobs, sizes, strict=True):
        assert Image.open(job.result(60)[0]).size == (7 * size[1], 7 * size[0])


def join(http, site, name, session, *data):
    """Send a request as a browser does, and return the body that cancels it."""
    index = next(i for i, each in site['page'].fns.items() if each.api_name == name)
    body = dict(fn_index=index, session_hash=session)
    answer = http.post('gradio_api/queue/join', json=body | dict(data=data))
    assert answer.status_code == 200
    return body | dict(event_id=answer.json()['event_id'])


def test_a_request_that_its_user_leaves(site, client):
    ready = ready_client(site)
    site['gate'].hold()
    style = [SCORE, 'masks and boxes', True, 0.5, 0]
    session = dict(session_hash=ready.session_hash)
    with httpx.Client(base_url=site['url'], timeout=60) as http:
        join(http, site, 'predict', ready.session_hash, None, 'detection', *style)
        # The browser closes while its request runs.
        with http.stream('GET', 'gradio_api/queue/data', params=session) as stream:
            next(stream.iter_lines())
            assert site['gate'].reached.wait(30)
    job = client.submit(model='detection', api_name='/predict')
    time.sleep(0.3)
    assert not job.done()
    site['gate'].open.set()
    line = job.result(60)[1]
    assert 'objects' in line and line.endswith('The model sees 160 x 120 pixels.')


def test_a_comparison_that_is_stopped(site, client):
    ready = ready_client(site)
    site['gate'].hold()
    before = site['gate'].runs
    with httpx.Client(base_url=site['url'], timeout=60) as http:
        data = [None, 'detection', 'detection', SCORE, 20]
        body = join(http, site, 'compare', ready.session_hash, *data)
        assert site['gate'].reached.wait(30)
        assert http.post('gradio_api/cancel', json=body).status_code == 200
    site['gate'].open.set()
    assert client.predict(model='detection', api_name='/predict')[1]
    time.sleep(0.5)
    assert site['gate'].runs <= before + 3  # of 42

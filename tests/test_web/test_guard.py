"""Requests that the page never sends are refused before Gradio reads them."""

import asyncio
import json

import pytest

from mmattn.web.guard import MAX_BODY, Guard

JSON = [(b'content-type', b'application/json')]


def request(path, *chunks, method='POST', headers=JSON, kind='http'):
    """Return the status and what the application behind the guard read."""
    seen, sent = [], []

    async def app(scope, receive, send):
        while True:
            message = await receive()
            if message['type'] == 'http.disconnect':
                break
            seen.append(message['body'])
            if not message['more_body']:
                break
        await send(dict(type='http.response.start', status=200, headers=[]))

    parts = [
        dict(type='http.request', body=chunk, more_body=i + 1 < len(chunks))
        for i, chunk in enumerate(chunks)
    ]

    async def receive():
        return parts.pop(0)

    async def send(message):
        sent.append(message)

    scope = dict(type=kind, path=path, method=method, headers=headers)
    asyncio.run(Guard(app, max_upload=5000)(scope, receive, send))
    if kind == 'http':
        policy = dict(sent[0]['headers'])[b'content-security-policy']
        assert policy.startswith(b"default-src 'self'") and b'http' not in policy
    return sent[0]['status'], b''.join(seen)


def file(path):
    data = [None, dict(path=path, meta=dict(_type='gradio.FileData'))]
    return json.dumps(dict(fn_index=0, data=data)).encode()


def test_ordinary_requests_pass_whole():
    body = file('/tmp/upload/a.png')
    assert request('/gradio_api/queue/join', body[:9], body[9:]) == (200, body)
    assert request('/gradio_api/queue/join', b'no json') == (200, b'no json')
    assert request('/gradio_api/file=/tmp/a.png', b'', method='GET')[0] == 200
    assert request('/gradio_api/queue/join', body, kind='websocket') == (200, body)


@pytest.mark.parametrize(
    'path', ['http://a.example/b', 'HTTPS://a.example', ' file:/etc', 'ftp://a/b']
)
def test_files_at_addresses_are_refused(path):
    assert request('/gradio_api/queue/join', file(path)) == (403, b'')
    nested = json.dumps([dict(a=[json.loads(file(path))])]).encode()
    assert request('/gradio_api/run/load', nested) == (403, b'')
    for kind in ('file', 'proxy'):
        for method in ('GET', 'HEAD', 'POST'):
            found = request(f'/gradio_api/{kind}={path}', b'', method=method)
            assert found == (403, b'')


@pytest.mark.parametrize('deep', [b'[' * 400_000, b'[' * 51 + b']' * 51])
def test_deep_json_is_refused(deep):
    assert request('/gradio_api/queue/join', deep) == (400, b'')
    assert request('/gradio_api/queue/join', b'[' * 50 + b']' * 50)[0] == 200


@pytest.mark.parametrize(
    'origin, status',
    [
        (b'http://127.0.0.1:7860', 200),
        (b'https://127.0.0.1:7860', 200),  # behind a proxy
        (b'http://127.0.0.1:7861', 403),
        (b'http://127.0.0.1:7860.evil.example', 403),
        (b'http://evil.example://127.0.0.1:7860', 403),
        (b'null', 403),
        (b'', 403),
    ],
)
def test_pages_of_other_sites_are_refused(origin, status):
    headers = [*JSON, (b'host', b'127.0.0.1:7860'), (b'origin', origin)]
    for path in ('/gradio_api/queue/join', '/gradio_api/file=/tmp/a.png'):
        for method in ('GET', 'POST'):
            found = request(path, b'{}', method=method, headers=headers)
            assert found[0] == status
    headers = [*headers, (b'content-length', b'2')]
    assert request('/gradio_api/upload', b'{}', headers=headers)[0] == status


def test_bodies_are_limited():
    half = b'x' * (MAX_BODY // 2)
    assert request('/gradio_api/queue/join', half, half)[0] == 200
    assert request('/gradio_api/queue/join', half, half, b'x') == (413, b'')


def test_uploads_are_limited_by_their_announced_length():
    def upload(length):
        headers = [(b'content-length', length)] if length else []
        return request('/gradio_api/upload', b'x', headers=headers)[0]

    limit = 5000 + MAX_BODY
    assert upload(b'%d' % limit) == 200
    assert upload(b'%d' % (limit + 1)) == 413
    assert upload(None) == upload(b'-1') == 411

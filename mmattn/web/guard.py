"""Refuse requests that the page never sends, before Gradio reads them."""

import json
import re

MAX_BODY = 10**6  # bytes of a request that is no upload
MAX_DEPTH = 50  # of JSON; Python's reader fails at its recursion limit
# Gradio's page has scripts and styles inside, and its own server alone to ask.
POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline'; style-src 'self' "
    "'unsafe-inline'; img-src 'self' data: blob:; font-src 'self' data:; object-src "
    "'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
)
HEADERS = [
    (b'content-security-policy', POLICY.encode()),
    (b'referrer-policy', b'no-referrer'),
]
UPLOAD = '/gradio_api/upload'
ADDRESS = re.compile(r'\s*[a-z][a-z0-9+.-]*:/', re.IGNORECASE)
# Gradio would fetch these for the browser.
FETCHED = re.compile(r'/(file|proxy)=\s*[a-z][a-z0-9+.-]*:/', re.IGNORECASE)


class Guard:
    """ASGI middleware that refuses pages of other sites, long bodies and addresses.

    It also forbids browsers to load anything from other servers for the page.

    Gradio limits each uploaded file, but not their number, and not the body of other
    requests. It downloads files that a request names by an address.

    Args:
        app: the application.
        max_upload: bytes of an upload.
    """

    def __init__(self, app, max_upload: int):
        self.app, self.max_upload = app, max_upload

    async def __call__(self, scope, receive, answer):
        if scope['type'] != 'http':
            return await self.app(scope, receive, answer)

        async def send(message):
            if message['type'] == 'http.response.start':
                message = message | dict(headers=[*message['headers'], *HEADERS])
            await answer(message)

        headers = dict(scope['headers'])
        if _is_foreign(headers):
            return await _refuse(
                send, 403, 'pages of other sites may not send requests'
            )
        if FETCHED.search(scope['path']):
            return await _refuse(send, 403, 'addresses are not opened')
        if scope['method'] != 'POST':
            return await self.app(scope, receive, send)
        if scope['path'] == UPLOAD:
            length = headers.get(b'content-length', b'')
            if not length.isdigit():
                return await _refuse(send, 411, 'uploads require a Content-Length')
            # The form around the file is short.
            if int(length) > self.max_upload + MAX_BODY:
                message = (
                    f'an upload may have {self.max_upload} bytes, got {int(length)}'
                )
                return await _refuse(send, 413, message)
            return await self.app(scope, receive, send)
        body = b''
        more = True
        while more:
            message = await receive()
            if message['type'] == 'http.disconnect':
                return
            body += message.get('body', b'')
            more = message.get('more_body', False)
            if len(body) > MAX_BODY:
                text = f'a request may have {MAX_BODY} bytes'
                return await _refuse(send, 413, text)
        try:
            if _names_address(body):
                text = 'addresses are not opened: upload the file'
                return await _refuse(send, 403, text)
        except RecursionError:
            text = f'JSON may be {MAX_DEPTH} levels deep'
            return await _refuse(send, 400, text)
        pending = [dict(type='http.request', body=body, more_body=False)]

        async def replay():
            return pending.pop() if pending else await receive()

        return await self.app(scope, replay, send)


def _is_foreign(headers: dict[bytes, bytes]) -> bool:
    """Return whether a browser sends the request for a page of another site.

    Browsers send some requests, such as uploads, before they ask whether they may.
    """
    origin = headers.get(b'origin')
    return origin is not None and origin.partition(b'://')[2] != headers.get(b'host')


def _names_address(body: bytes) -> bool:
    """Return whether a JSON body has a file whose path is an address.

    Raises:
        RecursionError: the values are nested too deeply.
    """
    try:
        found = [(json.loads(body), 1)]
    except (UnicodeDecodeError, ValueError):
        return False
    while found:
        value, depth = found.pop()
        if depth > MAX_DEPTH:
            raise RecursionError
        if isinstance(value, dict):
            path = value.get('path')
            if isinstance(path, str) and ADDRESS.match(path):
                return True
            value = value.values()
        elif not isinstance(value, list):
            continue
        found.extend((each, depth + 1) for each in value)
    return False


async def _refuse(send, status: int, reason: str):
    body = json.dumps(dict(detail=reason)).encode()
    headers = [(b'content-type', b'application/json'), (b'connection', b'close')]
    await send(dict(type='http.response.start', status=status, headers=headers))
    await send(dict(type='http.response.body', body=body))

"""Serve the page on this machine, with limits."""

import os
import signal
import sys
import tempfile
from collections.abc import Mapping
from importlib.util import find_spec
from ipaddress import ip_address
from pathlib import Path

from mmattn.errors import MissingPackageError

from .guard import Guard
from .models import Models

LOCAL = '127.0.0.1'
MEGA = 10**6
SESSIONS = 16  # whose images and results stay in memory


def serve(
    models: Models,
    images: Mapping[str, Path] | None = None,
    *,
    host: str = LOCAL,
    port: int | None = None,
    max_megapixels: float = 32.0,
    max_megabytes: int = 64,
    wait: bool = True,
):
    """Start the page, and stop it on Ctrl+C.

    Args:
        models: that the user chooses from.
        images: files that the user chooses from, by name.
        host: address to listen on. 127.0.0.1 is reachable only from this machine.
        port: to listen on; None takes the first free one from 7860 on.
        max_megapixels: of an image, in millions.
        max_megabytes: of an uploaded file, in millions.
        wait: return the running page if False.

    Raises:
        ImportError: Gradio is not installed.
        OSError: the port is taken.
    """
    check_installed()
    # Gradio reads these when it is imported.
    os.environ['GRADIO_ANALYTICS_ENABLED'] = 'False'
    os.environ['HF_HUB_DISABLE_TELEMETRY'] = '1'
    folder = tempfile.TemporaryDirectory(prefix='mmattn_web_')
    os.environ['GRADIO_TEMP_DIR'] = folder.name
    import gradio as gr
    from starlette.middleware import Middleware
    from starlette.middleware.trustedhost import TrustedHostMiddleware

    from .layout import CSS
    from .page import Page

    page = Page(models, images or {}, max_megapixels, Path(folder.name)).blocks()
    page.folder = folder  # lives as long as the page
    # Other sites cannot reach the page through a name that leads to this machine.
    hosts = [LOCAL, 'localhost', host] if is_local(host) else ['*']
    page.launch(
        server_name=host,
        server_port=port,
        share=False,
        allowed_paths=[folder.name],  # an empty list would allow GRADIO_ALLOWED_PATHS
        max_file_size=max_megabytes * MEGA,
        state_session_capacity=SESSIONS,
        app_kwargs=dict(
            middleware=[
                Middleware(TrustedHostMiddleware, allowed_hosts=hosts),
                Middleware(Guard, max_upload=max_megabytes * MEGA),
            ]
        ),
        strict_cors=True,
        enable_monitoring=False,
        mcp_server=False,
        pwa=False,
        ssr_mode=False,
        run_history=False,
        root_path='',
        footer_links=[],
        css=CSS,
        theme=gr.themes.Default(
            font=('system-ui', 'sans-serif'), font_mono='monospace'
        ),
        prevent_thread_lock=True,
        quiet=True,
    )
    if not wait:
        return page
    print(f'mmattn: {page.local_url} (Ctrl+C stops it)', flush=True)
    # Let a SIGTERM remove the temporary folder too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    page.block_thread()


def check_installed():
    """Raise an ImportError if Gradio is not installed."""
    if find_spec('gradio') is None:
        raise MissingPackageError('the page requires Gradio: pip install "mmattn[web]"')


def is_local(host: str) -> bool:
    """Return whether an address of version 4 is reachable only from this machine."""
    try:
        address = ip_address(host)
    except ValueError:
        return host == 'localhost'
    return address.is_loopback and address.version == 4

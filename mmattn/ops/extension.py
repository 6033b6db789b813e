"""The compiled extension: whether it was built, and loading it.

It is optional and never built at import: `csrc/README.md` says how to build it. Its
operators are `torch.ops.mmattn_extension.*`; a backend that calls them reads here why
it cannot.
"""

import logging
from pathlib import Path

import torch

logger = logging.getLogger('mmattn')

HOW_TO_BUILD = 'MMATTN_BUILD_OPS=1 pip install --no-build-isolation'


def load(path: Path) -> str | None:
    """Loads a built library; returns why that failed, or None."""
    try:
        torch.ops.load_library(str(path))
    except OSError as error:  # built against another PyTorch or CUDA
        reason = f'the compiled extension {path} does not load ({error}); rebuild it'
        logger.warning(reason)
        return reason
    return None


def load_built(folder: Path) -> str | None:
    """Loads the library that an installation with the extension leaves in a folder."""
    for path in sorted(folder.glob('_extension*.so')):
        return load(path)
    return f'the compiled extension is not built ({HOW_TO_BUILD})'


def reason_without_cuda() -> str | None:
    """Why the extension that is loaded has no CUDA kernels, None where it has."""
    if hasattr(torch.ops.mmattn_extension, 'has_cuda_kernels'):
        return None
    return f'the compiled extension has no CUDA kernels ({HOW_TO_BUILD} where nvcc is)'


UNAVAILABLE = load_built(Path(__file__).parent)
CUDA_UNAVAILABLE = UNAVAILABLE or reason_without_cuda()

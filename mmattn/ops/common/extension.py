"""Loading of the compiled extension, which is optional.

It is never built at import; `csrc/README.md` gives the commands. Its operators are
`torch.ops.mmattn_extension.*`. A backend that calls them has the reason why it cannot
from here.
"""

import logging
from pathlib import Path

import torch

logger = logging.getLogger('mmattn')

HOW_TO_BUILD = 'MMATTN_BUILD_OPS=1 pip install --no-build-isolation'


def load(path: Path) -> str | None:
    """Load a built library; return why that failed, or None."""
    try:
        torch.ops.load_library(str(path))
    except OSError as error:  # built against another PyTorch or CUDA
        reason = f'the compiled extension {path} does not load ({error}); rebuild it'
        logger.warning(reason)
        return reason
    return None


def load_built(folder: Path) -> str | None:
    """Load the library that an installation with the extension leaves in a folder."""
    for path in sorted(folder.glob('_extension*.so')):
        return load(path)
    return f'the compiled extension is not built ({HOW_TO_BUILD})'


def reason_without_cuda() -> str | None:
    """Return why the loaded extension has no CUDA kernels, or None if it has."""
    if hasattr(torch.ops.mmattn_extension, 'has_cuda_kernels'):
        return None
    return f'the compiled extension has no CUDA kernels ({HOW_TO_BUILD} where nvcc is)'


UNAVAILABLE = load_built(Path(__file__).parents[1])  # where setup.py puts it
CUDA_UNAVAILABLE = UNAVAILABLE or reason_without_cuda()

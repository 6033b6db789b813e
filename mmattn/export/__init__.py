"""Write models as torch.export programs and ONNX files.

Names are imported when they are used, since files run where PyTorch is not installed.
"""

from importlib import import_module

# A module must not have the name of a function, which importing it would hide.
HOMES = {
    'ExportError': 'errors',
    'Metadata': 'metadata',
    'decompositions': 'decomposition_table',
    'export_model': 'api',
    'load': 'runner',
}
__all__ = list(HOMES)


def __getattr__(name: str):
    if name not in HOMES:
        raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
    value = getattr(import_module(f'.{HOMES[name]}', __name__), name)
    globals()[name] = value
    return value

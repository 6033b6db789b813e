"""Write models as torch.export programs and ONNX files.

Names are imported when they are used, since files run where PyTorch is not installed.
"""

from mmattn.on_demand import import_on_demand

# A module must not have the name of a function, which importing it would hide.
HOMES = {
    'ExportError': '.errors',
    'Metadata': '.metadata',
    'decompositions': '.decomposition_table',
    'export_model': '.api',
    'load': '.runner',
}
__all__ = list(HOMES)

__getattr__ = import_on_demand(__name__, HOMES)

"""Write models as torch.export programs and ONNX files."""

from .decompositions import decompositions

__all__ = ['decompositions']

from .decoder import DecoderOutput, DeformableDETRDecoder
from .encoder import DeformableDETREncoder

__all__ = [
    'DecoderOutput',
    'DeformableDETRDecoder',
    'DeformableDETREncoder',
]

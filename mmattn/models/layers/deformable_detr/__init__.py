from .decoder import DecoderOutput, DeformableDETRDecoder, DeformableDetrDecoder
from .encoder import DeformableDETREncoder, DeformableDetrEncoder

__all__ = [
    'DecoderOutput',
    'DeformableDETRDecoder',
    'DeformableDETREncoder',
    'DeformableDetrDecoder',
    'DeformableDetrEncoder',
]

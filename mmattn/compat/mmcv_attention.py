"""mmcv's multi-scale deformable attention on the CPU and in bfloat16, on our operator.

`MultiScaleDeformableAttention` of mmcv calls the compiled operator on a GPU. In
bfloat16 and on a CPU it calls a function in PyTorch,
`multi_scale_deformable_attn_pytorch`, which keeps all samples in memory. Where our
operators replace mmcv's compiled ones, our operator also replaces that function.
"""

import functools
import sys

__all__ = ['correct_attention']


def correct_attention(module) -> bool:
    """Replace the function in `mmcv.ops.multi_scale_deform_attn`.

    Our function keeps mmcv's as `__wrapped__`. ONNX and `torch.fx.symbolic_trace` use
    mmcv's.
    """
    from mmattn.compat import IMPLEMENTATION

    extension = sys.modules.get('mmcv._ext')
    if getattr(extension, '__spec__', None) is None:
        return False
    theirs = module.multi_scale_deformable_attn_pytorch
    if extension.__spec__.origin != IMPLEMENTATION or hasattr(theirs, '__wrapped__'):
        return False

    import torch
    import torch.fx

    from mmattn.ops import ms_deform_attn

    @functools.wraps(theirs)
    def attend(value, value_spatial_shapes, sampling_locations, attention_weights):
        tensors = value_spatial_shapes, sampling_locations, attention_weights
        is_traced = any(isinstance(x, torch.fx.Proxy) for x in (value, *tensors))
        if is_traced or torch.onnx.is_in_onnx_export():
            return theirs(value, *tensors)
        return ms_deform_attn(value, *tensors)

    module.multi_scale_deformable_attn_pytorch = attend
    return True

"""mmcv's compiled operators, on torchvision and plain PyTorch, for CPU and CUDA.

The functions have the names, keyword arguments and in-place outputs that `mmcv.ops`
expects of its extension `mmcv._ext`. `mmattn.compat` gives them that name when
mmcv was installed without it. They were written from those conventions and from the
operators' published definitions. A docstring says where its result can differ from the
compiled operator's.

float16 and bfloat16 are storage formats: the arithmetic is float32.
"""

from types import ModuleType

from .carafe import (
    carafe_backward,
    carafe_forward,
)
from .deform import (
    deform_conv_backward_input,
    deform_conv_backward_parameters,
    deform_conv_forward,
    modulated_deform_conv_backward,
    modulated_deform_conv_forward,
    ms_deform_attn_backward,
    ms_deform_attn_forward,
)
from .focal_loss import (
    sigmoid_focal_loss_backward,
    sigmoid_focal_loss_forward,
)
from .line_nms import line_nms_forward
from .masked_conv import masked_col2im_forward, masked_im2col_forward
from .nms import nms, nms_match, softnms
from .psa_mask import psamask_backward, psamask_forward
from .roi_align import roi_align_backward, roi_align_forward
from .roi_pool import (
    deform_roi_pool_backward,
    deform_roi_pool_forward,
    roi_pool_backward,
    roi_pool_forward,
)
from .sync_bn import (
    sync_bn_backward_data,
    sync_bn_backward_param,
    sync_bn_forward_mean,
    sync_bn_forward_output,
    sync_bn_forward_var,
)

__all__ = [
    'carafe_backward',
    'carafe_forward',
    'deform_conv_backward_input',
    'deform_conv_backward_parameters',
    'deform_conv_forward',
    'deform_roi_pool_backward',
    'deform_roi_pool_forward',
    'get_compiler_version',
    'get_compiling_cuda_version',
    'line_nms_forward',
    'masked_col2im_forward',
    'masked_im2col_forward',
    'modulated_deform_conv_backward',
    'modulated_deform_conv_forward',
    'ms_deform_attn_backward',
    'ms_deform_attn_forward',
    'nms',
    'nms_match',
    'psamask_backward',
    'psamask_forward',
    'roi_align_backward',
    'roi_align_forward',
    'roi_pool_backward',
    'roi_pool_forward',
    'sigmoid_focal_loss_backward',
    'sigmoid_focal_loss_forward',
    'softnms',
    'sync_bn_backward_data',
    'sync_bn_backward_param',
    'sync_bn_forward_mean',
    'sync_bn_forward_output',
    'sync_bn_forward_var',
]

BUILD_COMMAND = (
    'pip install --force-reinstall --no-deps --no-build-isolation '
    '--no-binary onedl-mmcv --no-cache-dir onedl-mmcv'
)


def __getattr__(name: str):
    """Return a function that raises, in place of an operator that we do not provide."""
    if name.startswith('__'):
        raise AttributeError(f'module {__name__!r} has no attribute {name!r}')

    def not_provided(*args, **kwargs):
        raise NotImplementedError(
            f'mmcv was installed without its compiled operators, and mmattn does not '
            f'provide {name!r}. Build mmcv with its '
            f'operators, in an environment that has torch: {BUILD_COMMAND} '
            '(with FORCE_CUDA=1 in front for a GPU)'
        )

    not_provided.__name__ = not_provided.__qualname__ = name
    return not_provided


def fill(module: ModuleType) -> bool:
    """Fill the module `mmcv._ext` with the operators."""
    vars(module).update({name: globals()[name] for name in __all__})
    module.__doc__ = __doc__
    module.__getattr__ = __getattr__
    return True


def get_compiler_version() -> str:
    return 'none: operators provided by mmattn'


def get_compiling_cuda_version() -> str:
    return 'not available'

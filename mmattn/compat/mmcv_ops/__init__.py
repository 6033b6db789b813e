"""mmcv's compiled operators, on torchvision and plain PyTorch, for CPU and CUDA.

The functions have the names, keyword arguments and in-place outputs that `mmcv.ops`
expects of its extension `mmcv._ext`. `mmattn.compat` gives them that name when
mmcv was installed without it. They were written from those conventions and from the
operators' published definitions. A docstring says where its result can differ from the
compiled operator's.

float16 and bfloat16 are storage formats: the arithmetic is float32.
"""

from functools import cache
from importlib import import_module
from types import ModuleType

from torch import Tensor, float64

# By file, which is imported when one of its operators is called: mmcv asks for all of
# them as soon as it is imported, also for a classifier.
FILES = {
    'carafe': ('carafe_backward', 'carafe_forward'),
    'deform': (
        'deform_conv_backward_input',
        'deform_conv_backward_parameters',
        'deform_conv_forward',
        'modulated_deform_conv_backward',
        'modulated_deform_conv_forward',
        'ms_deform_attn_backward',
        'ms_deform_attn_forward',
    ),
    'focal_loss': ('sigmoid_focal_loss_backward', 'sigmoid_focal_loss_forward'),
    'line_nms': ('line_nms_forward',),
    'masked_conv': ('masked_col2im_forward', 'masked_im2col_forward'),
    'nms': ('nms', 'nms_match', 'softnms'),
    'psa_mask': ('psamask_backward', 'psamask_forward'),
    'roi_align': ('roi_align_backward', 'roi_align_forward'),
    'roi_pool': (
        'deform_roi_pool_backward',
        'deform_roi_pool_forward',
        'roi_pool_backward',
        'roi_pool_forward',
    ),
    'sync_bn': (
        'sync_bn_backward_data',
        'sync_bn_backward_param',
        'sync_bn_forward_mean',
        'sync_bn_forward_output',
        'sync_bn_forward_var',
    ),
}
FILE_OF = {name: file for file, names in FILES.items() for name in names}

BUILD_COMMAND = (
    'pip install --force-reinstall --no-deps --no-build-isolation '
    '--no-binary onedl-mmcv --no-cache-dir onedl-mmcv'
)


@cache
def operator_of(name: str):
    """Return an operator; one that we do not provide raises when it is called."""
    if name.startswith('__'):
        raise AttributeError(f"module 'mmcv._ext' has no attribute {name!r}")

    def provided(*args, **kwargs):
        file = import_module(f'{__name__}.{FILE_OF[name]}')
        return getattr(file, name)(*args, **kwargs)

    def not_provided(*args, **kwargs):
        raise NotImplementedError(
            f'mmcv was installed without its compiled operators, and mmattn does not '
            f'provide {name!r}. Build mmcv with its '
            f'operators, in an environment that has torch: {BUILD_COMMAND} '
            '(with FORCE_CUDA=1 in front for a GPU)'
        )

    operator = provided if name in FILE_OF else not_provided
    operator.__name__ = operator.__qualname__ = name
    return operator


def fill(module: ModuleType):
    """Fill the module `mmcv._ext` with the operators."""
    module.__doc__ = __doc__
    module.__getattr__ = operator_of
    module.get_compiler_version = lambda: 'none: operators provided by mmattn'
    module.get_compiling_cuda_version = lambda: 'not available'


def widen(tensor: Tensor) -> Tensor:
    """Return the tensor in float32, or as it is in float64."""
    return tensor if tensor.dtype == float64 else tensor.float()

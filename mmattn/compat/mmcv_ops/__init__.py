"""mmcv's compiled operators, on torchvision and plain PyTorch, for CPU and CUDA.

The functions have the names, keyword arguments and in-place outputs that `mmcv.ops`
expects of its extension `mmcv._ext`. `mmattn.compat` gives them that name when
mmcv was installed without it. They were written from those conventions and from the
operators' published definitions. A docstring says where its result can differ from the
compiled operator's.

float16 and bfloat16 are storage formats: the arithmetic is float32.
"""

from types import ModuleType

from .border_align import (
    bezier_align_backward,
    bezier_align_forward,
    border_align_backward,
    border_align_forward,
)
from .boxes import bbox_overlaps, line_nms_forward
from .carafe import (
    carafe_backward,
    carafe_forward,
    carafe_naive_backward,
    carafe_naive_forward,
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
    softmax_focal_loss_backward,
    softmax_focal_loss_forward,
)
from .masked_conv import masked_col2im_forward, masked_im2col_forward
from .nms import nms, nms_match, softnms
from .point_sets import (
    chamfer_distance_backward,
    chamfer_distance_forward,
    convex_giou,
    convex_iou,
    min_area_polygons,
)
from .psa_mask import psamask_backward, psamask_forward
from .roi_align import roi_align_backward, roi_align_forward
from .roi_pool import (
    deform_roi_pool_backward,
    deform_roi_pool_forward,
    prroi_pool_backward,
    prroi_pool_coor_backward,
    prroi_pool_forward,
    roi_pool_backward,
    roi_pool_forward,
)
from .rotated_boxes import (
    box_iou_quadri,
    box_iou_rotated,
    diff_iou_rotated_sort_vertices_forward,
    nms_quadri,
    nms_rotated,
    points_in_polygons_forward,
)
from .rotated_pool import (
    active_rotated_filter_backward,
    active_rotated_filter_forward,
    riroi_align_rotated_backward,
    riroi_align_rotated_forward,
    roi_align_rotated_backward,
    roi_align_rotated_forward,
    rotated_feature_align_backward,
    rotated_feature_align_forward,
)
from .sync_bn import (
    sync_bn_backward_data,
    sync_bn_backward_param,
    sync_bn_forward_mean,
    sync_bn_forward_output,
    sync_bn_forward_var,
)

__all__ = [
    'active_rotated_filter_backward',
    'active_rotated_filter_forward',
    'bbox_overlaps',
    'bezier_align_backward',
    'bezier_align_forward',
    'border_align_backward',
    'border_align_forward',
    'box_iou_quadri',
    'box_iou_rotated',
    'carafe_backward',
    'carafe_forward',
    'carafe_naive_backward',
    'carafe_naive_forward',
    'chamfer_distance_backward',
    'chamfer_distance_forward',
    'convex_giou',
    'convex_iou',
    'deform_conv_backward_input',
    'deform_conv_backward_parameters',
    'deform_conv_forward',
    'deform_roi_pool_backward',
    'deform_roi_pool_forward',
    'diff_iou_rotated_sort_vertices_forward',
    'get_compiler_version',
    'get_compiling_cuda_version',
    'line_nms_forward',
    'masked_col2im_forward',
    'masked_im2col_forward',
    'min_area_polygons',
    'modulated_deform_conv_backward',
    'modulated_deform_conv_forward',
    'ms_deform_attn_backward',
    'ms_deform_attn_forward',
    'nms',
    'nms_match',
    'nms_quadri',
    'nms_rotated',
    'points_in_polygons_forward',
    'prroi_pool_backward',
    'prroi_pool_coor_backward',
    'prroi_pool_forward',
    'psamask_backward',
    'psamask_forward',
    'riroi_align_rotated_backward',
    'riroi_align_rotated_forward',
    'roi_align_backward',
    'roi_align_forward',
    'roi_align_rotated_backward',
    'roi_align_rotated_forward',
    'roi_pool_backward',
    'roi_pool_forward',
    'rotated_feature_align_backward',
    'rotated_feature_align_forward',
    'sigmoid_focal_loss_backward',
    'sigmoid_focal_loss_forward',
    'softmax_focal_loss_backward',
    'softmax_focal_loss_forward',
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

"""Measure models. Importing this package registers our operators' FLOP rules."""

from .attention_maps import (
    AttentionKernels,
    AttentionMap,
    attention_kernels,
    attention_maps,
)
from .box_gradients import BoxGradients, box_gradients
from .feature_norms import feature_norms
from .flops import CONVENTIONS, Complexity, count
from .head_diversity import (
    HeadDiversity,
    head_diversity,
    head_similarity,
    head_variance,
    map_variance,
)
from .locality import attention_locality, locality_by_layer, locality_score, pad_heads
from .masks import mask_alphas, mask_layers
from .multi_scale_points import MultiScalePoints, multi_scale_points
from .sampling_points import SamplingPoints, sampling_points
from .similarity import layer_similarity, map_similarity, similarity_among

__all__ = [
    'CONVENTIONS',
    'AttentionKernels',
    'AttentionMap',
    'BoxGradients',
    'Complexity',
    'HeadDiversity',
    'MultiScalePoints',
    'SamplingPoints',
    'attention_kernels',
    'attention_locality',
    'attention_maps',
    'box_gradients',
    'count',
    'feature_norms',
    'head_diversity',
    'head_similarity',
    'head_variance',
    'layer_similarity',
    'locality_by_layer',
    'locality_score',
    'map_similarity',
    'map_variance',
    'mask_alphas',
    'mask_layers',
    'multi_scale_points',
    'pad_heads',
    'sampling_points',
    'similarity_among',
]

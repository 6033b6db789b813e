"""Attention of other libraries' models, computed by our operators.

`accelerate` gives a module a subclass of its own class and of one of these.
"""

import math
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmattn.errors import UserError
from mmattn.integrations.natten import attend_as_dinat, attend_as_natten, check_window
from mmattn.integrations.torchvision_ops import deform_conv2d, levels_of, roi_align
from mmattn.ops import fused_ms_deform_attn, ms_deform_attn
from mmattn.ops.common import extension

PROBE_LEVELS = (3, 4), (2, 2), (1, 3), (2, 1)


class Accelerated:
    """A class whose modules `accelerate` replaced."""

    @staticmethod
    def probes(module: nn.Module) -> Iterator[dict]:
        """Yield random arguments, float64, for `forward` of a module."""
        raise NotImplementedError


class Sampling(Accelerated):
    """Sample for transformers' `MultiScaleDeformableAttention`, without parameters."""

    def forward(
        self,
        value: Tensor,
        value_spatial_shapes: Tensor,
        value_spatial_shapes_list: list[tuple[int, int]],
        level_start_index: Tensor,
        sampling_locations: Tensor,
        attention_weights: Tensor,
        im2col_step: int,
    ) -> Tensor:
        return ms_deform_attn(
            value, value_spatial_shapes_list, sampling_locations, attention_weights
        )

    @staticmethod
    def probes(module):
        levels = PROBE_LEVELS[:2]
        yield dict(
            value=_random(2, _pixels(levels), 3, 4),
            value_spatial_shapes=torch.tensor(levels),
            value_spatial_shapes_list=list(levels),
            level_start_index=torch.tensor([0, math.prod(levels[0])]),
            sampling_locations=_random(2, 5, 3, 2, 4, 2),
            attention_weights=_random(2, 5, 3, 2, 4),
            im2col_step=64,
        )


class SamplingFunction(Accelerated):
    """Sample for D-FINE and DEIMv2, whose modules have their function as attribute."""

    @property
    def ms_deformable_attn_core(self):
        return _sample

    @staticmethod
    def probes(module):
        if module.decoder_method != 'default':
            raise UserError(f'its sampling is {module.decoder_method!r}, not bilinear')
        arguments = _arguments(module, sides=4, reference_levels=1)
        del arguments['attention_mask']  # they fail with one
        yield arguments


class Attention(Accelerated):
    """Attend with projections of queries, values and outputs, given a mask of pixels.

    Attributes:
        mask_keeps: whether pixels of the mask are kept, instead of zeroed.
        flat_weights: whether the returned weights have one dimension for the points of
            all levels.
    """

    mask_keeps = False
    flat_weights = False

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        *,
        encoder_hidden_states: Tensor,
        position_embeddings: Tensor | None = None,
        reference_points: Tensor,
        spatial_shapes_list: list[tuple[int, int]],
        **unused,
    ) -> tuple[Tensor, Tensor]:
        if position_embeddings is not None:
            hidden_states = hidden_states + position_embeddings
        if attention_mask is not None and self.mask_keeps:
            attention_mask = ~attention_mask
        out, logits = _attend(
            self,
            hidden_states,
            reference_points,
            encoder_hidden_states,
            attention_mask,
            spatial_shapes_list,
        )
        weights = logits.flatten(3).softmax(-1)
        return out, weights if self.flat_weights else weights.view_as(logits)

    @staticmethod
    def probes(module):
        for sides in (2, 4):
            yield _arguments(module, sides, reference_levels=module.n_levels)


class Mask2FormerAttention(Attention):
    @staticmethod
    def probes(module):
        for arguments in Attention.probes(module):
            del arguments['spatial_shapes']
            yield arguments


class RTDetrV2Attention(Attention):
    mask_keeps = True
    flat_weights = True

    @staticmethod
    def probes(module):
        if module.method != 'default':
            raise UserError(f'its sampling is {module.method!r}, not bilinear')
        yield _arguments(module, sides=4, reference_levels=1)


class RFDetrAttention(Accelerated):
    """Attend for the package rfdetr."""

    def forward(
        self,
        query: Tensor,
        reference_points: Tensor,
        input_flatten: Tensor,
        input_spatial_shapes: Tensor,
        input_level_start_index: Tensor,
        input_padding_mask: Tensor | None = None,
        input_spatial_shapes_hw: list[tuple[int, int]] | None = None,
    ) -> Tensor:
        shapes = input_spatial_shapes_hw or input_spatial_shapes
        padding = input_padding_mask
        return _attend(self, query, reference_points, input_flatten, padding, shapes)[0]

    @staticmethod
    def probes(module):
        levels = PROBE_LEVELS[: module.n_levels]
        for sides in (2, 4):
            yield dict(
                query=_random(2, 5, module.d_model),
                reference_points=_random(2, 5, module.n_levels, sides),
                input_flatten=_random(2, _pixels(levels), module.d_model),
                input_spatial_shapes=torch.tensor(levels),
                input_level_start_index=None,
                input_padding_mask=_random(2, _pixels(levels)) > 0.8,
            )


class DinatAttention(Accelerated):
    forward = attend_as_dinat

    @staticmethod
    def probes(module):
        if module.dropout.p:
            raise UserError(f'its attention has dropout {module.dropout.p}')
        check_window(module.kernel_size, 1, module.dilation, False)
        return iter(())


class NattenAttention(Accelerated):
    forward = attend_as_natten

    @staticmethod
    def probes(module):
        check_window(
            module.kernel_size, module.stride, module.dilation, module.is_causal
        )
        return iter(())


class DeformableConvolution(Accelerated):
    """Convolve for `torchvision.ops.DeformConv2d`, on a CPU."""

    def forward(self, input: Tensor, offset: Tensor, mask: Tensor | None = None):
        if input.device.type != 'cpu':
            return super().forward(input, offset, mask)
        geometry = self.stride, self.padding, self.dilation
        return deform_conv2d(input, offset, self.weight, self.bias, *geometry, mask)

    @staticmethod
    def probes(module):
        B, C, side = 2, module.in_channels, 30
        h, w = (
            (side + 2 * pad - spread * (taps - 1) - 1) // step + 1
            for pad, spread, taps, step in zip(
                *(module.padding, module.dilation, module.kernel_size, module.stride),
                strict=True,
            )
        )
        K = math.prod(module.kernel_size)
        for mask in (None, _random(B, K, h, w)):
            yield dict(
                input=_random(B, C, side, side),
                offset=4 * _random(B, 2 * K, h, w) - 2,
                mask=mask,
            )


class BoxPooling(Accelerated):
    """Pool for `torchvision.ops.RoIAlign`, on a CPU."""

    def forward(self, input: Tensor, rois: Tensor | list[Tensor]) -> Tensor:
        if input.device.type != 'cpu':
            return super().forward(input, rois)
        if not isinstance(rois, Tensor):
            rois = _rois(rois)
        size, ratio = _pair(self.output_size), self.sampling_ratio
        return roi_align(input, rois, size, self.spatial_scale, ratio, self.aligned)

    @staticmethod
    def probes(module):
        _check_pooling(module)
        boxes = 30 * _random(5, 4) - 2
        boxes[:, 2:] += boxes[:, :2]
        scale = module.spatial_scale
        yield dict(input=_random(1, 3, 12, 15), rois=[boxes / (2 * scale)])


class PyramidPooling(Accelerated):
    """Pool for `torchvision.ops.MultiScaleRoIAlign`, on a CPU."""

    def forward(
        self,
        x: dict[str, Tensor],
        boxes: list[Tensor],
        image_shapes: list[tuple[int, int]],
    ) -> Tensor:
        maps = [x[name] for name in x if name in self.featmap_names]
        if maps[0].device.type != 'cpu':
            return super().forward(x, boxes, image_shapes)
        height = max(shape[0] for shape in image_shapes)
        scales = [2.0 ** round(math.log2(x.shape[2] / height)) for x in maps]
        rois = _rois(boxes)
        levels = levels_of(rois, scales, self.canonical_scale, self.canonical_level)
        out = maps[0].new_zeros(len(rois), maps[0].shape[1], *self.output_size)
        for level, (features, scale) in enumerate(zip(maps, scales, strict=True)):
            (chosen,) = torch.where(levels == level)
            size, ratio = self.output_size, self.sampling_ratio
            pooled = roi_align(features, rois[chosen], size, scale, ratio, False)
            out = out.index_copy(0, chosen, pooled.to(out.dtype))
        return out

    @staticmethod
    def probes(module):
        _check_pooling(module)
        boxes = [200 * _random(9, 4) for _ in range(2)]
        for corners in boxes:
            corners[:, 2:] = corners[:, :2] + corners[:, 2:] ** 2 / 200 + 1
        names = module.featmap_names
        yield dict(
            x={n: _random(2, 3, 64 >> i, 80 >> i) for i, n in enumerate(names)},
            boxes=boxes,
            image_shapes=[(256, 320), (250, 300)],
        )


def _check_pooling(module):
    if module.sampling_ratio < 1:
        raise UserError('its number of samples depends on the box')
    if extension.UNAVAILABLE:
        raise UserError('ours is slower without the compiled operators')


def _rois(boxes: list[Tensor]) -> Tensor:
    """Return boxes with the number of their image in front, shape (R, 5)."""
    return torch.cat([F.pad(x, (1, 0), value=i) for i, x in enumerate(boxes)])


def _pair(size: int | tuple[int, int]) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else tuple(size)


def _attend(module, query, reference, memory, padding, shapes):
    """Return the output and the logits of the weights, shape (B, Q, M, L, P)."""
    points = *query.shape[:2], module.n_heads, module.n_levels, module.n_points
    value = module.value_proj(memory)
    if padding is not None:
        value = value.masked_fill(padding[..., None], 0.0)
    offsets = module.sampling_offsets(query).view(*points, 2)
    logits = module.attention_weights(query).view(points)
    value = value.unflatten(-1, (module.n_heads, -1))
    out = fused_ms_deform_attn(value, shapes, reference, offsets, logits)
    return module.output_proj(out), logits


def _sample(value, shapes, locations, weights, points_of_levels, method):
    """Sample points of all levels in turn; a level may have points of its own number.

    Our operator has one number for all levels, so the others get points without weight.
    """
    most = max(points_of_levels)

    def stack(x: Tensor) -> Tensor:  # (B, Q, M, L, P, ...)
        levels = x.split(points_of_levels, 3)
        return torch.stack([F.pad(y, (0, 0, 0, most - y.shape[3])) for y in levels], 3)

    locations, weights = stack(locations), stack(weights[..., None])[..., 0]
    return ms_deform_attn(value, shapes, locations, weights)


def _arguments(module, sides: int, reference_levels: int) -> dict:
    levels = PROBE_LEVELS[: module.n_levels]
    pixels, channels = _pixels(levels), module.d_model
    return dict(
        hidden_states=_random(2, 5, channels),
        attention_mask=_random(2, pixels) > 0.8,
        encoder_hidden_states=_random(2, pixels, channels),
        reference_points=_random(2, 5, reference_levels, sides),
        spatial_shapes=torch.tensor(levels),
        spatial_shapes_list=list(levels),
    )


def _random(*shape: int) -> Tensor:
    return torch.rand(shape, dtype=torch.float64)


def _pixels(levels) -> int:
    return sum(height * width for height, width in levels)


def _in_transformers(model: str, name: str) -> str:
    return f'transformers.models.{model}.modeling_{model}.{name}'


DEFORMABLE = 'MultiscaleDeformableAttention'
KNOWN = {
    **{
        _in_transformers(model, 'MultiScaleDeformableAttention'): Sampling
        for model in (
            *('deformable_detr', 'rt_detr', 'lw_detr', 'rf_detr', 'grounding_dino'),
            *('mm_grounding_dino', 'omdet_turbo', 'pp_doclayout_v2'),
            *('pp_doclayout_v3', 'pp_doclayout_v4'),
        )
    },
    _in_transformers('d_fine', f'DFine{DEFORMABLE}'): SamplingFunction,
    _in_transformers('deimv2', f'Deimv2{DEFORMABLE}'): SamplingFunction,
    _in_transformers('rt_detr_v2', f'RTDetrV2{DEFORMABLE}'): RTDetrV2Attention,
    _in_transformers('mask2former', f'Mask2FormerPixelDecoderEncoder{DEFORMABLE}'): (
        Mask2FormerAttention
    ),
    _in_transformers('oneformer', f'OneFormerPixelDecoderEncoder{DEFORMABLE}'): (
        Attention
    ),
    _in_transformers('dinat', 'NeighborhoodAttention'): DinatAttention,
    'torchvision.ops.deform_conv.DeformConv2d': DeformableConvolution,
    'torchvision.ops.roi_align.RoIAlign': BoxPooling,
    'torchvision.ops.poolers.MultiScaleRoIAlign': PyramidPooling,
    'natten.modules.NeighborhoodAttention2D': NattenAttention,
    'rfdetr.models.ops.modules.ms_deform_attn.MSDeformAttn': RFDetrAttention,
}

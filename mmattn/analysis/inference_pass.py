"""Run the part of a model's inference whose FLOPs are counted."""

from inspect import signature

from torch import Tensor, nn

ROI_HEADS = ('StandardRoIHead', 'CascadeRoIHead', 'SparseRoIHead')


class InferencePass(nn.Module):
    """The part of a model's inference that is counted, called as one module."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, image: Tensor):
        model = self.model
        if hasattr(model, 'roi_head'):
            _run_two_stage(model, image)
        elif _wants_samples(getattr(model, 'decode_head', None)):
            # In mode 'tensor' mmsegmentation would call it without samples, and fail.
            model.decode_head(model.extract_feat(image), _samples(image))
        elif hasattr(model, 'data_preprocessor'):
            model(image, _samples(image), mode='tensor')
        else:
            model(image)


def _wants_samples(head: nn.Module | None) -> bool:
    """Return whether a head takes data samples, as Mask2Former's head does."""
    if head is None:
        return False
    return 'batch_data_samples' in signature(head.forward).parameters


def _run_two_stage(model: nn.Module, image: Tensor):
    if type(model.roi_head).__name__ not in ROI_HEADS:
        raise NotImplementedError(
            f'roi_head must be one of {", ".join(ROI_HEADS)} to be counted, got '
            f'{type(model.roi_head).__name__}'
        )
    features = model.extract_feat(image)
    head, test_cfg = model.roi_head, model.test_cfg
    if type(head).__name__ == 'SparseRoIHead':
        proposals = model.rpn_head.init_proposal_features.weight[None]  # (1, N, C)
        extractors, heads = head.bbox_roi_extractor, head.bbox_head
        _run_on_regions(head, extractors, heads, proposals.shape[1], image, proposals)
        return
    if model.with_rpn:
        model.rpn_head(features)
    if head.with_bbox:
        num_rois = test_cfg.rpn.max_per_img
        _run_on_regions(head, head.bbox_roi_extractor, head.bbox_head, num_rois, image)
    if head.with_mask:
        num_rois = test_cfg.rcnn.max_per_img
        _run_on_regions(head, head.mask_roi_extractor, head.mask_head, num_rois, image)


def _run_on_regions(roi_head, extractors, heads, num_rois: int, image: Tensor, *inputs):
    if not isinstance(heads, nn.ModuleList):  # only cascades have a list
        extractors, heads = [extractors], [heads]
    for extractor, head in zip(extractors, heads, strict=True):
        size = extractor.roi_layers[0].output_size
        regions = image.new_zeros(num_rois, extractor.out_channels, *size)
        if roi_head.with_shared_head:
            regions = roi_head.shared_head(regions)
        head(regions, *inputs)


def _samples(image: Tensor) -> list:
    from mmengine.structures import BaseDataElement

    names = ('img_shape', 'ori_shape', 'pad_shape', 'batch_input_shape')
    shape = tuple(image.shape[-2:])
    return [BaseDataElement(metainfo=dict.fromkeys(names, shape))]

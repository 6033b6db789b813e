"""A Deformable DETR small enough for tests, its images and targets, and its peers."""

import copy
from functools import partial

import torch
from mmdet.structures import DetDataSample
from mmengine.structures import InstanceData
from torch import nn

from mmattn.registry import MODELS

CLASSES, QUERIES, LAYERS, WIDTH = 5, 11, 2, 32
FORMS = {
    'one-stage': {},
    'refine': dict(with_box_refine=True),
    'two-stage': dict(with_box_refine=True, as_two_stage=True),
}
IMAGES = (96, 128)
SHAPES = (96, 110), (70, 128)
LABELS = torch.tensor([1, 4, 0]), torch.tensor([2, 2])
BOXES = (  # (x1, y1, x2, y2) in pixels
    torch.tensor([[5, 8, 60, 40], [30, 20, 100, 90], [70, 3, 109, 33]]),
    torch.tensor([[2, 2, 20, 66], [50, 10, 127, 50]]),
)
LAYER = dict(
    embed_dims=WIDTH, num_layers=LAYERS, num_heads=4, feedforward_channels=48, dropout=0
)
BACKBONE = dict(
    type='mmdet.ResNet',
    depth=18,
    base_channels=8,
    out_indices=(1, 2, 3),
    frozen_stages=1,
    norm_cfg=dict(type='BN', requires_grad=False),
    norm_eval=True,
)
HEAD = dict(
    type='mmdet.DeformableDETRHead',
    num_classes=CLASSES,
    embed_dims=WIDTH,
    sync_cls_avg_factor=True,
    loss_cls=dict(
        type='mmdet.FocalLoss', use_sigmoid=True, gamma=2.0, alpha=0.25, loss_weight=2.0
    ),
    loss_bbox=dict(type='mmdet.L1Loss', loss_weight=5.0),
    loss_iou=dict(type='mmdet.GIoULoss', loss_weight=2.0),
)
ASSIGNER = dict(
    type='mmdet.HungarianAssigner',
    match_costs=[
        dict(type='mmdet.FocalLossCost', weight=2.0),
        dict(type='mmdet.BBoxL1Cost', weight=5.0, box_format='xywh'),
        dict(type='mmdet.IoUCost', iou_mode='giou', weight=2.0),
    ],
)


def neck(**changes):
    return (
        dict(
            type='mmdet.ChannelMapper',
            in_channels=[16, 32, 64],
            kernel_size=1,
            out_channels=WIDTH,
            bias=True,
            norm_cfg=dict(type='GN', num_groups=32),
            act_cfg=None,
            num_outs=4,
        )
        | changes
    )


# What makes it as wide as everybody's ResNet-18.
RESNET18 = dict(
    backbone=BACKBONE | dict(base_channels=64), neck=neck(in_channels=[128, 256, 512])
)


def config(form='one-stage', **changes):
    cfg = dict(
        type='mmattn.DeformableDETR',
        backbone=BACKBONE,
        neck=neck(),
        encoder=dict(type='mmattn.DeformableDETREncoder', num_points=3, **LAYER),
        decoder=dict(
            type='mmattn.DeformableDETRDecoder',
            num_queries=QUERIES,
            num_points=2,
            **LAYER,
            **FORMS[form],
        ),
        bbox_head=HEAD,
        train_cfg=dict(assigner=ASSIGNER),
        test_cfg=dict(max_per_img=6),
    )
    return copy.deepcopy(cfg | changes)


def detector(form='one-stage', **changes):
    """Ours, with random weights."""
    return with_random_weights(MODELS.build(config(form, **changes)))


def mmdet_config(form):
    def layer(**attention):
        cfg = dict(embed_dims=WIDTH, num_heads=4, dropout=0.0)
        return {name: cfg | changes for name, changes in attention.items()}

    ffn = dict(embed_dims=WIDTH, feedforward_channels=48, ffn_drop=0.0)
    encoder = layer(self_attn_cfg=dict(batch_first=True, num_points=3))
    decoder = layer(
        self_attn_cfg=dict(batch_first=True),
        cross_attn_cfg=dict(batch_first=True, num_points=2),
    )
    cfg = dict(
        type='mmdet.DeformableDETR',
        num_queries=QUERIES,
        backbone=BACKBONE,
        neck=neck(bias='auto'),  # none before a norm
        encoder=dict(num_layers=LAYERS, layer_cfg=dict(**encoder, ffn_cfg=ffn)),
        decoder=dict(
            num_layers=LAYERS,
            return_intermediate=True,
            post_norm_cfg=None,
            layer_cfg=dict(**decoder, ffn_cfg=ffn),
        ),
        positional_encoding=dict(num_feats=WIDTH // 2, normalize=True, offset=-0.5),
        bbox_head=HEAD,
        train_cfg=dict(assigner=ASSIGNER),
        test_cfg=dict(max_per_img=6),
        **FORMS[form],
    )
    return copy.deepcopy(cfg)


def mmdet_detector(form='one-stage', **changes):
    """mmdet's, with random weights."""
    model = MODELS.build(mmdet_config(form) | changes)
    model.get_proposal_pos_embed = partial(  # the default is for 256 channels
        model.get_proposal_pos_embed, num_pos_feats=WIDTH // 2
    )
    return with_random_weights(model)


@torch.no_grad()
def with_random_weights(model: nn.Module, seed: int = 0) -> nn.Module:
    """None of them zero or equal to another; activations stay of order one."""
    generator = torch.Generator().manual_seed(seed)
    for name, value in (*model.named_parameters(), *model.named_buffers()):
        if not value.is_floating_point():
            continue
        noise = torch.randn(value.shape, generator=generator, dtype=torch.float64)
        if value.dim() > 1:
            value.copy_(noise * (value.shape[0] / value.numel()) ** 0.5)
        elif name.endswith('running_var') or 'weight' in name:
            value.copy_(1 + 0.1 * noise)
        else:
            value.copy_(0.1 * noise)
    return model


def images(dtype=torch.float64):
    """Two of them with padding, which is zero, as the detectors of mmdet get them."""
    generator = torch.Generator().manual_seed(1)
    batch = torch.randn(2, 3, *IMAGES, generator=generator, dtype=dtype)
    for image, (H, W) in zip(batch, SHAPES, strict=True):
        image[:, H:] = 0
        image[:, :, W:] = 0
    return batch


def samples(shapes=SHAPES, dtype=torch.float64):
    made = []
    for shape, labels, boxes in zip(shapes, LABELS, BOXES, strict=True):
        sample = DetDataSample(
            metainfo=dict(
                img_shape=shape, batch_input_shape=IMAGES, scale_factor=(0.5, 0.25)
            )
        )
        sample.gt_instances = InstanceData(bboxes=boxes.to(dtype), labels=labels)
        made.append(sample)
    return made


def total(losses: dict) -> torch.Tensor:
    return sum(value for name, value in losses.items() if 'loss' in name)

# DDQ DETR as in mmdetection: DINO whose 900 queries are distinct, by NMS, and which
# trains on 1,350 dense ones, too. Leaves set what DINO's leaves do.
_base_ = './dino.py'
model = dict(
    type='DDQDETR',
    dense_topk_ratio=1.5,
    bbox_head=dict(type='DDQDETRHead'),
    dqs_cfg=dict(type='nms', iou_threshold=0.8),
)

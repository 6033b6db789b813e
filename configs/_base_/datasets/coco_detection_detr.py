# COCO 2017 with boxes only and DETR's multi-scale training: short sides of 480 to 800,
# with a random crop for half of the images. Tests are at (1333, 800). Images without
# boxes are kept.
_base_ = './coco_detection_ms.py'
# This bounds no long side: none of COCO's is 7 times the short one.
_base_.train_pipeline[3].transforms[1][0].scales = [
    (400, 4200),
    (500, 4200),
    (600, 4200),
]
# 16 GPUs give a batch of 32.
train_dataloader = dict(
    dataset=dict(
        filter_cfg=dict(_delete_=True, filter_empty_gt=False),
        pipeline=_base_.train_pipeline,
    ),
)

# COCO 2017 with boxes alone: DETR's multi-scale training, short sides 480 to 800, half
# of the images cropped in between; tests at (1333, 800). Images without boxes stay in.
_base_ = './coco_detection_ms.py'
# Long sides are not limited here: none is 7 times the short one.
_base_.train_pipeline[3].transforms[1][0].scales = [
    (400, 4200),
    (500, 4200),
    (600, 4200),
]
# 16 GPUs make the batch of 32.
train_dataloader = dict(
    dataset=dict(
        filter_cfg=dict(_delete_=True, filter_empty_gt=False),
        pipeline=_base_.train_pipeline,
    ),
)

# ADE20K as in `ade20k.py`, with test images stretched to the next multiples of 32, as
# PVT does.
_base_ = './ade20k.py'
_base_.test_pipeline.insert(2, dict(type='ResizeToMultiple', size_divisor=32))
_base_.tta_pipeline[1].transforms.insert(
    2, [dict(type='ResizeToMultiple', size_divisor=32)]
)
val_dataloader = dict(dataset=dict(pipeline=_base_.test_pipeline))
test_dataloader = val_dataloader

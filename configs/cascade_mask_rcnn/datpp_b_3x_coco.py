_base_ = [
    '../_base_/models/cascade_mask_rcnn_fpn.py',
    '../_base_/datasets/coco_instance_ms.py',
    '../_base_/schedules/adamw_3x_batch64.py',
    '../_base_/runtime/mmdet.py',
]
model = dict(
    backbone=dict(type='mmattn.DATPlusPlus', arch='base', drop_path_rate=0.8),
    neck=dict(in_channels=[128, 256, 512, 1024]),
)
# On 64 GPUs.
train_dataloader = dict(batch_size=1)

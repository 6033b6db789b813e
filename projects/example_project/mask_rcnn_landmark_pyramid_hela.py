_base_ = [
    '../../configs/_base_/models/mask_rcnn_fpn_light.py',
    '../../configs/_base_/datasets/hela_instance.py',
    '../../configs/_base_/schedules/demo.py',
    '../../configs/_base_/runtime/mmdet.py',
]
custom_imports = dict(imports=['projects.example_project.landmark_pyramid'])
model = dict(
    backbone=dict(type='LandmarkPyramid', embed_dims=[32, 64, 128, 256]),
    neck=dict(in_channels=[32, 64, 128, 256]),
)
default_hooks = dict(
    logger=dict(interval=10, log_metric_by_epoch=False),
    checkpoint=dict(by_epoch=False, interval=100, max_keep_ckpts=1),
)
log_processor = dict(by_epoch=False, window_size=10)
randomness = dict(seed=0)

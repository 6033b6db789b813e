_base_ = './pvt_t_1x_coco.py'
model = dict(
    backbone=dict(arch='small', init_cfg=dict(checkpoint='mmattn://pvt_small'))
)
_base_.train_pipeline[2].scale = (1066, 640)
_base_.test_pipeline[1].scale = (1066, 640)
train_dataloader = dict(dataset=dict(pipeline=_base_.train_pipeline))
val_dataloader = dict(dataset=dict(pipeline=_base_.test_pipeline))
test_dataloader = val_dataloader

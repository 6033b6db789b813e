_base_ = './pvt_t_1x_coco.py'
model = dict(
    backbone=dict(
        arch='large', drop_path_rate=0.0, init_cfg=dict(checkpoint='mmattn://pvt_large')
    )
)
# One image on each of 8 GPUs; the learning rate is 2e-4 / 1.4.
optim_wrapper = dict(optimizer=dict(lr=1.428571e-4))
train_dataloader = dict(batch_size=1)
auto_scale_lr = dict(base_batch_size=8)

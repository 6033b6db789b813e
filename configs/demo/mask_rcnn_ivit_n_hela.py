# The configuration of `make demo`: the network of the long run, in 200 steps of half as
# many images and regions of an image.
_base_ = './mask_rcnn_ivit_n_300i_hela.py'
max_iters = 200
train_cfg = dict(max_iters=max_iters)
_base_.param_scheduler[1].update(end=max_iters, T_max=max_iters - 20)
train_dataloader = dict(batch_size=2)
model = dict(train_cfg=dict(rcnn=dict(sampler=dict(num=64))))
auto_scale_lr = dict(base_batch_size=2)

# 40k iterations of 16 images, as the paper of PVT v2 prints. Its code has no
# segmentation; the rest follows PVT's.
_base_ = './adamw_80k_poly.py'
train_cfg = dict(max_iters=40000, val_interval=8000)
_base_.param_scheduler[0].end = 40000

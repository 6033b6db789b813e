# 40k iterations of 16 images, as the paper of PVT v2 prints; it has no code for them.
# The rest is the authors' code of PVT: a polynomial of power 0.9 to 0 without warm-up,
# and weight decay for all parameters.
_base_ = './adamw_80k_poly.py'
train_cfg = dict(max_iters=40000, val_interval=8000)
_base_.param_scheduler[0].end = 40000

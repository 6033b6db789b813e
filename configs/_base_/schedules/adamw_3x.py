# 36 epochs of Table 10. The steps, the warm-up and norms without weight decay are the
# Swin recipe that it follows; the constructor spares biases, scales and the weights
# that mix heads as well.
_base_ = './adamw_1x.py'
train_cfg = dict(max_epochs=36)
_base_.param_scheduler[1].update(end=36, milestones=[27, 33])

# 36 epochs of the authors' code of DAT++: a batch of 64, 2 images on each of 32 GPUs.
# The constructor spares norms and the tables of deformable attention, as theirs does.
# It also spares biases and the tables of neighborhood attention, which theirs does not.
# RetinaNet has half of the learning rate.
_base_ = './adamw_1x_batch64.py'
train_cfg = dict(max_epochs=36)
_base_.param_scheduler[1].update(end=36, milestones=[27, 33])

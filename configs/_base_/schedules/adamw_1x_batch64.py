# 12 epochs, from the authors' code of DAT++: a batch of 64, 2 images on each of 32
# GPUs. The constructor spares norms and the tables of deformable attention, as theirs
# does. It also spares biases and the tables of neighborhood attention, which theirs
# does not. Leaves of RetinaNet halve the learning rate.
_base_ = './adamw_1x.py'
optim_wrapper = dict(optimizer=dict(lr=4e-4))
_base_.param_scheduler[0].end = 500
auto_scale_lr = dict(base_batch_size=64)

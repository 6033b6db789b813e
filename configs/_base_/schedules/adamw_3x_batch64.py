# 36 epochs, from the authors' code of DAT++.
_base_ = './adamw_1x_batch64.py'
train_cfg = dict(max_epochs=36)
_base_.param_scheduler[1].update(end=36, milestones=[27, 33])

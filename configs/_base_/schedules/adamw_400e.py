# MaiT: DeiT's recipe for 400 epochs. The learning rate of 1e-3 is the paper's 5e-4 for
# each 512 images; the leaves of XT and T double it.
_base_ = './adamw_300e.py'
train_cfg = dict(max_epochs=400)
_base_.param_scheduler[1].update(end=400, T_max=395)

# MaiT: DeiT's recipe for 400 epochs. 1e-3 is the paper's 5e-4 for each 512 images; XT
# and T have twice that, in their leaves. The warm-up and the end of the learning rate,
# 1e-5, are DeiT's, which starts at 1e-6; here it starts at a thousandth.
_base_ = './adamw_300e.py'
train_cfg = dict(max_epochs=400)
_base_.param_scheduler[1].update(end=400, T_max=395)

# 36 epochs, from Table 10 of iViT, otherwise as the 12 epochs of Swin's recipe. The
# constructor also spares the weights that mix heads.
_base_ = './adamw_1x.py'
train_cfg = dict(max_epochs=36)
_base_.param_scheduler[1].update(end=36, milestones=[27, 33])

# LiSANet-I for 150 epochs, otherwise as LiSA's hierarchical networks.
_base_ = './adamw_300e_warmup20.py'
train_cfg = dict(max_epochs=150)
_base_.param_scheduler[1].update(end=150, T_max=130)

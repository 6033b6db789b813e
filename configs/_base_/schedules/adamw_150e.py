# LiSANet-I: 5e-4 for each 512 images and 20 epochs of warm-up. The two ends of the
# learning rate, 1e-6 and 1e-5, are those of DeiT and of Swin, whose recipes the paper
# follows.
_base_ = './adamw_300e_warmup20.py'
train_cfg = dict(max_epochs=150)
_base_.param_scheduler[1].update(end=150, T_max=130)

# LiSA's hierarchical networks: 5e-4 for each 512 images and 20 epochs of warm-up. The
# learning rate starts at 1e-6 and ends at 1e-5 as in DeiT and Swin, whose recipes the
# paper follows. It names what it takes from them. Clipping, which only Swin has, is not
# among it. DAT and DAT++ have the same schedule, and their leaves clip gradients.
_base_ = './adamw_300e.py'
_base_.param_scheduler[0].end = 20
_base_.param_scheduler[1].update(begin=20, T_max=280)

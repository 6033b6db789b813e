_base_ = './vit_t2_imhsa_300e_cifar100.py'
# Equation 6.
model = dict(backbone=dict(interact_expand=None, local_kernel=None, gate=False))

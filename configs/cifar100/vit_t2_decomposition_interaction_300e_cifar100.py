_base_ = './vit_t2_imhsa_300e_cifar100.py'
# Equation 7 as printed, without the parts that are inferred from the tables.
model = dict(backbone=dict(interact_expand=1, local_kernel=None, gate=False))

_base_ = './vit_t2_imhsa_300e_cifar100.py'
model = dict(backbone=dict(attention='mhsa'))

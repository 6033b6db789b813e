_base_ = './vit_t2_imhsa_300e_cifar100.py'
# Equation 5 with the M x M interaction that the paper prints.
model = dict(backbone=dict(attention='mhsa_interaction', interact_expand=1))

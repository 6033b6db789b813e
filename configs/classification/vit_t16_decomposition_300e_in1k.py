_base_ = './vit_t16_imhsa_300e_in1k.py'
# Equation 6.
model = dict(backbone=dict(interact_expand=None, local_kernel=None, gate=False))

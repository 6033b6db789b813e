_base_ = './vit_t16_imhsa_300e_in1k.py'
# Equation 7 as printed, without the parts that are inferred from the tables.
model = dict(backbone=dict(interact_expand=1, local_kernel=None, gate=False))

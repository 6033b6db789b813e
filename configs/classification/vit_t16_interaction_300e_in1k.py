_base_ = './vit_t16_imhsa_300e_in1k.py'
# Equation 5 with the M x M interaction that the paper prints.
model = dict(backbone=dict(attention='mhsa_interaction', interact_expand=1))

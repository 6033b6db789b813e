_base_ = './vit_t16_imhsa_300e_in1k.py'
model = dict(backbone=dict(attention='mhsa', patch_size=8))

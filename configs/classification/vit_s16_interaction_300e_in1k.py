_base_ = './vit_t16_interaction_300e_in1k.py'
model = dict(backbone=dict(arch='small'), head=dict(in_channels=384))

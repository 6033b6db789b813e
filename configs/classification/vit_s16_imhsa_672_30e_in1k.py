_base_ = './vit_t16_imhsa_672_30e_in1k.py'
model = dict(backbone=dict(arch='small'), head=dict(in_channels=384))
load_from = 'work_dirs/vit_s16_imhsa_300e_in1k/epoch_300.pth'

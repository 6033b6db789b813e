_base_ = './vit_t16_imhsa_896_30e_in1k.py'
model = dict(backbone=dict(attention='mhsa'))
load_from = 'work_dirs/vit_t16_mhsa_300e_in1k/epoch_300.pth'

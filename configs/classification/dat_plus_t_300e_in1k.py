# DAT+: DAT++ without its convolutions.
_base_ = './dat_plus_plus_t_300e_in1k.py'
model = dict(backbone=dict(lpu=False, conv_mlp=False, conv_stem=False))

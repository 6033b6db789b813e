# The paper does not say how XT is masked in Table 7. The distilled XT has soft masks.
_base_ = './mait_t_400e_in1k.py'
model = dict(backbone=dict(arch='xtiny', layer_scale=1e-5), head=dict(in_channels=144))

_base_ = './lisanet_hybrid_s_in21k_30e_in1k.py'
model = dict(
    backbone=dict(arch='hybrid_base', drop_path_rate=0.2),
    neck=dict(in_channels=576),
    head=dict(in_channels=2304),
)
# Over 36 blocks, the stem gets 0.055 of the rate, as it does with ConvNeXt's 0.8 over
# 12 groups of blocks.
optim_wrapper = dict(paramwise_cfg=dict(layer_decay_rate=0.925))
load_from = 'work_dirs/lisanet_hybrid_b_90e_in21k/epoch_90.pth'

# The paper has the result but no recipe. This one is DeiT's, as for the ViTs.
_base_ = [
    '../_base_/models/classifier.py',
    '../_base_/datasets/imagenet_384.py',
    '../_base_/schedules/adamw_30e.py',
    '../_base_/runtime/mmpretrain.py',
]
model = dict(
    backbone=dict(
        type='mmattn.LiSANet',
        arch='isotropic',
        img_size=384,
        kernel_domain='frequency',
        drop_path_rate=0.0,
    ),
    head=dict(in_channels=192),
)
train_dataloader = dict(sampler=dict(type='RepeatAugSampler'))
# The checkpoint of the config at 224 pixels. The position embedding is resized. Kernels
# become half-spectra and are interpolated as in GFNet, which the paper cites for this
# size.
load_from = 'work_dirs/lisanet_i_150e_in1k/epoch_150.pth'

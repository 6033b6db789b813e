_base_ = './vit_t2_imhsa_300e_cifar100.py'
model = dict(
    backbone=dict(arch=dict(embed_dims=384, num_heads=6), attention='mhsa'),
    head=dict(in_channels=384),
)

# DeiT with 7 x 7 tokens. tools/evidence/claims sets the masks.
_base_ = './vit_n_fashion_mnist.py'
model = dict(
    backbone=dict(
        _delete_=True,
        type='mmattn.MaiT',
        arch=dict(embed_dims=48, depth=4, num_heads=4),
        masking='none',
        in_channels=1,
        patch_size=4,
        img_size=28,
        out_type='cls_token',
    ),
    neck=None,
)

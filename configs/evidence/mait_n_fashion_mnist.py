# DeiT with 14 x 14 tokens. tools/evidence/claims sets the masks.
_base_ = './vit_n_fashion_mnist.py'
model = dict(
    backbone=dict(
        _delete_=True,
        type='mmattn.MaiT',
        arch=dict(embed_dims=32, depth=3, num_heads=4),
        masking='none',
        in_channels=1,
        patch_size=2,
        img_size=28,
        out_type='cls_token',
    ),
    neck=None,
)

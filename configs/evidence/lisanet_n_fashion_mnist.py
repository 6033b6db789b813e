# Plain LiSANet with 14 x 14 tokens. tools/evidence/claims sets mixer and patterns.
_base_ = './vit_n_fashion_mnist.py'
model = dict(
    backbone=dict(
        _delete_=True,
        type='mmattn.LiSANet',
        arch=dict(
            embed_dims=(32,), depths=(3,), mlp_ratios=(4,), conv_stages=0, patterns=8
        ),
        mixer='lisa',
        in_channels=1,
        patch_size=2,
        img_size=28,
    ),
)

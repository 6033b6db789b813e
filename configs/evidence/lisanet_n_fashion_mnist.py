# Plain LiSANet with 7 x 7 tokens. tools/evidence/claims sets mixer and patterns.
_base_ = './vit_n_fashion_mnist.py'
model = dict(
    backbone=dict(
        _delete_=True,
        type='mmattn.LiSANet',
        arch=dict(
            embed_dims=(48,), depths=(4,), mlp_ratios=(4,), conv_stages=0, patterns=16
        ),
        mixer='lisa',
        in_channels=1,
        patch_size=4,
        img_size=28,
    ),
)

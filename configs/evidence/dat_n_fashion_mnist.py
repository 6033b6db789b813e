# One stage of DAT with 7 x 7 tokens, where a window is the whole map.
_base_ = './vit_n_fashion_mnist.py'
model = dict(
    backbone=dict(
        _delete_=True,
        type='mmattn.DAT',
        arch=dict(embed_dims=(48,), depths=(4,), num_heads=(4,), num_groups=(2,)),
        in_channels=1,
        img_size=28,
    ),
)

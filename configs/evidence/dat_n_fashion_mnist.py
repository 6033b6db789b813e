# One stage of DAT with 14 x 14 tokens, from images that are enlarged to twice their
# size. Its keys are 7 x 7 points.
_base_ = './vit_n_fashion_mnist.py'
model = dict(
    backbone=dict(
        _delete_=True,
        type='mmattn.DAT',
        arch=dict(embed_dims=(32,), depths=(4,), num_heads=(4,), num_groups=(2,)),
        in_channels=1,
        img_size=56,
        offset_strides=(2,),
    ),
)
enlarge = dict(type='Resize', scale=56)
train_pipeline = [
    enlarge,
    dict(type='RandomFlip', prob=0.5, direction='horizontal'),
    dict(type='PackInputs'),
]
test_pipeline = [enlarge, dict(type='PackInputs')]
train_dataloader = dict(dataset=dict(pipeline=train_pipeline))
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader

_base_ = '../../configs/classification/vit_t16_imhsa_300e_in1k.py'
custom_imports = dict(imports=['projects.attention_zoo.zoo_vit'])
model = dict(
    backbone=dict(
        _delete_=True,
        type='ZooViT',
        arch='tiny',
        mixer=dict(type='EVAAttention'),
        patch_size=16,
        drop_path_rate=0.1,
    )
)

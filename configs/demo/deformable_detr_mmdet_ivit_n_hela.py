# The network of `deformable_detr_ivit_n_hela.py` as mmdetection's own detector.
_base_ = './deformable_detr_ivit_n_hela.py'
deformable_attention = dict(
    embed_dims=256,
    num_heads=8,
    num_levels=3,
    num_points=2,
    dropout=0.0,
    batch_first=True,
)
ffn = dict(embed_dims=256, feedforward_channels=512, ffn_drop=0.0)
model = dict(
    type='mmdet.DeformableDETR',
    num_queries=60,
    num_feature_levels=3,
    with_box_refine=True,
    as_two_stage=True,
    encoder=dict(
        _delete_=True,
        num_layers=2,
        layer_cfg=dict(self_attn_cfg=deformable_attention, ffn_cfg=ffn),
    ),
    decoder=dict(
        _delete_=True,
        num_layers=3,
        return_intermediate=True,
        layer_cfg=dict(
            self_attn_cfg=dict(
                embed_dims=256, num_heads=8, dropout=0.0, batch_first=True
            ),
            cross_attn_cfg=deformable_attention,
            ffn_cfg=ffn,
        ),
        post_norm_cfg=None,
    ),
    positional_encoding=dict(num_feats=128, normalize=True, offset=-0.5),
)

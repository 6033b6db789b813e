_base_ = [
    '../_base_/models/classifier.py',
    '../_base_/datasets/imagenet_224.py',
    '../_base_/schedules/adamw_400e.py',
    '../_base_/runtime/mmpretrain.py',
]
model = dict(
    type='mmattn.DistilledClassifier',
    backbone=dict(
        type='mmattn.MaiT',
        arch='xtiny',
        masking='soft',
        distilled=True,
        drop_path_rate=0.0,
        out_type='cls_token',
    ),
    neck=None,
    head=dict(type='DeiTClsHead', in_channels=144),
    # DeiT's teacher; its weights come from timm when training begins.
    teacher=dict(
        type='TimmClassifier', model_name='regnety_160.deit_in1k', pretrained=True
    ),
)
optim_wrapper = dict(optimizer=dict(lr=2e-3))
train_dataloader = dict(sampler=dict(type='RepeatAugSampler'))

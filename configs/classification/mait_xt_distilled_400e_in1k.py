_base_ = './mait_t_400e_in1k.py'
model = dict(
    type='mmattn.DistilledClassifier',
    backbone=dict(arch='xtiny', distilled=True),
    head=dict(type='DeiTClsHead', in_channels=144),
    # DeiT's teacher. timm downloads its weights when training begins.
    teacher=dict(
        type='TimmClassifier', model_name='regnety_160.deit_in1k', pretrained=True
    ),
)

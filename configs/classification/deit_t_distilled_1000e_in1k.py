# DeiT-T of Table 6 of MaiT: as DeiT's own, distilled for 1000 epochs.
_base_ = './deit_t_12l_300e_in1k.py'
model = dict(
    type='mmattn.DistilledClassifier',
    backbone=dict(distilled=True),
    head=dict(type='DeiTClsHead'),
    # timm downloads the teacher's weights when training begins.
    teacher=dict(
        type='TimmClassifier', model_name='regnety_160.deit_in1k', pretrained=True
    ),
)
train_cfg = dict(max_epochs=1000)
_base_.param_scheduler[1].update(end=1000, T_max=995)

_base_ = ['_base_/video.py', '_base_/k400.py', '_base_/adamw_110e_k400.py']
model = dict(
    backbone=dict(
        arch='hybrid_small',
        num_frames=16,
        drop_path_rate=0.15,
        out_indices=3,
        # Trained by configs/classification/lisanet_hybrid_s_300e_in1k.py.
        init_cfg=dict(
            type='Pretrained',
            checkpoint='work_dirs/lisanet_hybrid_s_300e_in1k/epoch_300.pth',
            prefix='backbone.',
        ),
    ),
    neck=dict(in_channels=384),
    head=dict(num_classes=400, in_channels=1536),
    label_smoothing=0.1,
    mixup=0.8,
    cutmix=1.0,
)

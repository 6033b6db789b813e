# What all networks for clips share: the model without its classes, and the runtime.
default_scope = 'mmengine'
runner_type = 'mmattn.Runner'
custom_imports = dict(
    imports=[
        'projects.video.classifier',
        'projects.video.dataset',
        'projects.video.metric',
        'projects.video.pipeline',
        'projects.video.sampling',
        'projects.video.video_lisanet',
    ]
)
model = dict(
    type='VideoClassifier',
    backbone=dict(type='VideoLiSANet', out_norm=False),
    neck=dict(type='mmattn.PooledMLP'),
    head=dict(type='LinearHead'),
)
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')
default_hooks = dict(
    timer=dict(type='IterTimerHook'),
    logger=dict(type='LoggerHook', interval=100),
    param_scheduler=dict(type='ParamSchedulerHook'),
    checkpoint=dict(
        type='mmattn.CheckpointHook', interval=1, max_keep_ckpts=3, save_best='auto'
    ),
    sampler_seed=dict(type='DistSamplerSeedHook'),
)
env_cfg = dict(
    cudnn_benchmark=True,
    mp_cfg=dict(mp_start_method='fork', opencv_num_threads=0),
    dist_cfg=dict(backend='nccl'),
)
log_level = 'INFO'
load_from = None
resume = False

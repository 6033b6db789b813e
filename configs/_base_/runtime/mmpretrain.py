default_scope = 'mmpretrain'
runner_type = 'mmattn.Runner'

default_hooks = dict(
    timer=dict(type='IterTimerHook'),
    logger=dict(type='LoggerHook', interval=100),
    param_scheduler=dict(type='ParamSchedulerHook'),
    checkpoint=dict(
        type='mmattn.CheckpointHook', interval=1, max_keep_ckpts=3, save_best='auto'
    ),
    sampler_seed=dict(type='DistSamplerSeedHook'),
    visualization=dict(type='VisualizationHook', enable=False),
)
env_cfg = dict(
    cudnn_benchmark=True,
    mp_cfg=dict(mp_start_method='fork', opencv_num_threads=0),
    dist_cfg=dict(backend='nccl'),
)
vis_backends = [dict(type='LocalVisBackend')]
visualizer = dict(
    type='UniversalVisualizer', vis_backends=vis_backends, name='visualizer'
)
log_processor = dict(type='LogProcessor', window_size=100, by_epoch=True)
log_level = 'INFO'
load_from = None
resume = False

# Appendix A.2: 0.0001 / 32 times the batch, 110 epochs, 10 of them to warm up. It does
# not state the batch, nor where the rate starts and ends; these are UniFormer's 1e-6.
train_cfg = dict(by_epoch=True, max_epochs=110, val_interval=10)
optim_wrapper = dict(
    type='OptimWrapper',
    # 8 GPUs with 8 videos each
    optimizer=dict(type='AdamW', lr=2e-4, weight_decay=0.05),
    constructor='mmattn.LayerDecayOptimWrapperConstructor',
)
param_scheduler = [
    dict(
        type='LinearLR',
        start_factor=5e-3,
        by_epoch=True,
        begin=0,
        end=10,
        convert_to_iter_based=True,
    ),
    dict(
        type='CosineAnnealingLR',
        by_epoch=True,
        begin=10,
        end=110,
        T_max=100,
        eta_min=1e-6,
        convert_to_iter_based=True,
    ),
]
auto_scale_lr = dict(enable=False, base_batch_size=64)

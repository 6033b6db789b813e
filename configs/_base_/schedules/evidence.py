# AdamW for the runs of tools/evidence. Only the last iteration is evaluated.
_base_ = './demo.py'
train_cfg = dict(val_interval=300)
optim_wrapper = dict(
    optimizer=dict(lr=2e-3), constructor='mmattn.LayerDecayOptimWrapperConstructor'
)

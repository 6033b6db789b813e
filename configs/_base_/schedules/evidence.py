# AdamW for the runs of tools/evidence. Only the last iteration is evaluated.
_base_ = './demo.py'
max_iters = 800
train_cfg = dict(max_iters=max_iters, val_interval=max_iters)
optim_wrapper = dict(
    optimizer=dict(lr=4e-3), constructor='mmattn.LayerDecayOptimWrapperConstructor'
)
_base_.param_scheduler[1].update(end=max_iters, T_max=max_iters - 20)

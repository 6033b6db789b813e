# Fine-tuning at more pixels, from Table 9 of iViT. The paper does not say where the
# learning rate starts and ends; here it starts at a thousandth and ends at 0.
_base_ = './adamw_300e.py'
train_cfg = dict(max_epochs=30)
optim_wrapper = dict(optimizer=dict(lr=5e-6, weight_decay=1e-8))
_base_.param_scheduler[1].update(end=30, T_max=25, eta_min=0.0)

# The column of Table 9 for fine-tuning at more pixels. The paper names no ends of the
# learning rate; here it starts at a thousandth and ends at 0.
_base_ = './adamw_300e.py'
train_cfg = dict(max_epochs=30)
optim_wrapper = dict(optimizer=dict(lr=5e-6, weight_decay=1e-8))
_base_.param_scheduler[1].update(end=30, T_max=25, eta_min=0.0)

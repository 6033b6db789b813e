# iViT, from its Table 9. The paper does not say where the learning rate starts and
# ends; 1e-6 and 1e-5 come from CAFormer, whose recipe it follows.
_base_ = './adamw_300e_warmup20.py'
optim_wrapper = dict(optimizer=dict(type='Lamb', lr=8e-3))
_base_.param_scheduler[0].start_factor = 1.25e-4
auto_scale_lr = dict(base_batch_size=4096)

# ZeRO stage 2 in bfloat16: gradients and states of the optimizer in shards over the
# GPUs. Experimental, and not tried: only that it loads is tested. It needs
# `pip install deepspeed`. mmengine's FlexibleRunner drives it, so what only
# `mmattn.Runner` does is absent.
_base_ = '../classification/vit_s16_imhsa_300e_in1k.py'
runner_type = 'FlexibleRunner'
strategy = dict(
    type='DeepSpeedStrategy',
    bf16=dict(enabled=True),
    inputs_to_half=['inputs'],
    zero_optimization=dict(stage=2, overlap_comm=True, contiguous_gradients=True),
)
optim_wrapper = dict(type='DeepSpeedOptimWrapper')
# FlexibleRunner counts an epoch too many in a checkpoint rewritten after a best one.
default_hooks = dict(checkpoint=dict(save_best=None))

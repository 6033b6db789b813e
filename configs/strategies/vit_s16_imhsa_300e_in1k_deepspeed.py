# ZeRO stage 2 in bfloat16 shards gradients and optimizer states over the GPUs. This is
# experimental: tests load the config but do not train. It requires `pip install
# deepspeed` and runs in mmengine's FlexibleRunner, without the additions of
# `mmattn.Runner`.
_base_ = '../classification/vit_s16_imhsa_300e_in1k.py'
runner_type = 'FlexibleRunner'
strategy = dict(
    type='DeepSpeedStrategy',
    bf16=dict(enabled=True),
    inputs_to_half=['inputs'],
    zero_optimization=dict(stage=2, overlap_comm=True, contiguous_gradients=True),
)
optim_wrapper = dict(type='DeepSpeedOptimWrapper')
# After a best checkpoint, FlexibleRunner writes the last one with an epoch too many.
default_hooks = dict(checkpoint=dict(save_best=None))

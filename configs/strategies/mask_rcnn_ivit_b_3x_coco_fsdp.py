# FSDP shards parameters, gradients and optimizer states over the GPUs. This is
# experimental: it was tried with two gloo processes on a CPU and toy data, but on no
# GPU. It runs in mmengine's FlexibleRunner, without the additions of `mmattn.Runner`.
_base_ = '../mask_rcnn/ivit_b_3x_coco.py'
runner_type = 'FlexibleRunner'
strategy = dict(
    type='mmattn.engine.FSDPStrategy',
    model_wrapper=dict(
        type='MMFullyShardedDataParallel',
        # Parameter groups require it.
        use_orig_params=True,
        auto_wrap_policy=dict(
            type='torch.distributed.fsdp.wrap.size_based_auto_wrap_policy',
            min_num_params=2_000_000,
        ),
    ),
    # Write one checkpoint that also loads without FSDP.
    state_dict_cfg='full',
)
# After a best checkpoint, FlexibleRunner writes the last one with an epoch too many.
default_hooks = dict(checkpoint=dict(save_best=None))

# Parameters, gradients and the states of the optimizer in shards over the GPUs.
# Experimental: tried with two gloo processes on a CPU, on toy data, on no GPU.
# mmengine's FlexibleRunner drives it, so what only `mmattn.Runner` does is absent.
_base_ = '../mask_rcnn/ivit_b_3x_coco.py'
runner_type = 'FlexibleRunner'
strategy = dict(
    type='mmattn.engine.FSDPStrategy',
    model_wrapper=dict(
        type='MMFullyShardedDataParallel',
        # Groups of parameters need it.
        use_orig_params=True,
        auto_wrap_policy=dict(
            type='torch.distributed.fsdp.wrap.size_based_auto_wrap_policy',
            min_num_params=2_000_000,
        ),
    ),
    # One checkpoint, which loads without FSDP as well.
    state_dict_cfg='full',
)
# FlexibleRunner counts an epoch too many in a checkpoint rewritten after a best one.
default_hooks = dict(checkpoint=dict(save_best=None))

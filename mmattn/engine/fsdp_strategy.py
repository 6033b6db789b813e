"""mmengine's FSDP strategy with a correction that lets it resume."""

from mmengine._strategy import FSDPStrategy as MMEngineFSDPStrategy
from torch.distributed.fsdp import FullyShardedDataParallel


class FSDPStrategy(MMEngineFSDPStrategy):
    """Shard a model as `strategy.type = 'mmattn.engine.FSDPStrategy'`.

    mmengine calls `optim_state_dict_to_load` with the order of arguments of torch 2.0,
    so its own strategy cannot resume with a later torch.
    """

    def load_optim_state_dict(self, state_dict: dict):
        optimizer = self.optim_wrapper.optimizer
        state_dict = FullyShardedDataParallel.optim_state_dict_to_load(
            self.model, optimizer, state_dict
        )
        self.optim_wrapper.load_state_dict(state_dict)

"""FSDP as mmengine's strategy drives it, able to resume."""

from mmengine._strategy import FSDPStrategy as MMEngineFSDPStrategy
from torch.distributed.fsdp import FullyShardedDataParallel


class FSDPStrategy(MMEngineFSDPStrategy):
    """`strategy.type = 'mmattn.engine.FSDPStrategy'`.

    mmengine calls `optim_state_dict_to_load` with the order of arguments of torch 2.0,
    so that its own strategy cannot resume with a later one.
    """

    def load_optim_state_dict(self, state_dict: dict):
        optimizer = self.optim_wrapper.optimizer
        state_dict = FullyShardedDataParallel.optim_state_dict_to_load(
            self.model, optimizer, state_dict
        )
        self.optim_wrapper.load_state_dict(state_dict)

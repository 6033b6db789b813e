"""Name the parameters with which several processes cannot train."""

from mmengine.hooks import Hook
from mmengine.optim import OptimWrapperDict
from torch.nn.parallel import DistributedDataParallel

from mmattn.errors import UserError
from mmattn.weights.report import list_names


class UnusedParametersHook(Hook):
    """Look for parameters without a gradient after the first step of DDP.

    PyTorch fails in the second step and prints their numbers.

    Raises:
        UserError: some parameters have no gradient; the message has their names.
    """

    def __init__(self):
        self._unused: set[str] = set()
        self._handles = []

    def before_train(self, runner):
        model = runner.model
        if (
            not isinstance(model, DistributedDataParallel)
            or model.find_unused_parameters
            or model.static_graph
            or isinstance(runner.optim_wrapper, OptimWrapperDict)
        ):
            return
        for name, param in model.module.named_parameters():
            if param.requires_grad:
                self._unused.add(name)
                handle = param.register_post_accumulate_grad_hook(
                    lambda _, name=name: self._unused.discard(name)
                )
                self._handles.append(handle)

    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        if not self._handles or not runner.optim_wrapper.should_update():
            return
        while self._handles:
            self._handles.pop().remove()
        if self._unused:
            raise UserError(
                f'{len(self._unused)} parameters have no gradient after the first '
                'step, and several processes cannot train such parameters: '
                f'{list_names(sorted(self._unused))}. Freeze them, or set '
                'find_unused_parameters=True in the config'
            )

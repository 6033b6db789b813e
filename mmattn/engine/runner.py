"""mmengine's runner with safe checkpoints, exact resuming and checked data."""

from collections.abc import Callable, Sequence
from contextlib import contextmanager

from mmengine.config import Config, ConfigDict
from mmengine.logging import MMLogger
from mmengine.runner import BaseLoop, IterBasedTrainLoop
from mmengine.runner import Runner as MMEngineRunner
from torch import nn
from torch.utils.data import DataLoader

from mmattn.files.config_text import check_values
from mmattn.registry import RUNNERS

from ..files.last_checkpoint import check_last_checkpoint
from ..models.limits import detection_limits
from ..weights.load import partial_loads
from ..weights.read import trusted_checkpoints
from .atomic_backend import atomic_backend_args
from .checkpoint_hook import safe_checkpoint_hook
from .checkpoint_loading import load_checkpoint
from .config_check import (
    check_arguments,
    check_save_best,
    check_scopes,
    check_topk,
)
from .data.checks import prepare_dataloader
from .data.loaders import EndlessBatches, build_dataloader, check_batches, positioned
from .distributed import match_gradient_strides
from .finite import FiniteHook
from .first_screen import SHOWN, FirstScreenHook, show_summary
from .last_layers import last_layers
from .last_screen import LastScreenHook
from .map_check import check_maps
from .progress import ProgressHook
from .randomness import RandomnessHook, shared_seed
from .resume import EpochBasedTrainLoop, ResumeHook
from .schedule import Length, ScheduleHook, changes, scaled
from .stop_signals import StopHook
from .unused_parameters import UnusedParametersHook
from .work_dir_lock import locked_work_dir


@RUNNERS.register_module()
class Runner(MMEngineRunner):
    """Run a config with `runner_type = 'mmattn.Runner'`, the default of our tools.

    It reads four more keys of the config, which default to False. `trust_checkpoint`
    lets checkpoints run code while they are read. `allow_partial_load` accepts weights
    that match in part; `mmattn.weights.load` states the rules. With `fine_tune`,
    `load_from` may have another number of classes: its last layers are left out, and
    everything else must match.
    `scale_schedule` scales `param_scheduler` to the length of the run.
    """

    _built_schedulers = ()
    _load_exactly = False
    _required = ()  # keys of a checkpoint besides its weights

    @classmethod
    def from_cfg(cls, cfg: Config | ConfigDict | dict) -> 'Runner':
        check_values(cfg)
        # Some models load a teacher while they are built.
        with trusted_checkpoints(cfg.get('trust_checkpoint', False)):
            return super().from_cfg(cfg)

    def build_logger(self, *args, **kwargs) -> MMLogger:
        """Build mmengine's logger; see `first_screen` for what it prints."""
        logger = super().build_logger(*args, **kwargs)
        show_summary(logger)
        logger.info(f'log, with config and environment: {logger.log_file}', extra=SHOWN)
        return logger

    def build_model(self, model: nn.Module | dict) -> nn.Module:
        """Build as mmengine does, and check that maps fit neck and heads.

        Raises:
            ValueError: a key of the config is wrong; the message names it.
        """
        if isinstance(model, nn.Module):
            return super().build_model(model)
        check_scopes(model, 'model')
        check_arguments(model)
        built = super().build_model(model)
        check_maps(model, built)
        return built

    def wrap_model(self, model_wrapper_cfg: dict | None, model: nn.Module) -> nn.Module:
        if self.distributed:
            match_gradient_strides(model)
        return super().wrap_model(model_wrapper_cfg, model)

    @staticmethod
    def build_dataloader(
        dataloader: DataLoader | dict,
        seed: int | None = None,
        diff_rank_seed: bool = False,
    ) -> DataLoader:
        if isinstance(dataloader, DataLoader):
            return dataloader
        dataset = prepare_dataloader(dataloader)['dataset']
        return build_dataloader(dataloader, dataset, seed, diff_rank_seed)

    def build_train_loop(self, loop: BaseLoop | dict) -> BaseLoop:
        """Build a loop that can start anywhere, in place of mmengine's own two."""
        if isinstance(loop, dict) and _is_mmengines_epoch_loop(loop):
            loop = {key: loop[key] for key in loop if key != 'by_epoch'}
            loop['type'] = EpochBasedTrainLoop
        self._prepare('train_dataloader')
        loop = super().build_train_loop(loop)
        if not isinstance(loop, IterBasedTrainLoop):
            check_batches(loop.dataloader, 'train_dataloader')
        elif positioned(loop.dataloader) is not None:
            loop.dataloader_iterator = EndlessBatches(loop.dataloader)
        return loop

    def _build_param_scheduler(self, scheduler, optim_wrapper) -> list:
        run = Length.of_loop(self._train_loop)
        if not isinstance(scheduler, Sequence):
            scheduler = [scheduler]
        # To resume, mmengine passes the schedulers that it has built before.
        again = all(each in self._built_schedulers for each in scheduler)
        if self.cfg.get('scale_schedule', False) and run is not None and not again:
            given, scheduler = scheduler, scaled(scheduler, run)
            for line in changes(given, scheduler):
                self.logger.info(line, extra=SHOWN)
        built = super()._build_param_scheduler(scheduler, optim_wrapper)
        self._built_schedulers = (*self._built_schedulers, *built)
        return built

    def build_evaluator(self, evaluator):
        """Build an evaluator; give metrics with `limits` the limits of the detector."""
        built = super().build_evaluator(evaluator)
        for metric in built.metrics:
            if hasattr(metric, 'limits'):
                metric.limits = detection_limits(self.cfg.get('model'))
        return built

    def build_val_loop(self, loop: BaseLoop | dict) -> BaseLoop:
        return self._checked('val_dataloader', super().build_val_loop, loop)

    def build_test_loop(self, loop: BaseLoop | dict) -> BaseLoop:
        return self._checked('test_dataloader', super().build_test_loop, loop)

    def _checked(self, key: str, build: Callable, loop: BaseLoop | dict) -> BaseLoop:
        self._prepare(key)
        loop = build(loop)
        check_batches(loop.dataloader, key)
        return loop

    def _prepare(self, key: str):
        """Build and check the data set of a loader before its loop builds the rest."""
        cfg = getattr(self, f'_{key}')
        if isinstance(cfg, dict):
            setattr(self, f'_{key}', prepare_dataloader(cfg, key, self.model))

    def register_hooks(self, default_hooks=None, custom_hooks=None):
        super().register_hooks(default_hooks, custom_hooks)
        self._stop_hook, self._progress_hook = StopHook(), ProgressHook()
        for hook in (
            *(RandomnessHook(), FiniteHook(), UnusedParametersHook(), ResumeHook()),
            *(ScheduleHook(), self._stop_hook, self._progress_hook),
            *(FirstScreenHook(), LastScreenHook()),
        ):
            self.register_hook(hook)

    def register_default_hooks(self, hooks=None):
        super().register_default_hooks(safe_checkpoint_hook(hooks))

    def dump_config(self):
        """Leave the config to `train`: another training may hold the work dir."""

    def _init_model_weights(self):
        with self._as_allowed():
            super()._init_model_weights()

    def train(self) -> nn.Module:
        """Train as mmengine does, while no other training runs in the work dir.

        Raises:
            ValueError: another one runs, and the message names its process; the best
                checkpoint would be chosen by the metric of a class; or an accuracy
                takes more classes than there are.
        """
        for hook in self.hooks:
            check_save_best(getattr(hook, 'save_best', None), self._val_evaluator)
        check_topk(self._val_evaluator, self.model, 'val_evaluator')
        try:
            with locked_work_dir(self.work_dir):
                super().dump_config()
                return super().train()
        finally:
            self._stop_hook.restore()
            self._progress_hook.close()

    def val(self) -> dict:
        check_topk(self._val_evaluator, self.model, 'val_evaluator')
        self._load_exactly = True
        return super().val()

    def test(self) -> dict:
        check_topk(self._test_evaluator, self.model, 'test_evaluator')
        self._load_exactly = True
        return super().test()

    def load_or_resume(self):
        if self._resume and self._load_from is None:
            check_last_checkpoint(self.work_dir)
        super().load_or_resume()

    def resume(self, filename: str, *args, **kwargs):
        """Resume as mmengine does, from checkpoints that match the model exactly.

        Raises:
            ValueError: no run has saved the file, or it does not match the model.
        """
        self._load_exactly, self._required = True, ('meta', 'message_hub')
        super().resume(filename, *args, **kwargs)
        self._load_exactly, self._required = False, ()

    def load_checkpoint(
        self,
        filename: str,
        map_location='cpu',
        strict: bool = False,
        revise_keys: Sequence[tuple[str, str]] = ((r'^module\.', ''),),
    ) -> dict:
        """Load as mmengine does, report it, and raise if too little matches.

        Raises:
            ValueError: the weights do not fit (see `mmattn.weights.load`)
                or are not trusted (`UntrustedCheckpointError`).
        """
        exact = strict or self._load_exactly
        last = None
        if self.cfg.get('fine_tune', False) and not exact:
            last = last_layers(self.cfg)
        with self._as_allowed():
            checkpoint = load_checkpoint(
                self,
                filename,
                map_location,
                exact=exact,
                required=self._required,
                revise_keys=revise_keys,
                last=last,
            )
        self._has_loaded = True
        self.logger.info(f'Load checkpoint from {filename}', extra=SHOWN)
        return checkpoint

    def save_checkpoint(self, out_dir: str, filename: str, *args, **kwargs):
        """Save as mmengine does; a local file is written whole or not at all."""
        if not args and kwargs.get('file_client_args') is None:
            given = kwargs.get('backend_args')
            kwargs['backend_args'] = atomic_backend_args(out_dir, given)
        super().save_checkpoint(out_dir, filename, *args, **kwargs)

    @contextmanager
    def _as_allowed(self):
        with (
            trusted_checkpoints(self.cfg.get('trust_checkpoint', False)),
            partial_loads(self.cfg.get('allow_partial_load', False)),
        ):
            yield

    @property
    def shared_seed(self) -> int:
        """Return the seed that all ranks share."""
        diff_rank_seed = self._randomness_cfg.get('diff_rank_seed', False)
        return shared_seed(self.seed, self.rank, diff_rank_seed)


def _is_mmengines_epoch_loop(loop: dict) -> bool:
    if 'type' not in loop:
        return bool(loop.get('by_epoch'))
    names = 'EpochBasedTrainLoop', 'mmengine.EpochBasedTrainLoop'
    return 'by_epoch' not in loop and loop['type'] in names

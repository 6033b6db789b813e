"""mmengine's runner with the parts that a trustworthy run needs."""

import copy

from mmengine.registry import DATASETS
from mmengine.runner import Runner as MMEngineRunner
from torch.utils.data import DataLoader

from mmattn.registry import RUNNERS

from .dataset_check import CheckedDataset


@RUNNERS.register_module()
class Runner(MMEngineRunner):
    """`runner_type = 'mmattn.Runner'`; every tool of ours uses it by default."""

    @staticmethod
    def build_dataloader(
        dataloader: DataLoader | dict,
        seed: int | None = None,
        diff_rank_seed: bool = False,
    ) -> DataLoader:
        if isinstance(dataloader, DataLoader):
            return dataloader
        dataloader = copy.deepcopy(dataloader)
        dataset = dataloader['dataset']
        if isinstance(dataset, dict):
            dataset = DATASETS.build(dataset)
            if hasattr(dataset, 'full_init'):
                dataset.full_init()
        dataloader['dataset'] = CheckedDataset(dataset)
        return MMEngineRunner.build_dataloader(dataloader, seed, diff_rank_seed)

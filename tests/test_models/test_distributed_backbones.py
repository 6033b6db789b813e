"""No backbone has parameters that DistributedDataParallel finds unused."""

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

pytest.importorskip('mmengine')

from mmattn.models.backbones.base_backbone import BaseBackbone
from mmattn.registry import MODELS


def small_backbones():
    """Each backbone with one block a stage, for each index alone and all at once.

    Every other index is checkpointed, and all at once are both.
    """
    for cls in MODELS.module_dict.values():
        if not issubclass(cls, BaseBackbone):
            continue
        arch = next(iter(cls.arch_zoo.values()))
        shallow = dict(depths=(1,) * len(arch.get('depths', ())), depth=2)
        arch = {key: shallow.get(key, value) for key, value in arch.items()}
        with torch.device('meta'):
            count = len(cls(arch, out_indices=None).levels)
        cases = [((i,), i % 2 == 1) for i in range(count)]
        cases += [(tuple(range(count)), with_cp) for with_cp in (False, True)]
        for out_indices, with_cp in cases:
            yield cls, dict(arch=arch, out_indices=out_indices, with_cp=with_cp)


def train_every_backbone(rank, file, world_size):
    torch.distributed.init_process_group(
        'gloo', init_method=f'file://{file}', rank=rank, world_size=world_size
    )
    cases = list(small_backbones())
    assert len({cls for cls, _ in cases}) >= 2
    for cls, kwargs in cases:
        torch.manual_seed(0)
        model = DistributedDataParallel(cls(**kwargs).train())
        torch.manual_seed(rank)
        for _ in range(2):  # the second finds what the first has left unreduced
            model.zero_grad()
            outs = model(torch.randn(1, 3, 64, 64))
            sum(out.square().mean() for out in outs).backward()
        # The first gradients of both ranks are equal only if they were reduced.
        for name, param in model.module.named_parameters():
            where = f'{cls.__name__} {kwargs["out_indices"]} {kwargs["with_cp"]} {name}'
            assert param.grad is not None, where
            total = param.grad.clone()
            torch.distributed.all_reduce(total)
            assert torch.equal(total, world_size * param.grad), where
    torch.distributed.destroy_process_group()


def test_no_backbone_has_unused_parameters(tmp_path):
    """DistributedDataParallel says so, with one process as with two."""
    train_every_backbone(0, tmp_path / 'store', 1)


@pytest.mark.slow
def test_two_processes_reduce_the_gradients_of_every_backbone(tmp_path):
    torch.multiprocessing.spawn(
        train_every_backbone, (tmp_path / 'store', 2), nprocs=2, join=True
    )

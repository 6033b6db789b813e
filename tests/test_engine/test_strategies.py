"""A model in shards is grouped, saved and resumed."""

import pytest
import torch
from fresh import ROOT, run_python
from mmengine.config import Config
from mmengine.registry import MODELS, STRATEGIES, init_default_scope
from test_optim_wrapper_constructor import group, settings
from tool_runs import COCO_LOADERS
from torch import distributed, nn
from torch.distributed.fsdp import FullyShardedDataParallel

from mmattn.engine import FSDPStrategy
from mmattn.models import IViT

FSDP = ROOT / 'configs/strategies/mask_rcnn_ivit_b_3x_coco_fsdp.py'
TOY = f"""
_base_ = 'mmattn::strategies/mask_rcnn_ivit_b_3x_coco_fsdp.py'
model = dict(
    backbone=dict(arch='nano'),
    neck=dict(in_channels=[32, 64, 160, 256]),
    roi_head=dict(bbox_head=dict(fc_out_channels=64)),
    test_cfg=dict(rpn=dict(max_per_img=20), rcnn=dict(score_thr=0.0, max_per_img=5)))
strategy = dict(model_wrapper=dict(
    device_id='cpu', auto_wrap_policy=dict(min_num_params=200_000)))
{COCO_LOADERS}"""


@pytest.fixture
def two_ranks_in_one_process():
    """As rank 0 of 2; what is communicated is arbitrary, shapes are not."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    distributed.init_process_group('fake', rank=0, world_size=2, store=FakeStore())
    yield
    distributed.destroy_process_group()


def groups(model: nn.Module) -> dict[str, tuple[float, float]]:
    found = settings(model, group(model, layer_decay_rate=0.5))
    return {k.replace('_fsdp_wrapped_module.', ''): each for k, each in found.items()}


def sharded(use_orig_params: bool) -> tuple[nn.Module, nn.Module]:
    arch = dict(IViT.arch_zoo['nano'], depths=(1, 1, 1, 1))
    plain, model = (nn.ModuleDict({'backbone': IViT(arch)}) for _ in range(2))
    wrapped = FullyShardedDataParallel(
        model,
        device_id=torch.device('cpu'),
        use_orig_params=use_orig_params,
        auto_wrap_policy=lambda module, recurse, **_: (
            recurse or type(module).__name__ == 'MetaFormerBlock'
        ),
    )
    return plain, wrapped


def test_shards_have_the_groups_of_the_whole(two_ranks_in_one_process):
    """A shard is flat, and would be spared weight decay for that."""
    plain, model = sharded(use_orig_params=True)
    weights = [p for n, p in model.named_parameters() if n.endswith('qkv.weight')]
    assert all(weight.ndim == 1 for weight in weights)
    assert groups(model) == groups(plain)


def test_flat_parameters_are_refused(two_ranks_in_one_process):
    with pytest.raises(ValueError, match='use_orig_params=True'):
        groups(sharded(use_orig_params=False)[1])


def test_the_fsdp_strategy_builds():
    strategy = STRATEGIES.build(Config.fromfile(FSDP).strategy)
    assert type(strategy) is FSDPStrategy


@pytest.mark.slow
def test_two_processes_train_save_and_resume_with_fsdp(tmp_path):
    """In shards on two CPU processes; the checkpoint has the whole model."""

    def train(epochs: int, *args) -> dict:
        """Return the optimizer's state of each parameter after so many epochs."""
        done = run_python(
            *('-m', 'torch.distributed.run', '--standalone', '--nproc-per-node', 2),
            *(ROOT / 'tools/train.py', 'toy.py', '--launcher', 'pytorch', *args),
            *('--cfg-options', f'train_cfg.max_epochs={epochs}'),
            cwd=tmp_path,
        )
        said = done.stdout + done.stderr
        assert f'Epoch(train) [{epochs}]' in said and 'coco/bbox_mAP' in said
        path = tmp_path / 'work_dirs' / 'toy' / f'epoch_{epochs}.pth'
        checkpoint = torch.load(path, weights_only=False)
        init_default_scope('mmdet')
        model = MODELS.build(Config.fromfile(tmp_path / 'toy.py').model)
        model.load_state_dict(checkpoint['state_dict'], strict=True)
        states = checkpoint['optimizer']['state']
        for name, param in model.named_parameters():
            assert states[name]['exp_avg'].shape == param.shape, name
        return states

    toy = '-m', 'tools.datasets.toy', 'coco', '--out', 'data/coco', '--num-images', 4
    run_python(*toy, cwd=tmp_path)
    (tmp_path / 'toy.py').write_text(TOY)
    first, second = train(1), train(2, '--resume')
    for name, state in first.items():
        assert second[name]['step'] == 2 * state['step'] > 0, name

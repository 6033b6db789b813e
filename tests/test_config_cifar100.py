"""The configs of CIFAR-100: their heads, and training on an imitation of its files."""

import pickle

import numpy as np
import pytest
import torch

pytest.importorskip('mmpretrain')

from config_files import ROOT
from mmengine.config import Config
from mmengine.dataset import pseudo_collate
from mmengine.registry import DATASETS, DefaultScope
from mmpretrain.datasets import CIFAR100

from mmattn.analysis.flops import build

FOLDER = ROOT / 'configs' / 'cifar100'
LEAVES = sorted(FOLDER.glob('*.py'))
MIXING = {  # the shapes of the weights that mix M heads, by the config
    'imhsa': lambda M: [(2 * M, M), (M, 2 * M)] * 2,
    'mhsa': lambda M: [],
    'decomposition': lambda M: [],
    'interaction': lambda M: [(M, M)] * 2,
    'decomposition_interaction': lambda M: [(M, M)] * 4,
}


@pytest.mark.parametrize('path', LEAVES, ids=lambda path: path.stem)
def test_one_option_sets_the_heads(path):
    cfg, heads = Config.fromfile(path), 16
    cfg.merge_from_dict({'model.backbone.arch.num_heads': heads})
    backbone = build(cfg).backbone
    assert len(backbone.blocks) == 12 and backbone.grid_size == (16, 16)
    _, size, *variant = path.stem.removesuffix('_300e_cifar100').split('_')
    expected = MIXING['_'.join(variant)](heads)
    for attention in (block.attention for block in backbone.blocks):
        width = attention.qkv.in_features
        assert (attention.num_heads, width) == (heads, {'t2': 192, 's2': 384}[size])
        parameters = attention.named_parameters()
        mixing = [tuple(p.shape) for name, p in parameters if name[:2] in ('w1', 'w2')]
        assert mixing == expected
        inferred = [getattr(attention, name, None) for name in ('local', 'gate')]
        assert all(inferred) if variant == ['imhsa'] else not any(inferred)


def test_a_network_trains_on_the_files_of_cifar100(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    (tmp_path / CIFAR100.base_folder).mkdir()
    pixels = rng.integers(0, 256, (6, 3, 32, 32), dtype=np.uint8)
    for name in ('train', 'test'):
        entry = dict(data=pixels.reshape(6, 3072), fine_labels=[99, 1, 2, 3, 4, 5])
        (tmp_path / CIFAR100.base_folder / name).write_bytes(pickle.dumps(entry))
        monkeypatch.setattr(CIFAR100, f'{name}_list', [[name, None]])  # no checksum
    cfg = Config.fromfile(FOLDER / 'vit_t2_imhsa_300e_cifar100.py')
    cfg.merge_from_dict({'model.backbone.arch.depth': 1})
    model = build(cfg, device='cpu')
    with DefaultScope.overwrite_default_scope('mmpretrain'):
        for part in ('train', 'test'):
            loader = cfg[f'{part}_dataloader']
            loader.dataset.data_root = str(tmp_path)
            dataset = DATASETS.build(loader.dataset)
            assert dataset.get_data_info(0)['gt_label'] == 99
            batch = pseudo_collate([dataset[index] for index in range(6)])
            inputs = model.data_preprocessor(batch, training=part == 'train')
            if part == 'train':
                losses = model.loss(**inputs)
        np.testing.assert_array_equal(torch.stack(batch['inputs']), pixels)
    losses['loss'].backward()
    assert model.backbone.patch_embed.weight.grad.abs().sum() > 0
    mean, std = (np.array(cfg.model.data_preprocessor[k]) for k in ('mean', 'std'))
    expected = (pixels.transpose(0, 2, 3, 1) - mean) / std  # RGB, as they are stored
    found = inputs['inputs'].permute(0, 2, 3, 1).numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)

"""Fine-tuning and detectors start from the weights that their configs name."""

from pathlib import Path

import pytest
import torch

for name in ('mmengine', 'mmdet', 'mmpretrain'):
    pytest.importorskip(name)

from config_files import ROOT  # noqa: E402
from mmengine.config import Config  # noqa: E402
from mmengine.registry import MODELS as ROOT_MODELS  # noqa: E402
from mmengine.registry import init_default_scope  # noqa: E402

from mmattn.engine import Runner  # noqa: E402
from mmattn.models import DAT, DATPlusPlus, LiSANet, ViT  # noqa: E402
from mmattn.models.layers import pos_embed_map, resize_grid  # noqa: E402


def fine_tuning(tmp_path, start: str, name: str, arch: dict):
    """Load the weights that a config starts from into its classifier.

    Return the classifier that they come from, and the one that has loaded them.
    """
    configs = [
        Config.fromfile(ROOT / f'configs/classification/{config}.py')
        for config in (start, name)
    ]
    for cfg in configs:
        cfg.model.backbone.arch = arch
        if isinstance(arch['embed_dims'], tuple):
            cfg.model.head.in_channels = arch['embed_dims'][-1]
    load_from = Path(configs[1].load_from)
    assert load_from.parts[1] == start
    assert load_from.stem == f'epoch_{configs[0].train_cfg.max_epochs}'
    init_default_scope('mmpretrain')
    source = ROOT_MODELS.build(configs[0].model)
    torch.save({'state_dict': source.state_dict()}, tmp_path / load_from.name)
    runner = Runner(
        configs[1].model,
        str(tmp_path),
        load_from=str(tmp_path / load_from.name),
        default_scope='mmpretrain',
        experiment_name=f'{tmp_path.name}_{name}',
    )
    runner.load_or_resume()
    return source, runner.model


@pytest.mark.parametrize('attention', ['mhsa', 'imhsa'])
@pytest.mark.parametrize('side', [448, 672, 896])
def test_fine_tuning_starts_from_the_weights_at_224(tmp_path, attention, side):
    """`load_from` fits the position embedding and takes all else as it is."""
    source, model = fine_tuning(
        tmp_path,
        f'vit_t16_{attention}_300e_in1k',
        f'vit_t16_{attention}_{side}_30e_in1k',
        dict(ViT.arch_zoo['tiny'], depth=1),
    )
    loaded, grid = model.state_dict(), side // 16
    assert set(loaded) == set(source.state_dict())
    for name, value in source.state_dict().items():
        if name == 'backbone.pos_embed':
            value = pos_embed_map(value, (14, 14), (grid, grid)).flatten(1, 2)
            assert value.shape == (1, grid * grid, 192)
        torch.testing.assert_close(loaded[name], value)


def test_lisanet_at_384_starts_with_what_the_weights_at_224_give_there(tmp_path):
    """The kernels' spectra and the position embedding are resized to the new grid."""
    source, model = fine_tuning(
        tmp_path,
        'lisanet_i_150e_in1k',
        'lisanet_i_384_30e_in1k',
        dict(LiSANet.arch_zoo['isotropic'], depths=(1,)),
    )
    assert model.backbone.grid_size == (24, 24) != source.backbone.grid_size
    for block in source.backbone.blocks[0]:
        block.mixer.kernel_resize = 'gfnet'  # the fine-tuned model's
    images = torch.randn(1, 3, 384, 384, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(model.eval()(images), source.eval()(images))


@pytest.mark.parametrize('name', ['dat_b', 'datpp_b'])
def test_dat_at_384_starts_from_the_weights_at_224(tmp_path, name):
    """DAT's tables of positions fit the new windows and grids; DAT++ keeps all."""
    backbone = DAT if name == 'dat_b' else DATPlusPlus
    start, end = f'{name}_300e_in1k', f'{name}_384_30e_in1k'
    source, model = fine_tuning(tmp_path, start, end, backbone.arch_zoo['nano'])
    loaded, resized = model.state_dict(), set()
    for key, value in source.state_dict().items():
        kind = key.split('.')[-1]
        if loaded[key].shape != value.shape:
            resized.add(kind)
        if name == 'dat_b' and kind == 'rpe_table':
            value = resize_grid(value, loaded[key].shape[1:])
        if name == 'dat_b' and kind == 'relative_position_bias_table':
            windows = resize_grid(value.t().unflatten(1, (13, 13)), (23, 23))
            value = windows.flatten(1).t()
        torch.testing.assert_close(loaded[key], value)
    tables = {'rpe_table', 'relative_position_bias_table'}
    assert resized == (tables if name == 'dat_b' else set())


@pytest.mark.parametrize(
    'classifier, detector, arch',
    [
        ('ivit_t_300e_in1k', 'ivit_t_3x_coco', 'nano'),
        ('hylisanet_s_300e_in1k', 'hylisanet_s_1x_coco', 'hybrid-nano'),
        ('hmait_t_300e_in1k', 'hmait_t_3x_coco', 'nano'),
        ('pvtv2_b0_300e_in1k', 'pvtv2_b0_1x_coco', 'b0'),
        ('dat_t_300e_in1k', 'dat_t_1x_coco', 'nano'),
        ('datpp_t_300e_in1k', 'datpp_t_1x_coco', 'nano'),
    ],
)
def test_classifier_weights_go_into_a_detector(tmp_path, classifier, detector, arch):
    """`configs/mask_rcnn/README.md` gives these settings."""
    cfg = Config.fromfile(ROOT / f'configs/classification/{classifier}.py')
    backbone = ROOT_MODELS.build(cfg.model.backbone | dict(arch=arch))
    state = {f'backbone.{key}': value for key, value in backbone.state_dict().items()}
    torch.save({'state_dict': state}, tmp_path / 'epoch_300.pth')
    cfg = Config.fromfile(ROOT / f'configs/mask_rcnn/{detector}.py')
    init_cfg = dict(
        type='Pretrained',
        prefix='backbone.',
        checkpoint=str(tmp_path / 'epoch_300.pth'),
    )
    model = ROOT_MODELS.build(cfg.model.backbone | dict(arch=arch, init_cfg=init_cfg))
    model.init_weights()
    loaded = model.state_dict()
    for key, value in backbone.state_dict().items():
        torch.testing.assert_close(loaded[key], value)

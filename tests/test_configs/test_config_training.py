"""Each method trains and tests, also from published weights."""

import copy
import gc
import math
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from config_files import ROOT, load
from mmengine.config import Config
from mmengine.dataset import Compose
from mmengine.registry import init_default_scope

from mmattn.engine import Runner
from mmattn.registry import MODELS
from mmattn.results.coco import encode_mask
from tools.datasets import toy

SHRINK = 8
SHRUNK_KEYS = ('scale', 'scales', 'crop_size', 'size')


def shrink(value):
    """Divide the sizes in a detection or segmentation config, in place."""
    if isinstance(value, dict):
        for key in SHRUNK_KEYS:
            if key in value:
                value[key] = shrunk(value[key])
        value = list(value.values())
    if isinstance(value, list | tuple):
        for item in value:
            shrink(item)


def shrunk(size):
    return size // SHRINK if isinstance(size, int) else type(size)(map(shrunk, size))


# By the type of the data set: the maker of toy data, and their folder.
DATA = {
    'ImageNet': ('imagenet', 'data/imagenet'),
    'ImageNet21k': ('imagenet', 'data/imagenet21k'),
    'CocoDataset': ('coco', 'data/coco'),
    'ADE20KDataset': ('ade20k', 'data/ade'),
}
LOADERS = ('train_dataloader', 'val_dataloader', 'test_dataloader')
TOY_TEACHER = dict(type='TimmClassifier', model_name='test_byobnet', num_classes=1000)


def shallow(backbone: type, arch: str) -> dict:
    """Return the backbone's `arch` with one block a stage, or two blocks in all."""
    arch = backbone.arch_zoo[arch]
    if 'depth' in arch:
        return dict(arch, depth=2)
    return dict(arch, depths=(1,) * len(arch['depths']))


def unsure(model: dict):
    """Narrow a detector in place, with few proposals and no threshold of scores."""
    test_cfg = model['test_cfg']
    if model['type'] == 'mmattn.DeformableDETR':
        model['encoder']['num_layers'] = 1
        model['decoder'].update(num_layers=2, num_queries=20)
        test_cfg['max_per_img'] = 20
    elif model['type'] in ('ConditionalDETR', 'DABDETR', 'DINO', 'DDQDETR'):
        model['num_queries'] = 20
        model['encoder']['num_layers'] = 1
        model['decoder']['num_layers'] = 2
        test_cfg['max_per_img'] = 20
    elif model['type'] == 'SparseRCNN':  # one of its six stages
        model['roi_head'].update(num_stages=1, stage_loss_weights=[1])
        for part, key in (('roi_head', 'bbox_head'), ('train_cfg', 'rcnn')):
            model[part][key] = model[part][key][:1]
        test_cfg['rcnn']['max_per_img'] = 20
    elif 'rcnn' in test_cfg:
        heads = model['roi_head']['bbox_head']
        for head in heads if isinstance(heads, list) else [heads]:
            head['fc_out_channels'] = 64
        masks = model['roi_head']['mask_head']
        for head in masks if isinstance(masks, list) else [masks]:
            head['num_convs'] = 1
        model['train_cfg']['rpn_proposal']['max_per_img'] = 20
        test_cfg['rpn']['max_per_img'] = 20
        test_cfg['rcnn'].update(score_thr=0.0, max_per_img=5)
    else:
        test_cfg.update(score_thr=0.0, nms_pre=20, max_per_img=20)


@pytest.fixture
def small_config(tmp_path, monkeypatch):
    """Load configs with a single iteration, beside toy data of the real layout."""
    monkeypatch.chdir(tmp_path)

    def load(name: str) -> Config:
        cfg = Config.fromfile(ROOT / 'configs' / f'{name}.py')
        layout, root = DATA[cfg.train_dataloader.dataset.type]
        toy.MAKERS[layout](Path(root), num_images=2)
        if cfg.default_scope != 'mmpretrain':
            shrink(cfg._cfg_dict)
        backbone = cfg.model.backbone
        backbone.pop('init_cfg', None)  # a download
        if backbone.type.startswith('mmattn.'):
            backbone.arch = shallow(MODELS.get(backbone.type), backbone.arch)
        if 'teacher' in cfg.model:
            cfg.model.teacher = TOY_TEACHER
        for loader in filter(None, map(cfg.get, LOADERS)):
            loader.update(num_workers=0, persistent_workers=False)
        cfg.train_dataloader.batch_size = 2
        if cfg.test_dataloader:
            cfg.test_dataloader.dataset.indices = 1
        if cfg.train_cfg.type == 'IterBasedTrainLoop':
            cfg.train_cfg.update(max_iters=1, val_interval=1)
            cfg.default_hooks.checkpoint.interval = 1
        else:
            cfg.train_cfg.max_epochs = 1
        cfg.default_hooks.checkpoint.save_optimizer = False
        cfg.work_dir = 'work_dir'
        cfg.experiment_name = f'{tmp_path.name}_{name.replace("/", "_")}'
        cfg.randomness = dict(seed=0)
        return cfg

    yield load
    gc.collect()  # runs of a model in its real size keep 100 MB each until then


TOP1, BOXES, MASKS = 'accuracy/top1', 'coco/bbox_mAP', 'coco/segm_mAP'
SLOW = pytest.mark.slow
# Slow ones take 4 s or more of CPU time, or are classifiers that train as IViT's does:
# test_timm has a step of each backbone, and the test that resumes MaiT trains it.
METHODS = {
    'classification/ivit_t_300e_in1k': ['accuracy/top5'],
    'classification/vit_t16_imhsa_300e_in1k': [TOP1, SLOW],
    'classification/lisanet_i_150e_in1k': [TOP1, SLOW],
    'classification/mait_xt_distilled_400e_in1k': [TOP1, SLOW],
    'classification/masked_cait_xxs24_400e_in1k': [TOP1, SLOW],
    'classification/hmait_t_300e_in1k': [TOP1, SLOW],
    'classification/pvt_t_300e_in1k': [TOP1, SLOW],
    'mask_rcnn/ivit_t_3x_coco': [MASKS],
    'cascade_mask_rcnn/dat_t_1x_coco': [MASKS, SLOW],
    'retinanet/dat_plus_plus_t_1x_coco': [BOXES],
    'atss/pvt_v2_b2_3x_coco': [BOXES, SLOW],
    'gfl/pvt_v2_b2_li_3x_coco': [BOXES, SLOW],
    'sparse_rcnn/pvt_v2_b2_3x_coco': [BOXES, SLOW],
    'detr/pvt_s_50e_coco': [BOXES, SLOW],
    'conditional_detr/ivit_t_50e_coco': [BOXES],
    'dab_detr/pvt_v2_b2_50e_coco': [BOXES, SLOW],
    'deformable_detr/pvt_v2_b2_two_stage_50e_coco': [BOXES],
    'deformable_detr/r50_single_scale_dc5_50e_coco': [BOXES, SLOW],
    'dino/pvt_v2_b2_12e_coco': [BOXES],
    'ddq/pvt_v2_b2_12e_coco': [BOXES, SLOW],
    'sem_fpn/lisanet_s_80k_ade20k': ['mIoU'],
    'upernet/ivit_t_160k_ade20k': ['mIoU'],
    'mask2former/pvt_v2_b2_160k_ade20k': ['mIoU', SLOW],
    'segformer/pvt_v2_mit_b0_160k_ade20k': ['mIoU'],
}


@pytest.mark.parametrize(
    'name, metric',
    [
        pytest.param(name, metric, marks=marks)
        for name, (metric, *marks) in METHODS.items()
    ],
)
def test_method_trains_and_tests(small_config, name, metric):
    cfg = small_config(name)
    if cfg.default_scope == 'mmdet':
        unsure(cfg.model)
    elif cfg.model.get('decode_head', {}).get('type') == 'UPerHead':
        cfg.model.decode_head.channels = 64
    cfg.load_from = None
    runner = Runner.from_cfg(cfg)
    runner.train()
    loss = runner.message_hub.get_scalar('train/loss').current()
    assert math.isfinite(loss) and loss > 0
    # DistributedDataParallel would stop at a parameter without a gradient.
    trained = runner.optim_wrapper.optimizer.state
    named = runner.model.named_parameters()
    assert not [name for name, p in named if p.requires_grad and p not in trained]
    assert metric in runner.test()
    assert list(Path('work_dir').glob('*_1.pth'))


@pytest.mark.parametrize(
    'name, scale',  # of a pixel of the photograph, at most
    [
        ('mask_rcnn/ivit_t_3x_coco', 4),  # resized, cropped and resized
        ('demo/mask_rcnn_r18_hela', 0),  # not resized
    ],
)
def test_augmented_images_boxes_and_masks_agree(name, scale, photograph, tmp_path):
    """Objects keep their colors, and boxes enclose their masks, tightly if not cut."""
    cv2.imwrite(str(tmp_path / 'a.png'), photograph.image[..., ::-1])
    objects = zip(photograph.boxes.tolist(), photograph.masks, strict=True)
    instances = [
        dict(bbox=box, bbox_label=i, mask=encode_mask(mask), ignore_flag=0)
        for i, (box, mask) in enumerate(objects)
    ]
    height, width = photograph.image.shape[:2]
    size = dict(height=height, width=width, img_id=1)
    info = dict(size, img_path=str(tmp_path / 'a.png'), instances=instances)
    init_default_scope('mmdet')
    pipeline = Compose(load(name).train_dataloader.dataset.pipeline)
    means = [photograph.image[mask].mean(0) for mask in photograph.masks]
    flips, whole = set(), 0
    for seed in range(8):
        np.random.seed(seed)
        packed = pipeline(copy.deepcopy(info))
        sample, image = packed['data_samples'], packed['inputs'].flip(0).numpy()
        flips.add(sample.flip_direction)
        found = sample.gt_instances
        masks = found.masks.masks.astype(bool)
        assert masks.shape[1:] == image.shape[1:] == sample.img_shape
        for box, label, mask in zip(
            found.bboxes.tensor.numpy(), found.labels, masks, strict=True
        ):
            y, x = mask.nonzero()
            tight = np.array([x.min(), y.min(), x.max() + 1, y.max() + 1])
            outside = np.maximum(box[:2] - tight[:2], tight[2:] - box[2:])
            assert outside.max() <= scale
            if box.min() > 0 and (box[2:] < mask.shape[::-1]).all():
                whole += 1
                np.testing.assert_allclose(tight, box, atol=scale)
                if photograph.masks[label].sum() > 1000:  # little border
                    color = image[:, mask].mean(1)
                    np.testing.assert_allclose(color, means[label], atol=2 * scale)
    assert len(flips) > 1 and whole > 60


def test_distillation_resumes_exactly(small_config):
    """The teacher is the same, and checkpoints do not contain it."""
    weights = []
    for epochs in ([2], [1, 2]):
        for last in epochs:
            cfg = small_config('classification/mait_xt_distilled_400e_in1k')
            cfg.train_cfg.max_epochs = last
            cfg.default_hooks.checkpoint.save_optimizer = True
            cfg.work_dir = f'work_dir_{len(epochs)}'
            cfg.experiment_name += f'_{len(epochs)}_{last}'
            cfg.resume = last != epochs[0]
            runner = Runner.from_cfg(cfg)
            runner.train()
        weights.append(runner.model.state_dict())
        assert 'accuracy/top1' in runner.test()
    straight, resumed = weights
    checkpoint = torch.load('work_dir_2/epoch_2.pth', weights_only=False)
    assert set(checkpoint['state_dict']) == set(straight)
    for name, value in straight.items():
        torch.testing.assert_close(resumed[name], value, rtol=0, atol=0)


def test_fine_tuning_starts_from_what_in21k_trained(small_config):
    """The classifier has other classes and starts near 0; all else is loaded."""
    cfg = small_config('classification/lisanet_hybrid_s_in21k_30e_in1k')
    backbone = MODELS.build(cfg.model.backbone).state_dict()
    source = {f'backbone.{name}': value for name, value in backbone.items()}
    head = {
        'head.fc.weight': torch.ones(21841, 1536),
        'head.fc.bias': torch.ones(21841),
    }
    torch.save(dict(state_dict=source | head), 'epoch_90.pth')
    cfg.load_from = 'epoch_90.pth'
    runner = Runner.from_cfg(cfg)
    runner.model.init_weights()
    runner.load_or_resume()
    loaded = runner.model.state_dict()
    for name, value in source.items():
        torch.testing.assert_close(loaded[name], value)
    assert loaded['head.fc.weight'].std().item() == pytest.approx(2e-5, rel=0.05)


FINE_TUNED = {  # with the parameters whose shapes depend on the image's
    'vit_t16_imhsa_448_30e_in1k': {'pos_embed'},
    'lisanet_i_384_30e_in1k': {'pos_embed', 'w_a', 'w_b'},
    'dat_b_384_30e_in1k': {'rpe_table', 'relative_position_bias_table'},
    'dat_plus_plus_b_384_30e_in1k': set(),
}


@pytest.mark.parametrize('name', FINE_TUNED)
def test_fine_tuning_starts_from_a_classifier_of_smaller_images(small_config, name):
    cfg = small_config(f'classification/{name}')
    _, start, weights = Path(cfg.load_from).parts
    source = small_config(f'classification/{start}')
    assert (
        weights == f'epoch_{Config.fromfile(source.filename).train_cfg.max_epochs}.pth'
    )
    init_default_scope('mmpretrain')
    state = MODELS.build(source.model).state_dict()
    torch.save(dict(state_dict=state), weights)
    cfg.load_from = weights
    runner = Runner.from_cfg(cfg)
    runner.load_or_resume()
    resized = set()
    for key, value in runner.model.state_dict().items():
        if value.shape == state[key].shape:
            torch.testing.assert_close(value, state[key])
        else:
            resized.add(key.rpartition('.')[2])
    assert resized == FINE_TUNED[name]


def test_classifier_weights_go_into_a_detector(small_config):
    """`configs/mask_rcnn/README.md` gives these settings."""
    classifier = small_config('classification/dat_t_300e_in1k').model.backbone
    state = MODELS.build(classifier).state_dict()
    state = {f'backbone.{key}': value for key, value in state.items()}
    torch.save(dict(state_dict=state), 'epoch_300.pth')
    backbone = small_config('mask_rcnn/dat_t_1x_coco').model.backbone
    settings = dict(prefix='backbone.', checkpoint='epoch_300.pth')
    backbone.init_cfg = dict(type='Pretrained', **settings)
    model = MODELS.build(backbone)
    model.init_weights()
    for key, value in model.state_dict().items():
        if f'backbone.{key}' in state:  # a detector has more norms
            torch.testing.assert_close(value, state[f'backbone.{key}'])

"""Distillation: its loss, what the teacher sees, and that it is not in the model."""

import copy

import pytest
import torch
import torch.nn.functional as F
from mmengine.optim import build_optim_wrapper
from mmengine.registry import init_default_scope
from mmpretrain.models.classifiers import BaseClassifier
from mmpretrain.structures import DataSample
from refusals import refuses
from torch import nn
from torch.testing import assert_close

from mmattn.registry import MODELS

CLASSES = 5
IMAGENET = dict(mean=[123.675, 116.28, 103.53], std=[58.395, 57.12, 57.375])
TIMM_TEACHER = dict(
    type='TimmClassifier', model_name='test_byobnet', num_classes=CLASSES
)


class Witness(BaseClassifier):
    """A teacher that keeps the images it gets, and answers with given scores."""

    def __init__(self, scores=None, data_preprocessor=None):
        preprocessor = dict(type='ClsDataPreprocessor', **(data_preprocessor or {}))
        super().__init__(data_preprocessor=preprocessor)
        self.scores = scores
        self.seen = None

    def forward(self, inputs, data_samples=None, mode='tensor'):
        assert not torch.is_grad_enabled()
        self.seen = inputs
        return self.scores


@pytest.fixture(autouse=True)
def mmpretrain_scope():
    init_default_scope('mmpretrain')
    MODELS.register_module(module=Witness)
    yield
    MODELS.module_dict.pop('Witness')


def build(teacher=TIMM_TEACHER, **changes) -> nn.Module:
    torch.manual_seed(0)
    cfg = dict(
        type='mmattn.DistilledClassifier',
        backbone=dict(
            type='mmattn.MaiT',
            arch=dict(embed_dims=24, depth=2, num_heads=2),
            masking='soft',
            img_size=32,
            distilled=True,
            out_type='cls_token',
        ),
        head=dict(
            type='DeiTClsHead',
            num_classes=CLASSES,
            in_channels=24,
            loss=dict(type='LabelSmoothLoss', label_smooth_val=0.1, mode='original'),
            init_cfg=dict(type='TruncNormal', layer='Linear', std=0.02),
        ),
        teacher=teacher,
        data_preprocessor=dict(num_classes=CLASSES, to_rgb=True, **IMAGENET),
    )
    return MODELS.build(cfg | changes)


def trained(*args, **kwargs) -> nn.Module:
    """A model on which training has begun."""
    model = build(*args, **kwargs)
    model.init_weights()
    return model.train()


def teacher_of(model: nn.Module) -> nn.Module:
    return model._teacher[0]


def batch(size: int = 4):
    """Images of 8 bits in the order BGR, as a data loader gives them."""
    generator = torch.Generator().manual_seed(1)
    images = torch.randint(256, (size, 3, 32, 32), generator=generator)
    labels = [i % CLASSES for i in range(size)]
    samples = [DataSample().set_gt_label(label) for label in labels]
    return dict(inputs=images.to(torch.uint8), data_samples=samples)


def expected_teacher_loss(score, teacher_score, tau):
    if tau is None:
        return F.cross_entropy(score, teacher_score.argmax(1))
    teacher = (teacher_score / tau).softmax(1)
    student = (score / tau).log_softmax(1)
    return tau**2 * (teacher * (teacher.log() - student)).sum(1).mean()


@pytest.mark.parametrize(
    'augments, tau, weight',
    [(None, None, 0.2), ([dict(type='Mixup', alpha=0.8)], 3.0, 0.1)],
)
def test_loss_is_deits(augments, tau, weight):
    scores = torch.randn(4, CLASSES, generator=torch.Generator().manual_seed(2))
    settings = dict(temperature=tau, teacher_weight=weight)
    teacher = dict(type='mmattn.Witness', scores=scores, data_preprocessor=IMAGENET)
    train_cfg = augments and dict(augments=augments)
    model = trained(teacher, train_cfg=train_cfg, **settings)
    data = model.data_preprocessor(batch(), training=True)
    losses = model(**data, mode='loss')
    cls_token, dist_token = model.backbone(data['inputs'])[-1]
    layers = model.head.layers
    cls_score, dist_score = layers.head(cls_token), layers.head_dist(dist_token)
    labels = model.head._get_loss(cls_score, data['data_samples'])['loss']
    assert set(losses) == {'loss_cls', 'loss_dist'}
    assert_close(losses['loss_cls'], (1 - weight) * labels)
    expected = weight * expected_teacher_loss(dist_score, scores, tau)
    assert_close(losses['loss_dist'], expected)
    sum(losses.values()).backward()  # to each parameter, as DDP asks for
    assert [name for name, p in model.named_parameters() if p.grad is None] == []


@pytest.mark.parametrize(
    'own',
    [
        dict(mean=[127.5] * 3, std=[127.5] * 3, to_rgb=True),
        dict(mean=[103.53, 116.28, 123.675], std=[1.0, 2.0, 3.0], to_rgb=False),
    ],
    ids=['rgb', 'bgr'],
)
def test_teacher_sees_the_augmented_images_in_its_own_normalization(own):
    scores = torch.zeros(4, CLASSES)
    teacher = dict(type='mmattn.Witness', scores=scores, data_preprocessor=own)
    model = trained(teacher, train_cfg=dict(augments=[dict(type='CutMix', alpha=1.0)]))
    data = model.data_preprocessor(batch(), training=True)
    assert not torch.equal(data['inputs'], model.data_preprocessor(batch())['inputs'])
    model(**data, mode='loss')
    mean, std = (torch.tensor(IMAGENET[key])[:, None, None] for key in ('mean', 'std'))
    images = data['inputs'] * std + mean  # RGB
    images = images if own['to_rgb'] else images.flip(1)
    mean, std = (torch.tensor(own[key])[:, None, None] for key in ('mean', 'std'))
    seen = teacher_of(model).seen
    assert_close(seen, (images - mean) / std, rtol=1e-4, atol=1e-4)


def test_a_timm_teacher_comes_with_its_normalization():
    """`test_vit` has 0.5 for all six numbers, other than ImageNet's."""
    model = trained(dict(TIMM_TEACHER, model_name='test_vit', img_size=32))
    data = batch()
    inputs = model.data_preprocessor(data, training=True)['inputs']
    expected = teacher_of(model).model(data['inputs'].flip(1) / 127.5 - 1)
    assert_close(model.teacher_score(inputs), expected, atol=1e-4, rtol=0)


def test_teacher_is_no_part_of_the_model():
    model = trained()
    teacher = teacher_of(model)
    students = {*build().state_dict()}
    assert {*model.state_dict()} == students
    assert {name for name, _ in model.named_parameters()} <= students
    assert not any(m.training for m in teacher.modules())
    assert not any(p.requires_grad for p in teacher.parameters())
    cfg = dict(
        optimizer=dict(type='AdamW', lr=0.1, weight_decay=0.05),
        constructor='mmattn.LayerDecayOptimWrapperConstructor',
    )
    before = copy.deepcopy(teacher.state_dict())
    model.train_step(batch(), build_optim_wrapper(model, cfg))
    assert_close(teacher.state_dict(), before, rtol=0, atol=0)


def test_teacher_follows_to_another_dtype_and_into_a_copy():
    model = trained().double()
    assert {p.dtype for p in teacher_of(model).parameters()} == {torch.float64}
    twin = copy.deepcopy(model)
    assert teacher_of(twin) is not teacher_of(model)
    inputs = torch.randn(2, 3, 32, 32, dtype=torch.float64)
    assert_close(twin.teacher_score(inputs), model.teacher_score(inputs))


def test_prediction_is_the_mean_of_two_and_needs_no_teacher():
    model = build(teacher=dict(type='NoSuchTeacher')).eval()
    data = model.data_preprocessor(batch())
    with torch.no_grad():
        predictions = model(**data, mode='predict')
        cls_token, dist_token = model.backbone(data['inputs'])[-1]
        layers = model.head.layers
        score = (layers.head(cls_token) + layers.head_dist(dist_token)) / 2
    for sample, expected in zip(predictions, score.softmax(1), strict=True):
        assert_close(sample.pred_score, expected)


def test_weights_of_a_teacher_are_loaded_and_stay(tmp_path):
    """timm's by `checkpoint_path`, as by `pretrained`; an `init_cfg` for the rest.

    Asked to initialize itself, `test_vit` would start anew.
    """
    cfg = dict(TIMM_TEACHER, model_name='test_vit')
    weights = MODELS.build(cfg).state_dict()
    path = str(tmp_path / 'teacher.pth')
    torch.save(weights, path)
    for source in (
        dict(checkpoint_path=path),
        dict(init_cfg=dict(type='Pretrained', checkpoint=path)),
    ):
        loaded = teacher_of(trained(cfg | source)).state_dict()
        assert_close(loaded, weights, rtol=0, atol=0)


def train_once(make=trained, **settings):
    model = make(**settings)
    model(**model.data_preprocessor(batch(), training=True), mode='loss')


test_wrong_settings_are_named = refuses(
    train_once,
    (dict(head=dict(type='LinearClsHead', num_classes=5, in_channels=24)), 'head'),
    (dict(teacher_weight=1.5), '1.5'),
    (dict(temperature=0.0), '0.0'),
    (dict(teacher=dict(type='mmattn.Witness')), 'mean, std and to_rgb'),
    (dict(teacher=dict(TIMM_TEACHER, num_classes=3)), '3 classes, the student 5'),
    (dict(make=build), 'init_weights'),
)

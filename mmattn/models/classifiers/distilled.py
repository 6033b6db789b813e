"""DistilledClassifier: a classifier that learns from labels and from a teacher.

It is the distillation of DeiT, Touvron et al., "Training data-efficient image
transformers & distillation through attention", https://arxiv.org/abs/2012.12877: a
second token and a second linear layer learn the teacher's predictions. mmpretrain's
`DeiTClsHead` supports only inference; this classifier trains it.
"""

import logging
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from mmengine.logging import print_log
from mmpretrain.models.classifiers import BaseClassifier, ImageClassifier
from mmpretrain.models.heads import DeiTClsHead
from torch import Tensor

from mmattn.errors import UserError
from mmattn.registry import MODELS

# Keys of a classifier's config that give its initial weights.
WEIGHTS = ('pretrained', 'init_cfg', 'checkpoint_path')


@MODELS.register_module()
class DistilledClassifier(ImageClassifier):
    """mmpretrain's `ImageClassifier` with a teacher while it trains.

    The loss is (1 - w) L(class token, label) + w L(distillation token, teacher), with
    the head's loss for labels. The teacher's part is hard by default: the cross-entropy
    with the teacher's most likely class. With a temperature tau it is soft: tau^2 times
    the Kullback-Leibler divergence of the two softmaxes of scores / tau. A prediction
    is the mean of the two classifiers' scores, without the teacher.

    The teacher sees the same mixed and erased images as the student, in its own
    normalization. It is in eval mode and has no gradients. It is no submodule, so the
    state dict, the optimizer and counts of parameters leave it out. `init_weights`
    builds it when training begins, so that tests and inference do not need its weights.

    Args:
        backbone: config of the student's backbone; its last output is a pair of a class
            token and a distillation token, (B, C) each.
        head: config of a `DeiTClsHead`.
        teacher: config of any classifier of mmpretrain, `TimmClassifier` for timm's.
            `pretrained=True` or `init_cfg` give its weights. Its `data_preprocessor`
            gives its normalization, which defaults to the one of timm's model.
        teacher_weight: w above, in [0, 1].
        temperature: tau above; None for the hard part, DeiT's own choice.
        neck, train_cfg, data_preprocessor, init_cfg: see `ImageClassifier`.

    Raises:
        ValueError: another head, a weight outside [0, 1], or a temperature that is not
            positive. When training begins: a teacher of unknown normalization or with
            other classes.
    """

    def __init__(
        self,
        backbone: dict,
        head: dict,
        teacher: dict,
        *,
        teacher_weight: float = 0.5,
        temperature: float | None = None,
        neck: dict | None = None,
        train_cfg: dict | None = None,
        data_preprocessor: dict | None = None,
        init_cfg: dict | list[dict] | None = None,
    ):
        super().__init__(
            backbone,
            neck=neck,
            head=head,
            train_cfg=train_cfg,
            data_preprocessor=data_preprocessor,
            init_cfg=init_cfg,
        )
        if not isinstance(self.head, DeiTClsHead):
            raise UserError(
                f'DistilledClassifier: head must be a DeiTClsHead, got {head}'
            )
        if not 0 <= teacher_weight <= 1:
            raise UserError(
                'DistilledClassifier: teacher_weight must be in [0, 1], got '
                f'{teacher_weight}'
            )
        if temperature is not None and temperature <= 0:
            raise UserError(
                'DistilledClassifier: temperature must be positive or None, got '
                f'{temperature}'
            )
        self.teacher_weight = teacher_weight
        self.temperature = temperature
        self._teacher_cfg = teacher
        self._teacher = ()  # in a tuple, a module is no submodule

    def init_weights(self):
        """Initialize the student, then build the teacher with its own weights."""
        super().init_weights()
        if not self._teacher:
            self._teacher = (_build_teacher(self._teacher_cfg, self._device()),)

    def _apply(self, fn, recurse: bool = True):
        """Move the teacher along to another device or dtype."""
        for teacher in self._teacher:
            teacher._apply(fn)
        return super()._apply(fn, recurse)

    def _device(self) -> torch.device:
        return next(self.parameters()).device

    def loss(self, inputs: Tensor, data_samples: list) -> dict[str, Tensor]:
        cls_token, dist_token = self.head.pre_logits(self.extract_feat(inputs))
        cls_score = self.head.layers.head(cls_token)  # (B, classes)
        dist_score = self.head.layers.head_dist(dist_token)
        losses = self.head._get_loss(cls_score, data_samples)
        losses['loss_cls'] = (1 - self.teacher_weight) * losses.pop('loss')
        losses['loss_dist'] = self.teacher_weight * self.distillation_loss(
            dist_score, self.teacher_score(inputs)
        )
        return losses

    def distillation_loss(self, score: Tensor, teacher_score: Tensor) -> Tensor:
        """Return the mean loss of the distillation token, see the class."""
        if score.shape != teacher_score.shape:
            raise UserError(
                f'the teacher has {teacher_score.shape[1]} classes, the student '
                f'{score.shape[1]}'
            )
        if self.temperature is None:
            return F.cross_entropy(score, teacher_score.argmax(1))
        tau = self.temperature
        divergence = F.kl_div(
            (score / tau).log_softmax(1),
            (teacher_score / tau).log_softmax(1),
            reduction='batchmean',
            log_target=True,
        )
        return tau**2 * divergence

    @torch.no_grad()
    def teacher_score(self, inputs: Tensor) -> Tensor:
        """Return the teacher's scores (B, classes) for the student's images."""
        if not self._teacher:
            raise UserError(
                'DistilledClassifier has no teacher yet: call init_weights() before '
                'training'
            )
        (teacher,) = self._teacher
        return teacher(self._renormalized(inputs, teacher))

    def _renormalized(self, inputs: Tensor, teacher: BaseClassifier) -> Tensor:
        own = self.data_preprocessor
        mean, std, rgb = _normalization(teacher)
        mean, std = mean.to(inputs), std.to(inputs)
        if hasattr(own, 'mean'):
            inputs = inputs * own.std + own.mean
        if rgb != own.to_rgb:
            inputs = inputs.flip(1)
        return (inputs - mean) / std


def _build_teacher(cfg: Mapping, device: torch.device) -> BaseClassifier:
    if not any(cfg.get(key) for key in WEIGHTS):
        print_log(
            f'The teacher starts from random weights: none of {", ".join(WEIGHTS)} in '
            f'{cfg}',
            logger='current',
            level=logging.WARNING,
        )
    teacher = MODELS.build(cfg)
    # Without an `init_cfg`, timm's models would draw their weights again.
    if teacher.init_cfg:
        teacher.init_weights()
    _normalization(teacher)
    return teacher.requires_grad_(False).eval().to(device)


def _normalization(teacher: BaseClassifier) -> tuple[Tensor, Tensor, bool]:
    """Return mean and deviation (3, 1, 1) of values up to 255, and if it takes RGB."""
    preprocessor = teacher.data_preprocessor
    if hasattr(preprocessor, 'mean'):
        return preprocessor.mean, preprocessor.std, preprocessor.to_rgb
    timm_cfg = getattr(getattr(teacher, 'model', None), 'pretrained_cfg', {})
    if 'mean' not in timm_cfg or 'std' not in timm_cfg:
        raise UserError(
            'DistilledClassifier: the normalization of the teacher is unknown; give it '
            'a data_preprocessor with mean, std and to_rgb'
        )
    mean, std = (
        255 * torch.tensor(timm_cfg[key]).view(-1, 1, 1) for key in ('mean', 'std')
    )
    return mean, std, True

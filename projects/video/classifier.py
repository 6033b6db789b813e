"""VideoClassifier: backbone, neck and linear head on the views of a video."""

import torch
import torch.nn.functional as F
import torchvision.transforms.v2 as torchvision_transforms
from mmengine.model import BaseModel
from mmengine.registry import MODELS
from torch import Tensor, nn
from torchvision.tv_tensors import Video

from mmattn.errors import UserError


@MODELS.register_module()
class AveragePool(nn.Module):
    """Neck of the mean over all places and times of the last map."""

    def forward(self, feats: tuple[Tensor, ...]) -> tuple[Tensor]:
        """Return (B, C) of maps (B, C, T, H, W), in a tuple."""
        return (feats[-1].mean(dim=(2, 3, 4)),)


@MODELS.register_module()
class LinearHead(nn.Module):
    """Linear classifier of pooled features.

    Args:
        num_classes: classes.
        in_channels: channels C of the features.
    """

    def __init__(self, num_classes: int, in_channels: int):
        super().__init__()
        self.num_classes = num_classes
        self.fc = nn.Linear(in_channels, num_classes)
        nn.init.trunc_normal_(self.fc.weight, std=0.02)
        nn.init.zeros_(self.fc.bias)

    def forward(self, feats: tuple[Tensor, ...]) -> Tensor:
        """Return logits (B, num_classes) of the last features (B, C)."""
        return self.fc(feats[-1])


@MODELS.register_module()
class VideoClassifier(BaseModel):
    """Classify videos by the mean of the scores of their views.

    In training, each view is a sample of its own, so that two views of a video are
    repeated augmentation.

    Args:
        backbone: takes clips (B, 3, T, H, W) and returns a tuple of maps.
        neck: takes these maps and returns a tuple of features (B, C).
        head: takes these features; see `LinearHead`.
        label_smoothing: weight of the uniform distribution in the targets.
        mixup: parameter of mixup's Beta distribution; None does without.
        cutmix: the same for CutMix. With both, each batch gets one of them.
        data_preprocessor, init_cfg: as in mmengine.

    Forward:
        Takes `inputs`, views (B, V, 3, T, H, W) or clips (B, 3, T, H, W), and `labels`
        (B,). Returns logits (B * V, num_classes) in the mode 'tensor', a dict of the
        loss in 'loss', and in 'predict' a dict with `scores` (num_classes,) and `label`
        for each video.
    """

    def __init__(
        self,
        backbone: dict,
        neck: dict,
        head: dict,
        *,
        label_smoothing: float = 0.0,
        mixup: float | None = None,
        cutmix: float | None = None,
        data_preprocessor: dict | None = None,
        init_cfg: dict | list[dict] | None = None,
    ):
        super().__init__(data_preprocessor, init_cfg)
        self.backbone = MODELS.build(backbone)
        self.neck = MODELS.build(neck)
        self.head = MODELS.build(head)
        self.label_smoothing = label_smoothing
        classes = self.head.num_classes
        kinds = {'MixUp': mixup, 'CutMix': cutmix}
        self.mixes = [
            getattr(torchvision_transforms, name)(alpha=alpha, num_classes=classes)
            for name, alpha in kinds.items()
            if alpha is not None
        ]

    def forward(
        self, inputs: Tensor, labels: Tensor | None = None, mode: str = 'tensor'
    ) -> Tensor | dict | list[dict]:
        if inputs.dim() == 5:
            inputs = inputs.unsqueeze(1)
        B, V = inputs.shape[:2]
        clips = inputs.flatten(0, 1)  # (B * V, 3, T, H, W)
        if mode == 'tensor':
            return self._logits(clips)
        if mode == 'loss':
            clips, targets = self._mix(clips, labels.repeat_interleave(V))
            return dict(loss=self._loss(self._logits(clips), targets))
        if mode == 'predict':
            scores = self._logits(clips).softmax(-1).unflatten(0, (B, V)).mean(1)
            labels = [None] * B if labels is None else labels
            return [
                dict(scores=score, label=label)
                for score, label in zip(scores, labels, strict=True)
            ]
        raise UserError(f"mode must be 'tensor', 'loss' or 'predict', got {mode!r}")

    def _logits(self, clips: Tensor) -> Tensor:
        return self.head(self.neck(self.backbone(clips)))

    def _loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(logits, targets, label_smoothing=self.label_smoothing)

    def _mix(self, clips: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return clips and labels, or distributions of them (B, num_classes)."""
        if not self.mixes:
            return clips, labels
        mix = self.mixes[int(torch.randint(len(self.mixes), ()))]
        # torchvision takes time before channels.
        mixed, targets = mix(Video(clips.transpose(1, 2)), labels)
        return mixed.as_subclass(Tensor).transpose(1, 2), targets

"""Detectors with random weights as exported graphs, for `onnx_model.py`."""

import torch
from torch import Tensor, nn

from mmattn.analysis.flops import build
from mmattn.apis.find import read_config
from mmattn.errors import UserError
from mmattn.export.graphs import graph_of
from mmattn.export.graphs.roi_detector import RoIDetector
from tools.benchmark.model import FORMATS

CANDIDATES = 500  # boxes that enter the last NMS
DEVIATION = 1.5  # of class logits
DIVISOR = 32  # of the padded sides, as in mmdet's configs


class DetectorWorkload:
    """A two-stage detector with post-processing, and an image.

    With random weights all scores nearly tie, and none reaches the threshold of the
    config. So the layers of the classes are scaled, and the threshold is the one that
    `CANDIDATES` boxes exceed.

    Args:
        name: config of the detector, with a prefix such as `mmdet::`, or its path.
        size: height and width of the image before it is padded.
    """

    def __init__(self, name: str, size: tuple[int, int]):
        torch.manual_seed(0)
        model = build(read_config(name), device='cpu').requires_grad_(False)
        graph = graph_of(model)
        if not isinstance(graph, RoIDetector):
            raise UserError(
                f'the models must be two-stage detectors or classifiers, got {name}'
            )
        self.model = graph
        padded = (-(-side // DIVISOR) * DIVISOR for side in size)
        image = torch.zeros(1, 3, *padded)
        generator = torch.Generator().manual_seed(0)
        image[..., : size[0], : size[1]] = torch.randn(3, *size, generator=generator)
        self.inputs = image, torch.tensor([size])
        self._spread_scores()

    @torch.no_grad()
    def _spread_scores(self):
        head, rpn = self.model.model.roi_head.bbox_head, self.model.model.rpn_head
        layers = rpn.rpn_cls, head.fc_cls
        for layer in layers:
            layer.bias.zero_()
        logits = first_outputs(layers, self.inference)
        # Scaling does not change the proposals, since it keeps the order of scores.
        for layer, values in zip(layers, logits, strict=True):
            layer.weight *= DEVIATION / values.std()
        scores = (logits[1] * (DEVIATION / logits[1].std())).softmax(-1)[:, :-1]
        least = scores.flatten().topk(CANDIDATES + 1).values[-1]
        self.model.score_threshold = least.item()

    def prepare(self, which: str, memory_format: str):
        self.model.to(memory_format=FORMATS[memory_format])
        image, size = self.inputs
        self.inputs = image.contiguous(memory_format=FORMATS[memory_format]), size

    def run(self, which: str):
        return self.inference

    @torch.no_grad()
    def inference(self) -> tuple[Tensor, ...]:
        return self.model(*self.inputs)

    @staticmethod
    def scores(outputs: tuple[Tensor, ...]) -> Tensor:
        """Return the scores of the detections, best first."""
        return outputs[0][..., 4]


def first_outputs(layers: tuple[nn.Module, ...], run) -> list[Tensor]:
    """Return what each layer returns first during a call."""
    found = {}

    def keep(layer: nn.Module, _, output: Tensor):
        found.setdefault(layer, output)

    hooks = [layer.register_forward_hook(keep) for layer in layers]
    run()
    for hook in hooks:
        hook.remove()
    return [found[layer] for layer in layers]

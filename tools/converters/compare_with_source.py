"""Run a converted checkpoint on an image, beside a model in its source's layout."""

from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

import torch
from rich.table import Table
from torch import Tensor

from mmattn.errors import UserError
from mmattn.images import read_image

from .known_models import Detector, Model

MEAN, STD = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)  # of ImageNet, RGB
# As a share of the maps' standard deviation. The epsilon of mmdet's PVT differs from
# the code of PVT's authors.
LARGEST_DIFFERENCE = 1e-3


def normalized(path: str) -> Tensor:
    """Read an image in its own size, normalized as for ImageNet, shape (1, 3, H, W)."""
    if not Path(path).is_file():
        raise UserError(f'there is no readable image at {path}')
    pixels = torch.tensor(read_image(path)).float()
    pixels = (pixels - torch.tensor(MEAN)) / torch.tensor(STD)
    return pixels.permute(2, 0, 1)[None]


def timm_pvt_v2(model: Model, weights: Mapping[str, Tensor]) -> Callable:
    import timm

    peer = timm.create_model(model.name, num_classes=0).eval()
    peer.load_state_dict(weights)
    return lambda image: peer.forward_intermediates(image, intermediates_only=True)


def mmdet_pvt(model: Model, weights: Mapping[str, Tensor]) -> Callable:
    from mmdet.models import backbones

    kinds = dict(pvt='PyramidVisionTransformer', pvt_v2='PyramidVisionTransformerV2')
    arch = model.backbone.arch_zoo[model.arch]
    peer = getattr(backbones, kinds[model.file])(
        embed_dims=arch['embed_dims'][0],
        num_layers=arch['depths'],
        num_heads=arch['num_heads'],
        sr_ratios=arch['sr_ratios'],
        mlp_ratios=arch['mlp_ratios'],
    ).eval()
    peer.load_state_dict(weights)
    return peer


# By our file and the source's layout: the package that has such a model, and its maker.
PEERS = {
    ('pvt_v2', 'timm'): ('timm', timm_pvt_v2),
    ('pvt', 'mmdet'): ('mmdet', mmdet_pvt),
    ('pvt_v2', 'mmdet'): ('mmdet', mmdet_pvt),
}


def compare(
    checkpoint: Path,
    model: Model | Detector,
    options: Mapping,
    layout: str,
    weights: Mapping[str, Tensor],
    image: Tensor,
) -> tuple[str, Table, bool]:
    """Compare the outputs of a converted checkpoint with its source model's.

    Args:
        checkpoint: the new file, which is loaded through `init_cfg`.
        model, options: the backbone or detector to load it into.
        layout, weights: layout and weights of the source, with its own names.
        image: as `normalized` returns it.

    Returns:
        A description of the comparison, a table, and whether the outputs agree.

    Raises:
        ValueError: `checkpoint` does not load.
    """
    init_cfg = dict(type='Pretrained', checkpoint=str(checkpoint))
    backbone = model.build(options, init_cfg).eval()
    backbone.init_weights()
    package, make = PEERS.get((model.file, layout), (None, None))
    with torch.no_grad():
        outs = backbone(image)
        if package is None:
            about = f'not compared: no package has {model.name} in the layout {layout}'
        elif find_spec(package) is None:
            about = f'not compared: {package} is not installed: pip install {package}'
        else:
            peers = make(model, weights)(image)
            peers = [peers[index] for index in backbone.out_indices]
            about = f"compared with {package}'s own {model.name}"
            return about, *_table(outs, peers)
    return about, *_table(outs, [None] * len(outs))


def _table(
    outs: Sequence[Tensor], peers: Sequence[Tensor | None]
) -> tuple[Table, bool]:
    table = Table(box=None, pad_edge=False)
    for title in ('output', 'shape', 'mean', 'std', 'largest difference'):
        table.add_column(title, justify='right', no_wrap=True)
    near = True
    for index, (out, peer) in enumerate(zip(outs, peers, strict=True)):
        shape = 'x'.join(map(str, out.shape))
        row = [f'{index}', shape, f'{out.mean():.6f}', f'{out.std():.6f}']
        if peer is not None:
            difference = (out - peer).abs().max()
            near = near and bool(difference <= LARGEST_DIFFERENCE * out.std())
            row.append(f'{difference:.2e}')
        table.add_row(*row)
    return table, near

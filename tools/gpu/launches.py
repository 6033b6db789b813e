"""Count the kernels that the forward of a backbone starts on a GPU, without one.

    python -m tools.gpu.launches IViT tiny --precision autocast

Tensors are fake. An operator counts as one, although some start several kernels.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from unittest import mock

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from mmattn.cli.terminal import command_parser, run_main
from mmattn.ops.triton import launch
from mmattn.registry import MODELS
from tools.gpu.report import EagerLaunches


@contextmanager
def fake_autocast() -> Iterator[None]:
    """Enable autocast to bfloat16 on a GPU, which `torch.autocast` looks for."""
    torch.set_autocast_dtype('cuda', torch.bfloat16)
    torch.set_autocast_enabled('cuda', True)
    torch.autocast_increment_nesting()
    try:
        yield
    finally:
        if not torch.autocast_decrement_nesting():
            torch.clear_autocast_cache()
        torch.set_autocast_enabled('cuda', False)


def count_launches(
    model: nn.Module, *shape: int, autocast: bool, trains: bool
) -> Counter[str]:
    """Return the launches of a forward of images of a shape, by operator."""
    dtype = torch.float32 if autocast else torch.bfloat16
    model = model.to('meta', dtype).train(trains)
    with (
        FakeTensorMode(allow_non_fake_inputs=True),
        mock.patch.object(launch, 'device_reason', lambda *_: None),
        mock.patch.object(launch, 'UNAVAILABLE', None),
        mock.patch.object(launch, 'capability', lambda x: 90),
        fake_autocast() if autocast else nullcontext(),
        torch.set_grad_enabled(trains),
        EagerLaunches() as counter,
    ):
        model._apply(lambda x: torch.empty_like(x, device='cuda'))
        images = torch.empty(shape, dtype=dtype, device='cuda')
        counter.counts.clear()
        model(images)
    return counter.counts


def main():
    parser = command_parser(__doc__)
    parser.add_argument('model', help='a backbone, such as IViT')
    parser.add_argument('arch', help='one of its presets, such as tiny')
    parser.add_argument('--side', type=int, default=224, help='of the two images')
    parser.add_argument(
        '--precision', choices=['autocast', 'bfloat16'], default='autocast'
    )
    parser.add_argument('--inference', action='store_true')
    args = parser.parse_args()
    with torch.device('meta'):
        model = MODELS.build(dict(type=f'mmattn.{args.model}', arch=args.arch))
    counts = count_launches(
        model, 2, 3, args.side, args.side,
        autocast=args.precision == 'autocast', trains=not args.inference,
    )  # fmt: skip
    print(counts.total(), *(f'{name} {count}' for name, count in counts.most_common()))


if __name__ == '__main__':
    run_main(main)

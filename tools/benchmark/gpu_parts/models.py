"""Time whole models under bfloat16, channels last and compiled, beside timm's."""

from collections.abc import Callable, Iterator
from functools import partial

import timm
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmattn.models import backbones
from tools.benchmark import measure

from .log import Log, Settings

TITLE = 'Whole models'
SHARE = 20
OURS = {
    'IViT': 'tiny',
    'HMaiT': 'tiny',
    'LiSANet': 'small',
    'DATPlusPlus': 'tiny',
    'PVTv2': 'b2',
}
TIMM = (
    'swin_tiny_patch4_window7_224',
    'convnext_tiny',
    'pvt_v2_b2',
    'caformer_s18',
    'resnet50',
)
# Height and width, and batch.
SIZES = {'224': ((224, 224), 64), '800x1333': ((800, 1333), 2)}
SMALL = {'64': ((64, 64), 1)}
DRY_MODELS = ('PVTv2', 'resnet50')  # without kernels, which are interpreted slowly
FORMS = {'channels last': False, 'channels last, compiled': True}
ROUNDS = dict(rounds=3, seconds=0.2)


def tasks(settings: Settings) -> list[str]:
    return list(SMALL if settings.dry_run else SIZES)


def run(task: str, settings: Settings, log: Log):
    size, batch = (SMALL if settings.dry_run else SIZES)[task]
    torch.backends.cudnn.benchmark = True
    names = [*OURS, *TIMM]
    forms = {'channels last': False} if settings.dry_run else FORMS
    for form, is_compiled in forms.items():
        for name in DRY_MODELS if settings.dry_run else names:
            work = partial(measured, name, size, batch, form, is_compiled, settings)
            log.attempt(f'{name}, {task}, {form}', work)


def create(name: str, size: tuple[int, int]) -> nn.Module:
    """Build a backbone that returns its maps, with random weights."""
    if name in OURS:
        return getattr(backbones, name)(arch=OURS[name])
    fixed = timm.get_pretrained_cfg(name).fixed_input_size
    options = {'img_size': size} if fixed else {}
    return timm.create_model(name, features_only=True, **options)


def measured(
    name: str, size: tuple, batch: int, form: str, compiled: bool, settings: Settings
) -> Iterator:
    model = create(name, size).to(settings.device, memory_format=torch.channels_last)
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(batch, 3, *size, generator=generator).to(settings.device)
    images = images.contiguous(memory_format=torch.channels_last)
    call = torch.compile(model) if compiled else model
    parameters = sum(p.numel() for p in model.parameters())
    runs = {
        'inference': partial(inference, model, call, images),
        'training step': partial(training_step, model, call, images),
    }
    for which, work in runs.items():
        model.train(which == 'training step')
        time = measure.interleave({'': work}, **ROUNDS)['']
        peak = measure.peak_memory(work, settings.device)
        yield (
            'models_gpu',
            {
                'model': name,
                'form': form,
                'pass': which,
                'height': size[0],
                'width': size[1],
                'batch': batch,
                'ms': measure.rounded(1e3 * time.median),
                'images_per_second': measure.rounded(batch / time.median),
                'spread_percent': measure.rounded(100 * time.spread, 2),
                'peak_mib': measure.rounded(peak / measure.MIB),
                'params_m': measure.rounded(parameters / 1e6),
            },
        )


@torch.no_grad()
def inference(model: nn.Module, call: Callable, images: Tensor):
    with torch.autocast(images.device.type, torch.bfloat16):
        call(images)


def training_step(model: nn.Module, call: Callable, images: Tensor):
    """Compute the gradients of a sum over all maps, without an optimizer."""
    model.zero_grad(set_to_none=True)
    with torch.autocast(images.device.type, torch.bfloat16):
        maps = call(images)
    sum(F.mse_loss(x.float(), torch.zeros_like(x).float()) for x in maps).backward()

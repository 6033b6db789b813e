"""Find out what a run starts from before it reads data, and say it."""

import logging
import re
from dataclasses import dataclass
from pathlib import Path

from mmengine.config import Config
from mmengine.runner import get_external_models, get_torchvision_models

from mmattn.errors import UserError

from ..files.config_files import config_folder, find_config, read_config_file
from ..registry import MODELS
from ..weights.load import find_weights
from ..weights.names import SCHEME, find_published, is_name
from ..weights.read import read_checkpoint
from ..weights.resolve import SCHEMES, check_name, local_checkpoint, place_in_cache
from .model import build

RANDOM = 'none'
# Where a classification config of ours leaves its weights.
OWN = re.compile(r'work_dirs/(\w+)/epoch_\d+\.pth')
PRETRAINED = 'Pretrained', 'PretrainedInit'
# mmengine's tables of names and addresses, by scheme.
ZOOS = {
    'torchvision': get_torchvision_models,
    'open-mmlab': get_external_models,
    'openmmlab': get_external_models,
}


@dataclass(frozen=True)
class Start:
    """Hold what a run starts from, and the line that says so.

    Attributes:
        message: a line for the log.
        checkpoint: file, address or name of the backbone's weights; None if it has none
            of its own.
        level: of the message, a warning if the recipe expects other weights.
    """

    message: str
    checkpoint: str | None = None
    level: int = logging.INFO


def use_pretrained(cfg: Config, given: str):
    """Let a config start from other weights.

    A detector, segmentor or classifier of the same kind gives the whole model, apart
    from the last layers where it has another number of classes. Of another model, the
    backbone is taken.

    Args:
        cfg: config of a run.
        given: weights, by any name that `mmattn.weights.resolve` lists, or 'none' for
            random ones.

    Raises:
        ValueError: there is no such name or file, or the model has no backbone.
    """
    if 'backbone' not in cfg.model:
        raise UserError(f'--pretrained requires model.backbone, got {[*cfg.model]}')
    init_cfg = None
    if given != RANDOM:
        try:
            check_name(given)
        except FileNotFoundError as error:
            raise UserError(
                f"--pretrained: {error}, and '{RANDOM}' takes random weights"
            ) from error
        if not _is_whole(cfg, given):
            init_cfg = dict(type='Pretrained', checkpoint=given)
    for part in (cfg.model, cfg.model.backbone):
        if 'pretrained' in part:  # of mmsegmentation and of timm's networks
            part.pretrained = None
    cfg.model.backbone.init_cfg = init_cfg
    cfg.load_from, cfg.fine_tune = None, False
    if init_cfg is None and given != RANDOM:
        cfg.load_from, cfg.fine_tune = given, True


def _is_whole(cfg: Config, given: str) -> bool:
    """Return whether weights have most tensors of the model beside its backbone."""
    names = _names_in(given)
    if names is None:
        return False
    own = {n for n in build(cfg).state_dict() if not n.startswith('backbone.')}
    return len(own & names) > len(own) / 2


def _names_in(given: str) -> set[str] | None:
    """Return the names of the tensors in a checkpoint, None if they are unknown."""
    path = Path(given).expanduser()
    if path.is_file():
        return {*find_weights(read_checkpoint(path, 'meta'), given, 'meta')}
    bare = given.removeprefix(SCHEME)
    if is_name(bare) and (config := find_published(bare).get('config')) is not None:
        named = read_config_file(str(find_config(config)))
        return {*build(named).state_dict()}
    return None


def settle_start(cfg: Config) -> Start:
    """Return what a config starts from.

    Weights that a classification config of ours would leave, but has not yet, are
    removed from the config, and so are the backbone's if a checkpoint of the whole
    model follows.

    Raises:
        ValueError: there is no file of another name.
    """
    whole = cfg.get('load_from')
    if whole is None and cfg.get('resume'):
        if Path(cfg.work_dir, 'last_checkpoint').is_file():
            whole = f'the last checkpoint in {cfg.work_dir}'
    backbone = cfg.model.get('backbone') or {}
    own = _pretrained(backbone)
    if whole is not None:
        if own is not None:
            backbone.init_cfg = None
        kept = ''
        if cfg.get('fine_tune'):
            kept = ', without the last layers if its number of classes is another'
        return Start(f'the model starts from {whole}{kept}', cfg.get('load_from'))
    given = own or _pretrained(cfg.model)
    if given is None:
        named = backbone.get('pretrained') or cfg.model.get('pretrained')
        named = f'pretrained={named!r}' if named else 'random weights'
        return Start(f'the backbone starts from {named}')
    checkpoint = given['checkpoint']
    try:
        check_name(checkpoint)
    except FileNotFoundError as error:
        missing = error
    else:
        return Start(f'the backbone starts from {_described(checkpoint)}', checkpoint)
    recipe = OWN.fullmatch(checkpoint)
    classifier = f'classification/{recipe[1]}.py' if recipe else ''
    if own is None or not recipe or not (config_folder() / classifier).is_file():
        raise UserError(f'init_cfg.checkpoint is {checkpoint}: {missing}') from missing
    backbone.init_cfg = None
    return Start(
        'the backbone starts from random weights, but its recipe starts from '
        f'ImageNet: there is no {checkpoint}. Train the classifier (mmattn train '
        f'{classifier}), name other weights (--pretrained '
        f'{_related_weights(backbone) or "NAME|FILE"}), or choose random ones '
        f'(--pretrained {RANDOM})',
        level=logging.WARNING,
    )


def fetch_start(start: Start):
    """Download the backbone's weights before data is read; the model reads them later.

    Raises:
        ValueError: they are out of reach, or another file than the one published.
    """
    scheme, _, name = (start.checkpoint or '').partition('://')
    address = start.checkpoint
    if scheme in ZOOS:
        address = ZOOS[scheme]().get(name, '')
        scheme = address.partition('://')[0]
    if scheme not in SCHEMES and not is_name(address or ''):
        return
    try:
        local_checkpoint(address)
    except OSError as error:
        raise UserError(
            f'{start.checkpoint} is out of reach: {error}, or start from random '
            f'weights: --pretrained {RANDOM}'
        ) from error


def _pretrained(part: dict) -> dict | None:
    """Return the `init_cfg` of a part of a model that reads a checkpoint."""
    given = part.get('init_cfg') or ()
    for each in given if isinstance(given, list | tuple) else [given]:
        kind = each.get('type')
        if getattr(kind, '__name__', kind) in PRETRAINED:
            return each
    return None


def _related_weights(backbone: dict) -> str | None:
    """Return public weights of a network related to a backbone of ours."""
    kind = backbone['type']
    kind = kind if isinstance(kind, type) else MODELS.get(kind)
    arch = backbone.get('arch')
    starts = getattr(kind, 'starts', {})
    return starts.get(arch) if isinstance(arch, str) else None


def _described(checkpoint: str) -> str:
    """Return a checkpoint with its address and the place of its copy."""
    scheme, separator, _ = checkpoint.partition('://')
    if separator and scheme not in SCHEMES:  # mmengine's
        return checkpoint
    place, kept = place_in_cache(checkpoint)
    if place == Path(checkpoint).expanduser():
        return checkpoint
    if is_name(bare := checkpoint.removeprefix(SCHEME)):
        checkpoint = f'{checkpoint}, {find_published(bare)["url"]}'
    return f'{checkpoint}, {"kept at" if kept else "to be kept at"} {place}'

"""Compare every number of every config of a paper with the tables beside this file.

`recipe_models.py` has networks, losses and tests by method, `recipe_backbones.py` the
backbones, `recipe_images.py` the images, and `recipe_schedules.py` what the papers'
files do not say about the schedules. All settings are compared, so a config that has
one more, one less or another one fails; settings of the machine are left out.
"""

import math
from collections.abc import Iterator, Mapping
from fnmatch import fnmatch

import pytest

for name in ('mmengine', 'mmdet', 'mmseg', 'mmpretrain'):
    pytest.importorskip(name)

from config_files import LEAVES, RECIPES, load, model_zoo  # noqa: E402
from recipe_backbones import backbone  # noqa: E402
from recipe_images import data  # noqa: E402
from recipe_models import MODELS, OTHERWISE  # noqa: E402
from recipe_schedules import schedule, start  # noqa: E402

# Configs with the recipe of another one on other machinery.
STRATEGIES = {
    'strategies/mask_rcnn_ivit_b_3x_coco_fsdp': 'mask_rcnn/ivit_b_3x_coco',
    'strategies/vit_s16_imhsa_300e_in1k_deepspeed': (
        'classification/vit_s16_imhsa_300e_in1k'
    ),
}
NAMES = {name: name for name in RECIPES} | STRATEGIES
# These decide how images are loaded and how often a run is evaluated, not the recipe.
MACHINE = {
    'num_workers',
    'persistent_workers',
    'pin_memory',
    'collate_fn',
    'meta_keys',
    'debug',
    'inplace',
    'val_interval',
}
# Some files set these, others leave them at the default.
DEFAULTS = {'optimizer.betas': (0.9, 0.999)}
IMAGES = {
    *(f'{split}_dataloader' for split in ('train', 'val', 'test')),
    *(f'{split}_evaluator' for split in ('val', 'test')),
    *('tta_pipeline', 'tta_model'),
}
SCHEDULE = {
    *('train_cfg', 'val_cfg', 'test_cfg', 'optim_wrapper', 'param_scheduler'),
    *('auto_scale_lr', 'load_from', 'resume'),
}
# A config may also have the runtime, and variables that the settings above contain.
OTHER_KEYS = {
    *('default_scope', 'runner_type', 'default_hooks', 'env_cfg', 'vis_backends'),
    *('visualizer', 'log_processor', 'log_level', 'strategy'),
    *('dataset_type', 'data_root', 'train_pipeline'),
    *('test_pipeline', 'scales', 'norm_cfg', 'num_proposals', 'head', 'matching'),
}


def flat(value, path: str = '') -> Iterator[tuple[str, object]]:
    """Yield the settings inside a config with their paths; lists count from 0."""
    if isinstance(value, list | tuple) and any(
        isinstance(v, Mapping | list | tuple) for v in value
    ):
        value = dict(enumerate(value))
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            if key not in MACHINE:
                yield from flat(inner, f'{path}.{key}' if path else str(key))
    elif not any(
        path.endswith(f'.{key}') and tuple(value) == default
        for key, default in DEFAULTS.items()
    ):
        yield path, value


def same(ours, source) -> bool:
    if isinstance(source, list | tuple):
        if not isinstance(ours, list | tuple) or len(ours) != len(source):
            return False
        return all(map(same, ours, source))
    if isinstance(source, Mapping):
        return isinstance(ours, Mapping) and ours == source
    if isinstance(source, bool) or not isinstance(source, int | float):
        return type(ours) is type(source) and ours == source
    number = isinstance(ours, int | float) and not isinstance(ours, bool)
    return number and math.isclose(ours, source, rel_tol=1e-6)


def differences(name: str, ours: Mapping, source: Mapping) -> list[str]:
    """Return the settings in which a config and its source differ."""
    ours, source = dict(flat(ours)), dict(flat(source))
    found = []
    for key in sorted(ours | source):
        if key not in source or key not in ours or not same(ours[key], source[key]):
            values = ours.get(key, 'nothing'), source.get(key, 'nothing')
            found.append('{}: {} is {!r}, not {!r}'.format(name, key, *values))
    return found


def part(name: str, keys: set[str]) -> dict:
    cfg = load(name)
    return {key: cfg[key] for key in keys if key in cfg}


def network(name: str) -> dict:
    """Return the settings of a method, with those that differ in a config."""
    settings = dict(flat(MODELS[name.split('/')[0]]))
    for pattern, rows in OTHERWISE.items():
        for key, value in rows.items() if fnmatch(name, pattern) else ():
            for inner in [k for k in settings if k.startswith(f'{key}.')]:
                del settings[inner]
            settings[key] = value
    return settings


def without_backbone(model: Mapping) -> dict:
    """Return a model's settings that do not depend on the backbone's channels."""
    left = {}
    for key, value in flat(model):
        head = key in ('head.in_channels', 'decode_head.in_channels')
        head |= key == 'auxiliary_head.in_channels'
        if not head and not key.startswith(('backbone.', 'neck')):
            left[key] = value
    return left


def test_networks_losses_and_tests_are_the_methods():
    found = []
    for name, recipe in NAMES.items():
        ours, source = without_backbone(load(name).model), network(recipe)
        source.pop('decode_head.in_channels', None)
        if recipe.startswith('sem_fpn/'):  # from the neck, whatever the backbone
            heads = load(name).model.decode_head.in_channels
            ours['decode_head.in_channels'] = heads
            source['decode_head.in_channels'] = (256,) * 4
        found += differences(name, ours, source)
    assert not found, '\n'.join(found)


def test_backbones_are_those_of_the_names():
    found = []
    for name, recipe in NAMES.items():
        ours = load(name).model.backbone.to_dict()
        found += differences(name, ours, backbone(recipe))
    assert not found, '\n'.join(found)


def test_images_are_the_recipes():
    found = []
    for name, recipe in NAMES.items():
        ours = dict(flat(part(name, IMAGES)))
        if recipe.startswith('classification/'):  # of any size: nothing is padded
            for split in ('val', 'test'):
                ours.pop(f'{split}_dataloader.batch_size', None)
        found += differences(name, ours, data(recipe))
    assert not found, '\n'.join(found)


def test_schedules_are_the_recipes():
    found = []
    for name, recipe in NAMES.items():
        source = schedule(recipe)
        if name.endswith('_deepspeed'):
            source['optim_wrapper']['type'] = 'DeepSpeedOptimWrapper'
        source |= dict(load_from=start(recipe), resume=False)
        found += differences(name, part(name, SCHEDULE), source)
    assert not found, '\n'.join(found)


def test_configs_have_no_settings_beside_the_tables():
    """A hook that averages weights, for example, would be another recipe."""
    found = [
        f'{name}: {key}'
        for name in NAMES
        for key in sorted(set(load(name)) - {'model'} - IMAGES - SCHEDULE - OTHER_KEYS)
    ]
    assert not found, '\n'.join(found)


def test_runs_end_with_a_validation():
    """A checkpoint of the last iteration without metrics would be no result."""
    for path in LEAVES:
        loop = model_zoo.load(path).train_cfg
        length = loop.get('max_epochs') or loop.max_iters
        assert length % loop.get('val_interval', 1) == 0, path

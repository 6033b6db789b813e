"""Registries of mmattn, children of mmengine's under the scope `mmattn`.

Any mm config finds `type='mmattn.IViT'` without `custom_imports`: mmengine imports
`mmattn.registry` for an unknown scope, then the `locations` given here.
Without mmengine the decorators do nothing and backbones are plain `nn.Module`s.
"""

import logging
from difflib import get_close_matches
from importlib import import_module
from importlib.util import find_spec

__all__ = [
    'DATASETS',
    'HOOKS',
    'METRICS',
    'MODELS',
    'OPTIM_WRAPPERS',
    'OPTIM_WRAPPER_CONSTRUCTORS',
    'RUNNERS',
    'TASK_UTILS',
    'TRANSFORMS',
]

# Types that build on an mm package. They are imported when a config names them, so
# that nobody else needs the package.
ON_DEMAND = {
    'CocoDataset': 'mmattn.engine.data.coco_dataset',
    'CocoMetric': 'mmattn.evaluation.coco',
    'DetDataPreprocessor': 'mmattn.models.detectors.data_preprocessor',
    'DeformableDETR': 'mmattn.models.detectors.deformable_detr',
    'SegDataPreProcessor': 'mmattn.models.seg_data_preprocessor',
    'MaxIoUAssigner': 'mmattn.models.detectors.assigner',
    'LoadChannels': 'mmattn.engine.data.loading',
    'LoadImage': 'mmattn.engine.data.loading',
    'ImageNetV2': 'mmattn.evaluation.imagenet_v2',
    'DistilledClassifier': 'mmattn.models.classifiers.distilled',
}

if find_spec('mmengine') is not None:
    from mmengine import registry as root
    from mmengine.logging import print_log

    class _Registry(root.Registry):
        def get(self, key: str) -> type | None:
            if module := ON_DEMAND.get(key.removeprefix('mmattn.')):
                import_module(module)
            found = super().get(key)
            name = key.removeprefix('mmattn.')
            if found is None and '.' not in name:
                self._log_guess(name)
            return found

        def _log_guess(self, name: str):
            """Log the class that a misspelled name may mean, if one is close.

            It does not raise, since `name in registry` asks for unknown names, too.
            mmengine raises a `KeyError` when such a type is built.
            """
            names = {known.lower(): known for known in self.module_dict}
            if self.name == root.MODELS.name:
                names |= {
                    known.lower(): known
                    for known, home in ON_DEMAND.items()
                    if home.startswith('mmattn.models.')
                }
            if close := get_close_matches(name.lower(), names, n=1, cutoff=0.75):
                print_log(
                    f"mmattn has no {self.name} '{name}': did you mean "
                    f"'mmattn.{names[close[0]]}'?",
                    logger='current',
                    level=logging.WARNING,
                )

    def _child(parent: root.Registry, location: str) -> root.Registry:
        return _Registry(
            parent.name, parent=parent, scope='mmattn', locations=[location]
        )

    MODELS = _child(root.MODELS, 'mmattn.models')
    DATASETS = _child(root.DATASETS, 'mmattn.evaluation')
    METRICS = _child(root.METRICS, 'mmattn.evaluation')
    TRANSFORMS = _child(root.TRANSFORMS, 'mmattn.engine.data')
    HOOKS = _child(root.HOOKS, 'mmattn.engine.checkpoint_hook')
    OPTIM_WRAPPERS = _child(root.OPTIM_WRAPPERS, 'mmattn.engine.amp')
    OPTIM_WRAPPER_CONSTRUCTORS = _child(
        root.OPTIM_WRAPPER_CONSTRUCTORS, 'mmattn.engine.optim_wrapper_constructor'
    )
    RUNNERS = _child(root.RUNNERS, 'mmattn.engine.runner')
    TASK_UTILS = _child(root.TASK_UTILS, 'mmattn.models')
else:

    class _NoRegistry:
        """Accept registrations and refuse to build."""

        def register_module(self, *args, **kwargs):
            return lambda cls: cls

        def build(self, cfg):
            raise ImportError(
                f'building {cfg!r} needs mmengine: pip install "mmattn[mm]"'
            )

    MODELS = DATASETS = METRICS = HOOKS = RUNNERS = TRANSFORMS = _NoRegistry()
    OPTIM_WRAPPERS = OPTIM_WRAPPER_CONSTRUCTORS = TASK_UTILS = _NoRegistry()

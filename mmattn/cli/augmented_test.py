"""Test-time augmentation: predict an image and its mirror image, and merge both."""

import warnings

from mmengine.config import Config, ConfigDict
from mmengine.hooks import Hook

from mmattn.errors import UserError

from ..files.config_files import innermost_dataset
from .evaluation_results import each_metric

FLIPS = [dict(type='RandomFlip', prob=1.0), dict(type='RandomFlip', prob=0.0)]
# What mmdet's and mmpretrain's own tools do where the config does not say.
TTA_MODELS = {
    'mmdet': dict(
        type='DetTTAModel',
        tta_cfg=dict(nms=dict(type='nms', iou_threshold=0.5), max_per_img=100),
    ),
    'mmpretrain': dict(type='AverageClsScoreTTA'),
}
DETECTION_META_KEYS = (
    'img_id',
    'img_path',
    'ori_shape',
    'img_shape',
    'scale_factor',
    'flip',
    'flip_direction',
)


def augment_at_test_time(cfg: Config):
    """Wrap the model, and the pipeline behind every data set wrapper."""
    scope = cfg.default_scope
    missing = [key for key in ('tta_model', 'tta_pipeline') if key not in cfg]
    if missing and scope not in TTA_MODELS:
        raise UserError(f'--tta requires {" and ".join(missing)} in the config')
    dataset = innermost_dataset(cfg.test_dataloader)
    if 'tta_model' in missing:
        cfg.tta_model = TTA_MODELS[scope]
    if 'tta_pipeline' in missing:
        *steps, pack = dataset.pipeline
        if scope == 'mmdet':
            pack = pack | dict(meta_keys=DETECTION_META_KEYS)
        flip = dict(type='TestTimeAug', transforms=[FLIPS, [pack]])
        cfg.tta_pipeline = [*steps, flip]
    if scope == 'mmdet':
        evaluate_boxes_only(cfg)
    hook = cfg.get('default_hooks', {}).get('visualization', {})
    if scope == 'mmpretrain' and hook.get('enable'):
        raise UserError("--tta: mmpretrain's hook cannot draw augmented images")
    cfg.model = ConfigDict(**cfg.tta_model, module=cfg.model)
    dataset.pipeline = cfg.tta_pipeline


def evaluate_boxes_only(cfg: Config):
    """Evaluate boxes only, since mmdet merges nothing else; see `BoxesOnlyHook`."""
    metrics = [
        metric
        for metric in each_metric(cfg.test_evaluator)
        if 'segm' in metric.get('metric', ())
    ]
    if cfg.model.get('roi_head', {}).get('mask_head') is not None:
        warnings.warn('--tta: boxes only, masks are not predicted', stacklevel=2)
    elif metrics:
        raise UserError(
            f'--tta merges boxes only, but {cfg.model.type} is evaluated by its masks'
        )
    for metric in metrics:
        metric.metric = 'bbox'


class BoxesOnlyHook(Hook):
    """Remove the mask head after its weights have been loaded with the others."""

    def before_test(self, runner):
        for module in list(runner.model.modules()):
            if getattr(module, 'mask_head', None) is not None:
                module.mask_head = None

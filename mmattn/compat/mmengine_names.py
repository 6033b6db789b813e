"""Names of our configs for the inferencers of mmdet, mmseg and mmpretrain.

`DetInferencer('mmattn::mask_rcnn/ivit_t_3x_coco.py')` and
`DetInferencer('ivit_t_3x_coco')` find the config, although the packages look only into
their own model index. Our index lists no weights, so that the user passes them.

mmdet and mmseg look up names in mmengine's `BaseInferencer`, mmpretrain in its
`ModelHub`.
"""

from mmattn.compat.mmengine_scopes import SCOPE, find_config

__all__ = ['correct_inferencer', 'correct_model_hub']


def _find(name: str, original):
    """Return the path of our config, or what the package finds by that name."""
    scope, prefixed, below = name.rpartition('::')
    if prefixed and scope == SCOPE:
        return find_config(below), None
    try:
        return find_config(name), None
    except FileNotFoundError as error:
        ours = error
    try:
        return None, original()
    except ValueError as error:
        raise ValueError(f'{error}. In mmattn: {ours}') from error


def correct_inferencer(infer):
    """Correct `mmengine.infer.infer`."""
    inferencer = infer.BaseInferencer
    original = inferencer._load_model_from_metafile
    if original.__module__ == __name__:
        return

    def _load_model_from_metafile(self, model):
        path, found = _find(model, lambda: original(self, model))
        return (infer.Config.fromfile(path), None) if path is not None else found

    inferencer._load_model_from_metafile = _load_model_from_metafile


def correct_model_hub(models):
    """Correct `mmpretrain.apis.model`."""
    hub = models.ModelHub
    original = hub.get
    if original.__func__.__module__ == __name__:
        return

    def get(cls, model_name):
        path, found = _find(model_name, lambda: original(model_name))
        if path is None:
            return found
        return models.Model(name=model_name, config=models.Config.fromfile(path))

    hub.get = classmethod(get)

"""Make mmengine read checkpoints without running code in them.

mmengine falls back to unsafe reading with a warning, and reads downloads unsafely. Our
loaders replace its `CheckpointLoader`'s through its extension point; they read
with `mmattn.weights.read`. `load_from_http` is also replaced by name,
because the loaders of `torchvision://` and `mmcls://` call it. This covers runners,
strategies, `init_cfg=dict(type='Pretrained')`, inferencers and `init_detector`.
The names of `mmattn.weights.resolve` are new: `mmattn://NAME` or NAME of a file that
`mmattn/weights/names.yml` lists, `timm://` of timm's weights, and `hf://` of a file of
the Hugging Face hub. The log histories and configs in a checkpoint become mmengine's.

mmengine also runs text of a checkpoint as a Python config: `meta['config']` when a run
resumes, and the config saved by training if an inferencer gets no other. Our loaders
drop the former, and the latter raises an error, unless the file is trusted.

The initializer `Pretrained` is replaced by one that reports what was loaded and raises
if the model would start from noise (`mmattn.weights.load`).

The functions import what they need when they are called, because mmengine is only half
imported when this module corrects it.
"""

import io
from pathlib import Path

from mmattn.errors import UserError


def _read(file, map_location, source):
    from mmattn.weights.read import read_checkpoint

    return _without_config(read_checkpoint(file, map_location, source))


def _without_config(checkpoint):
    from mmattn.weights.read import may_run_code

    if not may_run_code() and isinstance(checkpoint, dict):
        meta = checkpoint.get('meta')
        if isinstance(meta, dict):
            meta.pop('config', None)  # mmengine runs it to compare `gpu_ids`
    return checkpoint


def load_from_name(filename, map_location=None):
    from mmattn.weights.resolve import read_named

    return _without_config(read_named(filename, map_location))


def load_from_http(filename, map_location=None, model_dir=None, progress=None):
    from mmattn.weights.read import download_checkpoint

    path = download_checkpoint(filename, model_dir, progress)
    return _read(path, map_location, f'{filename} (kept at {path})')


def load_from_openmmlab(filename, map_location=None):
    from mmengine.runner import checkpoint

    name = filename.partition('://')[2]
    name = checkpoint.get_deprecated_model_names().get(name, name)
    models = checkpoint.get_external_models()
    if name not in models:
        raise UserError(f'mmengine has no model {name!r}, got {filename}')
    if models[name].startswith(('http://', 'https://')):
        return load_from_http(models[name], map_location)
    home = checkpoint._get_mmengine_home()
    return load_from_name(str(Path(home, models[name])), map_location)


def load_from_ceph(filename, map_location=None, backend='petrel'):
    from mmengine.fileio import get_file_backend

    storage = get_file_backend(filename, backend_args={'backend': backend})
    return _read(io.BytesIO(storage.get(filename)), map_location, filename)


def load_from_pavi(filename, map_location=None):
    from tempfile import TemporaryDirectory

    from pavi import modelcloud

    model = modelcloud.get(filename.partition('://')[2])
    with TemporaryDirectory() as folder:
        path = Path(folder, model.name)
        model.download(str(path))
        return _read(path, map_location, filename)


LOADERS = {
    load_from_name: ('', 'hf://', 'mmattn://', 'timm://'),
    load_from_http: ('http://', 'https://'),
    load_from_openmmlab: ('open-mmlab://', 'openmmlab://'),
    load_from_ceph: (r'(\S+\:)?s3://', r'(\S+\:)?petrel://'),
    load_from_pavi: 'pavi://',
}


def correct_loaders(checkpoint):
    """Correct `mmengine.runner.checkpoint`."""
    from mmengine.config import ConfigDict
    from mmengine.logging import HistoryBuffer

    from mmattn.weights.allowed_globals import use_classes

    use_classes(HistoryBuffer, ConfigDict)
    for loader, prefixes in LOADERS.items():
        checkpoint.CheckpointLoader.register_scheme(prefixes, loader, force=True)
    checkpoint.load_from_http = load_from_http


def correct_initializer(weight_init):
    """Correct `mmengine.model.weight_init`."""

    class PretrainedInit(weight_init.PretrainedInit):
        def __call__(self, module):
            from mmengine.logging import MMLogger
            from mmengine.runner import CheckpointLoader

            from mmattn.weights.load import initialize

            read = CheckpointLoader.load_checkpoint(self.checkpoint, self.map_location)
            logger = MMLogger.get_current_instance()
            initialize(module, read, self.checkpoint, self.prefix, logger)
            if hasattr(module, '_params_init_info'):
                weight_init.update_init_info(module, init_info=self._get_init_info())

    weight_init.WEIGHT_INITIALIZERS.register_module(
        name='Pretrained', module=PretrainedInit, force=True
    )


def correct_inferencer(infer):
    """Correct `mmengine.infer.infer`."""
    original = infer.BaseInferencer._init_model

    def _init_model(self, cfg, weights, device='cpu'):
        from mmattn.weights.read import UntrustedCheckpointError, may_run_code

        if not cfg and not may_run_code():
            raise UntrustedCheckpointError(
                str(weights),
                'the config saved in it',
                f'Give the config: {type(self).__name__}(model=CONFIG, weights=...). ',
            )
        return original(self, cfg, weights, device)

    infer.BaseInferencer._init_model = _init_model

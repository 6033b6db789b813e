"""Corrections of a function or a table each; `mmattn.compat` says why they are here."""

import functools
import logging
import sys
from importlib import metadata

from mmattn.files.config_files import SCOPE, find_config


def correct_attention(module) -> bool:
    """Correct `mmcv.ops.multi_scale_deform_attn`, unless mmcv has compiled operators.

    In bfloat16 and on a CPU, mmcv's module calls a function in PyTorch, which keeps all
    samples in memory. Our function keeps it as `__wrapped__`; ONNX and
    `torch.fx.symbolic_trace` use it.
    """
    from mmattn.compat import IMPLEMENTATION

    spec = getattr(sys.modules.get('mmcv._ext'), '__spec__', None)
    theirs = module.multi_scale_deformable_attn_pytorch
    if getattr(spec, 'origin', None) != IMPLEMENTATION or hasattr(
        theirs, '__wrapped__'
    ):
        return False

    import torch
    import torch.fx

    from mmattn.ops import ms_deform_attn

    @functools.wraps(theirs)
    def attend(value, value_spatial_shapes, sampling_locations, attention_weights):
        tensors = value_spatial_shapes, sampling_locations, attention_weights
        is_traced = any(isinstance(x, torch.fx.Proxy) for x in (value, *tensors))
        if is_traced or torch.onnx.is_in_onnx_export():
            return theirs(value, *tensors)
        return ms_deform_attn(value, *tensors)

    module.multi_scale_deformable_attn_pytorch = attend
    return True


def correct_table(utils):
    """Correct the table of `mmengine.config.utils` from scopes to distributions.

    It is corrected in place, because other modules of mmengine hold the same dict.
    mmseg's entry is wrong where it came from `onedl-mmsegmentation`; mmengine accepts
    the name of an importable module in place of a distribution's.
    """
    table = utils.MODULE2PACKAGE
    table.setdefault(SCOPE, 'mmattn')
    if table.get('mmseg') == 'mmsegmentation':
        if not _is_installed('mmsegmentation') and _is_installed(
            'onedl-mmsegmentation'
        ):
            table['mmseg'] = 'mmseg'


def _is_installed(distribution: str) -> bool:
    return any(metadata.distributions(name=distribution))


def correct_bases(config):
    """Make `Config` of `mmengine.config.config` find our configs.

    They lie in the imported mmattn: an installation, or a plain clone on `PYTHONPATH`,
    which has no `mmattn/.mim`. The types of our bases belong to mmdet, mmseg and
    mmpretrain, as `default_scope` says, so the prefix sets no scope for them.
    """
    found = config.Config._get_cfg_path

    def _get_cfg_path(cfg_path, filename):
        scope, _, name = cfg_path.partition('::')
        if name and scope == SCOPE:
            return str(find_config(name)), None
        return found(cfg_path, filename)

    config.Config._get_cfg_path = staticmethod(_get_cfg_path)


def correct_print_log(mmengine_logging):
    """Correct the package `mmengine.logging`.

    A message of the level DEBUG without a logger goes to the standard library's logger
    `mmengine`, which is silent by default. mmengine prints it.
    """
    original = mmengine_logging.print_log

    @functools.wraps(original)
    def print_log(msg, logger=None, level=logging.INFO):
        if logger is None and level == logging.DEBUG:
            logger = logging.getLogger('mmengine')
        original(msg, logger, level)

    mmengine_logging.print_log = print_log


def correct_dependency(dependency) -> bool:
    """Correct `mmpretrain.utils.dependency`, beside transformers 5 alone.

    mmpretrain then registers placeholders, which say what to install when they are
    built.
    """
    unsuitable = dependency.satisfy_requirement('transformers>=5')
    if unsuitable:
        dependency.WITH_MULTIMODAL = False
    return unsuitable


def correct_head(module):
    """Correct `mmseg.models.decode_heads.mask2former_head`.

    Its head resizes the masks of each window to `pad_shape`, the padded size of the
    whole image, which mmseg's other heads ignore in slide inference.
    """
    original = module.Mask2FormerHead.predict

    @functools.wraps(original)
    def predict(self, x, batch_img_metas, test_cfg):
        if test_cfg.get('mode') == 'slide':  # `img_shape` is the window's size
            batch_img_metas = [
                {key: value for key, value in metas.items() if key != 'pad_shape'}
                for metas in batch_img_metas
            ]
        return original(self, x, batch_img_metas, test_cfg)

    module.Mask2FormerHead.predict = predict

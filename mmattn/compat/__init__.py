"""Corrections of other packages, all of them in one table.

`import mmattn` calls `activate`, and that is the only switch. No other part of mmattn
replaces a function or an entry of another package.

These private names of other packages are used without being replaced, since there is
no public way:

- `_metadata` of a state dict: the versions of the modules that wrote it.
- `Tensor._backward_hooks`: whether a checkpoint gave a tensor hooks.
- `Tensor._version`: whether the sizes of levels have changed since they were read.
- `torch.ops.torchvision._deform_conv2d_backward` and `_roi_align_backward`: autograd
  would compute the forward again, for mmcv has separate functions for both.
- `OptimWrapper._inner_count` of mmengine: its setter also sets the number of steps.
- `mmengine._strategy`: the strategies are in no other package.
- `_get_mmengine_home` of mmengine: where paths of its model list begin.
- `torch._C._are_functorch_transforms_active` and `torch._C._functorch`: whether a
  derivative of torch.func is taken, which kernels do not have.
- `torch._C._ForceDispatchKeyGuard` and the two sets that it takes: autograd inside of
  an operator; `torch.func.vjp` fails there under a TorchDispatchMode.
- `torch._decomp.register_decomposition`: the ONNX exporter reads no other table.
- `torch._dynamo.exc.UserError`, and `_guards_fn` of an exported module: for which sizes
  a graph holds, and why.

Subclasses also override protected methods of mmengine's runner, loops, checkpoint hook
and optimizer constructor.
"""

from mmattn.compat.finder import CorrectingFinder, Correction

__all__ = ['CORRECTIONS', 'IMPLEMENTATION', 'activate', 'in_force']

IMPLEMENTATION = 'mmattn.compat.mmcv_ops'
CORRECTIONS = (
    Correction(
        'mmcv._ext',
        f'{IMPLEMENTATION}:fill',
        "give mmcv, where it has no compiled operators, torchvision's and ours",
        'pip install onedl-mmcv gives a wheel without them, and mmdet imports them',
        'mmcv publishes wheels with operators (onedl-mmdetection#11)',
        missing=True,
    ),
    Correction(
        'mmcv.ops.multi_scale_deform_attn',
        'mmattn.compat.mm_packages:correct_attention',
        'run deformable attention on ours, on a CPU and in bfloat16',
        'the formulation of mmcv keeps all samples in memory',
        'mmcv has a kernel for CPUs and bfloat16 (mmcv#2878)',
    ),
    Correction(
        'mmengine.config.utils',
        'mmattn.compat.mm_packages:correct_table',
        "add 'mmattn::' and repair 'mmseg::' in the table of config prefixes",
        'the table is closed, and its mmseg is the distribution mmsegmentation',
        'mmengine looks up packages by module name (mmengine#1581)',
    ),
    Correction(
        'mmengine.config.config',
        'mmattn.compat.mm_packages:correct_bases',
        "look up the types of an 'mmattn::' base in the registry of its default scope",
        'mmengine takes the prefix for the scope of the types',
        'mmengine looks up packages by module name (mmengine#1581)',
    ),
    Correction(
        'mmengine.runner.checkpoint',
        'mmattn.compat.mmengine_checkpoints:correct_loaders',
        'read checkpoints without running code in them; add timm:// and hf:// names',
        'mmengine falls back to unsafe reading with a warning',
        'mmengine refuses what `weights_only` refuses (mmengine#1655)',
    ),
    Correction(
        'mmengine.model.weight_init',
        'mmattn.compat.mmengine_checkpoints:correct_initializer',
        'report what `Pretrained` loaded; raise if the model would start from noise',
        'mmengine loads with strict=False and says nothing',
        'mmengine reports and checks what was loaded',
    ),
    Correction(
        'mmengine.logging',
        'mmattn.compat.mm_packages:correct_print_log',
        'print no messages of the level DEBUG',
        'mmdet says twice in each program that OneDL, an optional package, is missing',
        '`print_log` heeds the level where it has no logger',
    ),
    Correction(
        'mmengine.infer.infer',
        'mmattn.compat.mmengine_checkpoints:correct_inferencer',
        'refuse the config that is saved in an untrusted checkpoint',
        'mmengine runs its text as Python',
        'mmengine saves configs as data',
    ),
    Correction(
        'mmpretrain.utils.dependency',
        'mmattn.compat.mm_packages:correct_dependency',
        'leave out multimodal models beside transformers 5',
        'they use helpers that transformers 5 removed, so mmpretrain and mmdet with it '
        'fail to import',
        'mmpretrain supports transformers 5',
    ),
    Correction(
        'mmseg.models.decode_heads.mask2former_head',
        'mmattn.compat.mm_packages:correct_head',
        'size the masks of Mask2Former by the window in slide inference',
        'windows get the padded size of the whole image, and their sum fails',
        'Mask2FormerHead.predict reads `img_shape` in slide inference as other heads',
    ),
)

_FINDER = CorrectingFinder(CORRECTIONS)


def activate():
    """Install the finder. A second call changes nothing.

    It imports neither torch nor any mm package.
    """
    _FINDER.install()


def in_force() -> list[Correction]:
    """Return the corrections that changed something in this process."""
    return list(_FINDER.in_force)

"""Adaptation of the mm packages that a user already has to mmattn.

`activate` is the only entry point, and `import mmattn` calls it. It installs the
finders of `mmattn.compat.finder` in `sys.meta_path` and changes nothing else. They

- serve `mmcv._ext` from `mmattn.compat.mmcv_ops` when mmcv came without its compiled
  operators;
- make mmpretrain importable with transformers 5
  (`mmattn.compat.mmpretrain_multimodal`);
- add the `mmseg::` and `mmattn::` config prefixes (`mmattn.compat.mmengine_scopes`);
- make mmengine read checkpoints without running them
  (`mmattn.compat.mmengine_checkpoints`);
- run mmcv's deformable attention on ours (`mmattn.compat.mmcv_attention`);
- find modules of ours by their old names (`mmattn.compat.moved_modules`).

The first three repair imports and configs that fail otherwise. Where mmattn is
installed, `mmattn_startup` applies them in every interpreter, without importing mmattn.
The others wait for `import mmattn`, because they replace code that works without us.
"""

import sys

from mmattn.compat.finder import IMPLEMENTATION, SERVED_MODULE, WITH_MMATTN, install
from mmattn.compat.moved_modules import MOVED

__all__ = ['IMPLEMENTATION', 'SERVED_MODULE', 'activate']


def activate():
    """Install the finders. A second call changes nothing.

    It imports neither torch nor any mm* package. A finder imports what it needs when
    mmcv or mmengine asks for it.
    """
    install(WITH_MMATTN, moved=MOVED)


# `mmattn_startup` may have loaded modules before this package existed, so bind them.
for _name, _module in list(sys.modules.items()):
    if _name.rpartition('.')[0] == __name__:
        globals().setdefault(_name.rpartition('.')[2], _module)

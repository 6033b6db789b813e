"""Make mmpretrain, and mmdet with it, importable with transformers 5.

mmpretrain's multimodal models use helpers that transformers 5 no longer has. It accepts
any version from 4.28, so its import fails with version 5. So does the import of mmdet,
which imports mmpretrain where it is installed. This module tells mmpretrain that its
requirement is not met. It then registers placeholders, which say what to install when
they are built, and everything else works.
"""

__all__ = ['correct_dependency']

UNSUITABLE = 'transformers>=5'


def correct_dependency(dependency) -> bool:
    """Correct `mmpretrain.utils.dependency`."""
    unsuitable = dependency.satisfy_requirement(UNSUITABLE)
    if unsuitable:
        dependency.WITH_MULTIMODAL = False
    return unsuitable

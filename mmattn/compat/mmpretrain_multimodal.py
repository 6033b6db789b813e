"""mmpretrain, and with it mmdet, can be imported beside transformers 5.

mmpretrain's multimodal models are built on helpers of transformers that version 5 no
longer has. It looks for any version from 4.28, takes 5 for good, and then its import
fails; mmdet's fails with it, as mmdet imports mmpretrain where it is installed. Here it
is told that its requirement is not met: then it registers placeholders, which say what
to install once they are built, and the rest of it works.
"""

__all__ = ['correct_dependency']

UNSUITABLE = 'transformers>=5'


def correct_dependency(dependency):
    """Correct `mmpretrain.utils.dependency`."""
    if dependency.satisfy_requirement(UNSUITABLE):
        dependency.WITH_MULTIMODAL = False

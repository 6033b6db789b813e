"""Limits of the objects that a detector returns of an image."""

from collections.abc import Mapping, Sequence

import numpy as np

# Where configs have them. Of proposals about three lie on an object.
OBJECTS = ('test_cfg.rcnn.max_per_img', 'test_cfg.max_per_img', 'num_queries')
PROPOSALS = ('test_cfg.rpn.max_per_img',)
EACH = 3


def detection_limits(model) -> dict[str, int]:
    """Return the limits in the config of a detector by their keys, such as
    `model.test_cfg.rcnn.max_per_img`.
    """
    found = {}
    for key in OBJECTS + PROPOSALS:
        value = model
        for name in key.split('.'):
            value = value.get(name) if isinstance(value, Mapping) else None
        if type(value) is int and value > 0:
            found[f'model.{key}'] = value
    return found


def reached_limits(
    limits: Mapping[str, int],
    found: Sequence[int],
    sure: Sequence[int],
    objects: Sequence[int] | None = None,
) -> list[str]:
    """Return a sentence about each limit that images reach, with what lifts it.

    Args:
        limits: of `detection_limits`.
        found: number of detections of each image.
        sure: number of those with a score that counts.
        objects: number of annotated objects of each image, if they are known.
    """
    notes = []
    found, sure = np.array(found, int), np.array(sure, int)
    objects = np.zeros_like(found) if objects is None else np.array(objects, int)
    for key, limit in limits.items():
        if key.removeprefix('model.') in PROPOSALS:
            reached = (EACH * sure > limit) | (objects > limit)
            needed = EACH * max(sure.max(initial=0), objects.max(initial=0))
            what = 'proposals'
        else:
            # A young model fills any list with what no score speaks for.
            reached = (found >= limit) & (2 * sure >= limit) | (objects > limit)
            needed = max(limit, objects.max(initial=0))
            what = 'objects'
        if not reached.any():
            continue
        most = f'; one has {objects.max()} objects' if objects.any() else ''
        notes.append(
            f'{reached.sum()} of {len(found)} images reach the limit of {limit} {what} '
            f'an image{most}: --cfg-options {key}={2 * needed} lifts it'
        )
    return notes

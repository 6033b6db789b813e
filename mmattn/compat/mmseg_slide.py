"""Slide Mask2Former of mmsegmentation over an image.

Its head resizes the masks of each window to `pad_shape`, the padded size of the whole
image, which mmseg's other heads ignore in slide inference.
"""

import functools

__all__ = ['correct_head']


def correct_head(module) -> bool:
    """Correct `mmseg.models.decode_heads.mask2former_head`."""
    head = module.Mask2FormerHead
    original = head.predict
    if original.__module__ == __name__:
        return False

    def predict(self, x, batch_img_metas, test_cfg):
        if test_cfg.get('mode') == 'slide':  # `img_shape` is the window's size
            batch_img_metas = [
                {key: value for key, value in metas.items() if key != 'pad_shape'}
                for metas in batch_img_metas
            ]
        return original(self, x, batch_img_metas, test_cfg)

    functools.update_wrapper(predict, original)
    predict.__module__ = __name__
    head.predict = predict
    return True

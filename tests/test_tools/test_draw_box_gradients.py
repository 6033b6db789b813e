"""The tool that draws the gradients of a DETR's boxes."""

import cv2
import numpy as np
import pytest

from tools.analysis import draw_box_gradients as tool

pytest.importorskip('mmdet')

CONFIG = """
_base_ = 'mmattn::demo/deformable_detr_ivit_n_hela.py'
"""


@pytest.mark.slow
def test_a_row_for_each_detection(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / 'detr.py').write_text(CONFIG)
    pixels = np.random.default_rng(0).integers(0, 255, (48, 64, 3))
    cv2.imwrite('image.png', pixels)
    drawn = []

    def noted(image, found, out):
        drawn.append((image, found))
        draw(image, found, out)

    draw = tool.draw
    monkeypatch.setattr(tool, 'draw', noted)
    tool.main(['detr.py', 'image.png', '--count', '2', '--out', 'drawn/g.png'])
    assert 'box gradients: drawn/g.png' in capsys.readouterr().out
    ((image, found),) = drawn
    assert len(found) == 2 and found[0].score >= found[1].score
    assert found[0].norms.shape[1:] == image.inputs.shape[2:]
    assert cv2.imread('drawn/g.png').shape[1] == int(6 * tool.PANEL_INCHES * 120)

"""tools/converters/convert_checkpoint.py with whole Deformable DETRs."""

from argparse import Namespace

import mmcv
import numpy as np
import pytest
import torch

from mmattn.weights.layouts.coco_classes import CATEGORY_IDS, OUTPUTS
from mmattn.weights.layouts.deformable_detr import to_official_state_dict
from tools.converters import convert_checkpoint as tool

CLASSES = 7
SMALL = {
    'backbone.depth': 18,
    'neck.in_channels': '[128,256,512]',
    'encoder.num_layers': 1,
    'decoder.num_layers': 2,
    'decoder.num_queries': 12,
}
ARGUMENTS = ['--options', *(f'{key}={value}' for key, value in SMALL.items())]


@pytest.fixture(autouse=True)
def new_logger(forget_instances):
    forget_instances()


@pytest.fixture(scope='module')
def refine():
    """Weights of a detector of seven classes that refines boxes."""
    options = {**SMALL, 'neck.in_channels': [128, 256, 512]}
    options['bbox_head.num_classes'] = CLASSES
    model = tool.known_models()['deformable_detr_r50_refine'].build(options)
    model.bbox_head.reg_branches[1][-1].bias.data.fill_(0.5)
    return model.state_dict()


def save(path, content):
    torch.save(content, path)
    return str(path)


def test_the_authors_file_keeps_its_classes(refine, tmp_path, capsys):
    official = to_official_state_dict(refine)
    src = save(tmp_path / 'src.pth', dict(model=official, args=Namespace(lr=2e-4)))
    dst, image = tmp_path / 'dst.pth', tmp_path / 'image.png'
    mmcv.imwrite(np.full((64, 96, 3), 99, np.uint8), str(image))
    arguments = [src, str(dst), '--model', 'deformable_detr_r50_refine', *ARGUMENTS]
    assert tool.main([*arguments, '--verify', str(image)]) == 0
    out = capsys.readouterr().out
    assert 'layout: official' in out and f'2x1x12x{CLASSES}' in out
    written = torch.load(dst)['state_dict']
    names = {name for name in refine if 'num_batches_tracked' not in name}
    assert written.keys() == names
    assert all(torch.equal(written[name], refine[name]) for name in names)


def test_coco_classes_of_its_category_ids(refine, tmp_path, capsys):
    published = {
        name: torch.randn(OUTPUTS, *x.shape[1:]) if 'cls_branches' in name else x
        for name, x in refine.items()
    }
    src, dst = save(tmp_path / 'src.pth', published), tmp_path / 'dst.pth'
    model = ['--model', 'deformable_detr_r50_refine', *ARGUMENTS]
    assert tool.main([src, str(dst), *model, '--coco-classes']) == 0
    assert "classes: COCO's 80, of 91 category ids" in capsys.readouterr().out
    written = torch.load(dst)['state_dict']
    for name, x in written.items():
        expected = published[name]
        if 'cls_branches' in name:
            expected = torch.stack([expected[i] for i in CATEGORY_IDS])
        assert torch.equal(x, expected), name


def test_backbones_have_no_coco_classes(capsys):
    with pytest.raises(SystemExit):
        tool.main(['a.pth', 'b.pth', '--model', 'pvt_tiny', '--coco-classes'])
    assert 'pvt_tiny is a backbone, without classes' in capsys.readouterr().err


@pytest.mark.parametrize(
    'form, problem',
    [
        ('', 'has with_box_refine=False, but the branches of the layers differ'),
        ('_two_stage', 'missing in the file: decoder.enc_output'),
    ],
)
def test_another_form_is_refused(form, problem, refine, tmp_path):
    src, dst = save(tmp_path / 'src.pth', refine), tmp_path / 'dst.pth'
    name = f'deformable_detr_r50{form}'
    with pytest.raises(ValueError, match=f'it is not {name}\n') as error:
        tool.main([src, str(dst), '--model', name, *ARGUMENTS])
    assert problem in str(error.value)
    assert str(error.value).endswith('it matches --model deformable_detr_r50_refine')
    assert not dst.exists()

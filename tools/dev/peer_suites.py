"""Run other projects' own tests on our models, operators and layers.

    python -m tools.dev.peer_suites SUITE SOURCE [ARGUMENTS OF PYTEST]

SUITE is timm, transformers, mmcv or torchvision. SOURCE is a folder with that project's
sources: a clone, or an unpacked sdist of PyPI. docs/tests.md has the counts.
"""

import os
import sys
import unittest
from functools import partial
from types import SimpleNamespace

import pytest
import torch

from mmattn import create_model, torchvision_fpn

SMALLEST = (  # of each family and kind
    'dat_nano dat_plus_plus_nano hmait_nano ivit_nano lisanet_isotropic '
    'lisanet_hybrid_nano mait_xtiny masked_cait_xxs24 pvt_nano pvt_v2_b0 pvt_v2_mit_b0 '
    'vit_tiny'
).split()
# TorchScript and torch.fx are not supported; the others read weights from a network.
OTHERS = 'torchscript or fx or pretrained or space2depth or inference'
SUITES = {
    'timm': ['tests/test_models.py', '-k', f'mmattn and not ({OTHERS})'],
    'transformers': [os.path.abspath(__file__)],
    'mmcv': ['tests/test_ops'],
    'torchvision': [
        'test/test_models_detection_negative_samples.py',
        '-k',
        'resnet50 or mrcnn or krcnn or retinanet or fcos',
    ],
}


def patch_timm():
    import timm

    import mmattn.integrations.timm  # noqa: F401

    timm.list_models = lambda *_, **__: [f'mmattn_{name}' for name in SMALLEST]


def images_for(config):
    return config(), dict(pixel_values=torch.rand(2, 3, 64, 64))


def add_transformers_tests():
    from test_backbone_common import BackboneTesterMixin

    from mmattn.integrations.transformers import MMAttnBackbone, MMAttnConfig

    for name in SMALLEST:
        config = partial(MMAttnConfig, backbone=name)
        config.from_pretrained = MMAttnConfig.from_pretrained
        images = partial(images_for, config)
        tested = dict(
            all_model_classes=(MMAttnBackbone,),
            has_attentions=False,
            config_class=staticmethod(config),
            model_tester=SimpleNamespace(prepare_config_and_inputs_for_common=images),
        )
        bases = BackboneTesterMixin, unittest.TestCase
        globals()[f'Test_{name}'] = type(f'Test_{name}', bases, tested)


def patch_torchvision():
    """Build torchvision's detectors with our backbone and pyramid."""
    from torchvision.models import detection

    def pyramid(*_, returned_layers=(1, 2, 3, 4), extra_blocks=None, **__):
        levels = [layer - 1 for layer in returned_layers]
        backbone = create_model('ivit_nano', out_indices=levels)
        return torchvision_fpn(backbone, 256, extra_blocks)

    for name in ('faster_rcnn', 'mask_rcnn', 'keypoint_rcnn', 'retinanet', 'fcos'):
        getattr(detection, name)._resnet_fpn_extractor = pyramid


def pytest_configure(config):
    globals().get(f'patch_{os.environ["PEER_SUITE"]}', lambda: None)()


if __name__ == '__main__':
    os.environ['PEER_SUITE'], source, *options = sys.argv[1:]
    os.chdir(source)
    sys.path[:0] = [os.getcwd(), os.path.abspath('tests')]
    options += ['-q', '-W', 'ignore', '-p', 'no:cacheprovider']
    options = SUITES[os.environ['PEER_SUITE']] + options
    sys.exit(pytest.main(options, plugins=[sys.modules[__name__]]))
elif os.environ.get('PEER_SUITE') == 'transformers':
    add_transformers_tests()

"""The networks of mmattn/weights/names.yml have the weights that our backbones take."""

import pytest
import timm
import torch
from mmengine.hub import get_config

from mmattn.analysis.flops import build
from mmattn.apis.find import read_config
from mmattn.cli.verify_weights import is_whole
from mmattn.models import backbones
from mmattn.weights.load import load_weights
from mmattn.weights.names import config_of, published_files

OTHERS = {
    name: entry for name, entry in published_files().items() if 'figures' not in entry
}


def test_starts_are_public_weights_that_cover_most_of_a_network():
    found = {}
    for cls in (getattr(backbones, name) for name in backbones.__all__):
        for arch, weights in cls.starts.items():
            scheme, _, name = weights.partition('://')
            assert scheme == 'timm' and timm.is_model_pretrained(name)
            with torch.device('meta'):
                model, given = cls(arch), timm.create_model(name).state_dict()
            report = load_weights(model, given)
            assert not report.mismatched and report.share() > 0.85, weights
            found[cls.__name__, arch] = report
    assert len(found) == 7


def test_the_configs_have_the_backbones_of_the_files():
    for name, entry in published_files().items():
        if config := config_of(entry):
            given = read_config(config).model.backbone
            expected = dict(type=entry['type'], **entry['args'])
            assert expected == {key: given.get(key) for key in expected}, name


@pytest.mark.slow  # 31 networks, half a second each
def test_the_networks_of_the_files_load():
    """All that a network has comes from the file, but norms of a backbone's maps."""
    assert len(OTHERS) == 31
    for name, entry in OTHERS.items():
        scheme, _, of_timm = entry['url'].partition('://')
        if scheme == 'timm':
            assert timm.is_model_pretrained(of_timm)
            with torch.device('meta'):
                weights = timm.create_model(of_timm).state_dict()
        else:
            if name.startswith('mit_'):
                assert 'non-commercial' in entry['license']
                size = name.replace('_', '-')
                cfg = get_config(
                    f'mmseg::segformer/segformer_{size}_8xb2-160k_ade20k-512x512.py'
                )
                cfg.model_path = cfg.model.backbone.pop('init_cfg').checkpoint
            else:
                cfg = get_config(f'mmdet::pvt/{name}.py', pretrained=True)
            assert cfg.model_path == entry['url']
            assert entry['url'].endswith(f'-{entry["sha256"]}.pth')
            model = build(cfg, 'meta')
            model = model.backbone if config_of(entry) is None else model
            weights = model.state_dict()
        if config := config_of(entry):
            report = load_weights(build(read_config(config), 'meta'), weights)
            assert not report.missing and not report.unexpected, (name, report)
            continue
        backbone = build(dict(type=entry['type'], **entry['args']), 'meta')
        report = load_weights(backbone, weights)
        parts = {part for part, _ in backbone.named_children()}
        assert is_whole(report, parts) and len(report.matched) > 100, (name, report)

"""The networks of mmattn/weights.yml have the weights that our backbones take."""

from pathlib import Path

import pytest
import torch

for package in ('mmdet', 'mmseg', 'timm'):
    pytest.importorskip(package)

import timm  # noqa: E402
from mmengine.hub import get_config  # noqa: E402

from mmattn.analysis.flops import build  # noqa: E402
from mmattn.engine.checkpoints.weights import load_weights  # noqa: E402
from mmattn.published import published_files  # noqa: E402
from tools.dev import generate_model_pages  # noqa: E402
from tools.dev.readme_tables import filled  # noqa: E402

PAGE = Path(__file__).parents[1] / 'docs/weights.md'
OTHERS = {
    name: entry for name, entry in published_files().items() if 'figures' not in entry
}


def test_the_page_has_the_table_of_the_list():
    tables = {'weights': generate_model_pages.weights}
    assert filled(PAGE, tables) == PAGE.read_text()


@pytest.mark.slow  # 31 networks, half a second each
def test_the_networks_of_the_files_load():
    """All that the backbone has comes from the file, but norms of single maps."""
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
                size = entry['args']['arch']
                cfg = get_config(
                    f'mmseg::segformer/segformer_{size}_8xb2-160k_ade20k-512x512.py'
                )
                cfg.model_path = cfg.model.backbone.pop('init_cfg').checkpoint
            else:
                cfg = get_config(f'mmdet::pvt/{name}.py', pretrained=True)
            assert cfg.model_path == entry['url']
            assert entry['url'].endswith(f'-{entry["sha256"]}.pth')
            weights = build(cfg, 'meta').backbone.state_dict()
        backbone = build(dict(type=entry['type'], **entry['args']), 'meta')
        report = load_weights(backbone, weights)
        assert all(name.startswith('out_norms.') for name in report.missing), report
        assert not report.mismatched and len(report.matched) > 100
        left = {name.partition('.')[0] for name in report.unexpected}
        assert left <= {'head', 'head_dist', 'norm', 'cls_token', 'class_attention'}

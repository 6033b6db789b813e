"""The rows of docs/weights.md: each network has the weights that its backbone takes."""

import re
from pathlib import Path

import pytest
import torch

for package in ('mmdet', 'timm'):
    pytest.importorskip(package)

import timm  # noqa: E402
from mmengine.hub import get_config  # noqa: E402

from mmattn.analysis.flops import build  # noqa: E402
from mmattn.engine.checkpoints.weights import load_weights  # noqa: E402

PAGE = (Path(__file__).parents[1] / 'docs/weights.md').read_text()
(TABLE,) = re.findall(r'<!-- other weights -->\n(.*?)<!-- end', PAGE, re.DOTALL)
ROWS = re.findall(r'^\| (?:`timm://(.+)`|\[(.+)\]\((.+)\)) \| `(.+)` \|$', TABLE, re.M)


def test_all_rows_are_checked():
    assert len(ROWS) == len(TABLE.strip().splitlines()) - 2 == 25


@pytest.mark.slow  # 25 networks, half a second each
@pytest.mark.parametrize(
    'of_timm, of_mmdet, address, backbone', ROWS, ids=[a or b for a, b, *_ in ROWS]
)
def test_the_network_of_a_file_loads(of_timm, of_mmdet, address, backbone):
    """All that the backbone has comes from the file, but norms of single maps."""
    if of_timm:
        assert timm.is_model_pretrained(of_timm)
        with torch.device('meta'):
            weights = timm.create_model(of_timm).state_dict()
    else:
        cfg = get_config(f'mmdet::pvt/{of_mmdet}.py', pretrained=True)
        assert cfg.model_path == address
        weights = build(cfg, 'meta').backbone.state_dict()
    ours = build(eval(backbone), 'meta')
    report = load_weights(ours, weights)
    assert all(name.startswith('out_norms.') for name in report.missing), report
    assert not report.mismatched and len(report.matched) > 100
    left = {name.partition('.')[0] for name in report.unexpected}
    assert left <= {'head', 'head_dist', 'norm', 'cls_token', 'blocks_token_only'}

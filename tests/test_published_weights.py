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


@pytest.mark.slow  # 25 networks, half a second each
def test_the_networks_of_the_files_load():
    """All that the backbone has comes from the file, but norms of single maps."""
    assert len(ROWS) == len(TABLE.strip().splitlines()) - 2
    for of_timm, of_mmdet, address, backbone in ROWS:
        if of_timm:
            assert timm.is_model_pretrained(of_timm)
            with torch.device('meta'):
                weights = timm.create_model(of_timm).state_dict()
        else:
            cfg = get_config(f'mmdet::pvt/{of_mmdet}.py', pretrained=True)
            assert cfg.model_path == address
            weights = build(cfg, 'meta').backbone.state_dict()
        report = load_weights(build(eval(backbone), 'meta'), weights)
        assert all(name.startswith('out_norms.') for name in report.missing), report
        assert not report.mismatched and len(report.matched) > 100
        left = {name.partition('.')[0] for name in report.unexpected}
        assert left <= {'head', 'head_dist', 'norm', 'cls_token', 'blocks_token_only'}

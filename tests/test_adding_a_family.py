"""Build the toy backbone of docs/adding_a_family.md."""

import re
from pathlib import Path

import torch

PAGE = Path(__file__).parents[1] / 'docs/adding_a_family.md'


def test_the_toy_of_the_page_is_a_backbone():
    (code,) = re.findall(r'```python\n(.*?)```', PAGE.read_text(), re.DOTALL)
    names = {}
    exec(code.replace('@MODELS.register_module()\n', ''), names)
    model = names['ToyNet'](frozen_stages=0, out_indices=(0, 1), in_channels=4)
    maps = model.train()(torch.randn(2, 4, 40, 36))
    assert model.out_channels == tuple(m.shape[1] for m in maps) == (8, 16)
    sum(m.square().sum() for m in maps).backward()
    params = dict(model.named_parameters())
    for name, param in params.items():
        assert (param.grad is None) == name.startswith('stem.'), name
    assert not model.stem.training and model.stages.training
    depths = {name: model.get_layer_depth(name)[0] for name in params}
    assert {depths[name] for name in params if 'stages.1' in name} == {2, 3}
    assert depths['stem.proj.weight'] == 0 and depths['out_norms.0.weight'] == 4
    assert model.get_layer_depth('stages.1.downsample.proj.weight') == (2, 5)

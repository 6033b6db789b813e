"""projects/evidence: the loop on images in memory."""

from dataclasses import replace

import pytest
import torch
from torch.nn import Linear

from projects.evidence import training
from projects.evidence.images import Labeled, mirrored, normalized, scattered
from projects.evidence.training import Run, Training, train

BACKBONE = dict(
    type='ViT',
    arch=dict(embed_dims=8, depth=1, num_heads=2),
    attention='mhsa',
    patch_size=4,
    img_size=8,
    drop_path_rate=0.5,
)
SMALL = Training(BACKBONE, images=80, size=8, batch=4, tests=(12,))


@pytest.fixture(scope='module')
def data():
    """Return images whose class is the place of a bright row."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(8, (64,), generator=generator)
    images = torch.zeros(64, 1, 8, 8, dtype=torch.uint8)
    images[torch.arange(64), :, labels] = 255
    part = Labeled(images, labels)
    return dict(train=part, validation=part.part(slice(30)), test=part)


def test_a_run_depends_on_its_seed_alone(data, tmp_path):
    found, again, other = (train(SMALL, seed, data, tmp_path) for seed in (3, 3, 4))
    assert found.pop('cpu_seconds') > 0 < again.pop('cpu_seconds')
    assert found == again and other['loss'] != found['loss']
    assert set(found) == {'accuracy', 'accuracy@12', 'validation', 'loss'}


def test_networks_of_a_seed_see_the_same_images(data, monkeypatch):
    seen = []

    class Spy(torch.nn.Module):
        def __init__(self, draws: int):
            super().__init__()
            self.linear, self.draws = torch.nn.Linear(64, 10), draws

        def forward(self, x):
            seen.append(x)
            torch.rand(self.draws)
            return self.linear(x.flatten(1))

    for seed, draws in ((0, 1), (0, 7), (1, 1)):
        monkeypatch.setattr(training, 'build', lambda _, draws=draws: Spy(draws))
        run = Run(SMALL, seed, data)
        for _ in range(17):
            run.train_step()
    first, second, third = seen[:17], seen[17:34], seen[34:]
    assert all(map(torch.equal, first, second))
    assert not any(map(torch.equal, first, third))
    assert not torch.equal(first[0], first[16])  # another epoch, of 16 steps


def test_an_epoch_shows_each_image_once(data):
    numbered = Labeled(torch.arange(64), torch.arange(64))
    epochs = [
        torch.cat([training.batch_of(numbered, 5, s, 4).labels for s in steps])
        for steps in (range(16), range(16, 32))
    ]
    assert all(torch.equal(epoch.sort()[0], numbered.labels) for epoch in epochs)
    assert not torch.equal(*epochs)


def test_the_rate_rises_and_falls_to_zero():
    settings = Training(BACKBONE, images=6400, rate=2.0, batch=64, warmup=0.1)
    found = [settings.rate_at(step) for step in range(settings.steps)]
    assert found[:3] == pytest.approx([0.2, 0.4, 0.6]) and found[9:11] == [2.0, 2.0]
    assert found[55] == pytest.approx(1.0)  # the middle of the cosine
    assert 0 < found[-1] < 1e-3


def test_the_average_is_tested_twice_and_biases_do_not_decay(data):
    run = Run(SMALL, 0, data)
    run.optimizer.zero_grad()
    decays = {
        id(p): group['weight_decay']
        for group in run.optimizer.param_groups
        for p in group['params']
    }
    for name, parameter in run.model.named_parameters():
        decayed = parameter.dim() > 1 and 'pos_embed' not in name
        assert decays[id(parameter)] == (0.05 if decayed else 0), name
    run.average.module.head.bias.data[3] = 1e6  # one class for all images
    run.test()
    share = 100 * (data['test'].labels == 3).float().mean().item()
    assert run.records[0]['accuracy'] == pytest.approx(share)
    assert run.records[0]['accuracy@12'] == pytest.approx(share)
    run.records.append({name: value + 2 for name, value in run.records[0].items()})
    run.losses.append(0.5)
    assert run.metrics()['accuracy'] == pytest.approx(share + 1)


def test_every_field_is_part_of_the_hash():
    fields = dict(
        classes=(1, 2),
        donor=SMALL,
        images=160,
        rate=1.0,
        tests=(),
        size=12,
        batch=8,
        scattered=True,
    )
    fields |= dict(backbone=BACKBONE | dict(drop_path_rate=0.0), measures=('rank',))
    hashes = {replace(SMALL, **{name: fields[name]}).hash for name in fields}
    assert len(hashes | {SMALL.hash}) == 1 + len(fields)
    assert replace(SMALL).hash == SMALL.hash


def test_images_are_mirrored_enlarged_and_scattered():
    torch.manual_seed(0)
    images = torch.randint(256, (1, 2, 4, 4), dtype=torch.uint8)
    many = images.expand(300, -1, -1, -1)
    kinds = {tuple(image.flatten().tolist()) for image in mirrored(many)}
    expected = images.flatten(), images.flip(-1).flatten()
    assert kinds == {tuple(each.tolist()) for each in expected}
    assert torch.allclose(normalized(images, 4), (images - 72.94) / 90.02)
    assert normalized(images, 8).shape == (1, 2, 8, 8)
    kinds = {tuple(image.flatten().tolist()) for image in scattered(many, 6)}
    pads = [(x, 2 - x, y, 2 - y) for x in range(3) for y in range(3)]
    expected = [torch.nn.functional.pad(images, pad).flatten() for pad in pads]
    assert kinds == {tuple(each.tolist()) for each in expected}


def test_scattered_images_are_tested_at_the_same_places(data, monkeypatch):
    settings = replace(SMALL, size=12, scattered=True)
    first, second = (Run(settings, seed, data) for seed in (0, 1))
    for name in ('validation', 'test'):
        images = first.data[name].images
        assert images.shape[-2:] == (12, 12)
        assert torch.equal(images, second.data[name].images)
    seen = []
    monkeypatch.setattr(training, 'normalized', lambda x, _: seen.append(x) or x / 255)
    first.train_step()
    assert seen[0].shape == (4, 1, 12, 12) and seen[0].sum() == 4 * 8 * 255


def test_linear_layers_are_drawn_by_their_channels_to_be_trained():
    drawn, trained = (
        training.build(replace(SMALL, images=images)).backbone for images in (0, 80)
    )
    weights = [
        torch.cat([m.weight.flatten() for m in net.modules() if isinstance(m, Linear)])
        for net in (drawn, trained)
    ]
    assert weights[0].std() < 0.03 < 0.1 < weights[1].std()


@pytest.mark.slow
def test_a_row_is_learned(data, tmp_path):
    options = BACKBONE | dict(drop_path_rate=0.0)
    options |= dict(arch=dict(embed_dims=16, depth=1, num_heads=2))
    settings = replace(SMALL, backbone=options, images=3200, batch=16)
    found = train(replace(settings, rate=1e-2), 0, data, tmp_path / 'a')
    assert found['accuracy'] > 70


def test_a_run_starts_from_its_donor_which_is_trained_once(data, tmp_path, monkeypatch):
    donor = replace(SMALL, classes=(1, 3))
    ours = replace(SMALL, classes=(4, 0, 2), images=0, donor=donor)
    seen = []

    def resume(run, *_):
        seen.append(run)
        return original(run, *_)

    original = Run.finish
    monkeypatch.setattr(Run, 'finish', resume)
    for seed in (0, 1):
        folder = tmp_path / f'{ours.hash}_{seed}'
        assert train(ours, seed, data, folder)['share'] == 100
    of_donor, first, second = seen
    assert of_donor.data['train'].labels.unique().tolist() == [0, 1]
    assert first.data['test'].labels.unique().tolist() == [0, 1, 2]
    expected = of_donor.average.module.backbone.state_dict()
    for run in (first, second):
        for model in (run.model, run.average.module):
            found = model.backbone.state_dict()
            assert all(map(torch.equal, found.values(), expected.values()))
    heads = (run.model.head.weight for run in (first, second))
    assert not torch.equal(*heads) and first.model.head.out_features == 3


def test_labels_count_the_chosen_classes_in_their_order():
    images = torch.arange(6)
    chosen = Labeled(images, torch.tensor([2, 0, 4, 1, 2, 4])).of((4, 2))
    assert chosen.images.tolist() == [0, 2, 4, 5]
    assert chosen.labels.tolist() == [1, 0, 1, 0]

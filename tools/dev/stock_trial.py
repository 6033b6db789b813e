"""Build one stock model, train it for a step and predict, on random data."""

import copy
import gc
import string
import tempfile
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from mmengine.config import Config, ConfigDict
from mmengine.logging import MessageHub
from mmengine.model import revert_sync_batchnorm
from mmengine.optim import OptimWrapper
from mmengine.registry import MODELS, init_default_scope

from tools.dev.stock_data import batches, is_self_supervised, values_of
from tools.dev.stock_models import SIZES, load, model_of
from tools.dev.stock_table import PACKAGE_ERROR, classify

# Their `init_weights` fails unless it reads a checkpoint.
FROM_CHECKPOINT = {'MultimodalEncoderDecoder'}
MAX_PARAMETERS = 1_000_000_000
LARGEST = 640
MANY_QUERIES = 300
BERT = 'bert-base-uncased'  # which mmdet downloads
SPECIAL = ('[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]')


def sizes_to_try(package: str, config: Config) -> Iterable[int]:
    """Return image sizes, the small ones first and the config's own one last."""
    sizes = list(SIZES[package])
    pipeline = (config.get('test_dataloader') or {}).get('dataset') or {}
    own = [config.get('crop_size'), *values_of(pipeline, 'crop_size')]
    own += values_of((config.get('test_dataloader') or {}), 'scale')
    own += values_of(config.model, 'img_size')
    for value in own:
        value = value[0] if isinstance(value, list | tuple) and value else value
        if isinstance(value, int) and value > 0:
            sizes.append(min(value, LARGEST))
            break
    # Two-stage DETRs select that many tokens of the image.
    queries = [n for n in values_of(config.model, 'num_queries') if isinstance(n, int)]
    if max(queries, default=0) > MANY_QUERIES:
        sizes = [size for size in sizes if size >= 256]
    return dict.fromkeys(sizes)


def write_bert(folder: Path):
    """Write an untrained BERT with two layers and a vocabulary of letters."""
    from transformers import BertConfig, BertModel, BertTokenizerFast

    letters = [*string.ascii_lowercase, *string.digits]
    words = [*SPECIAL, *'.?,-', *letters, *(f'##{letter}' for letter in letters)]
    (folder / 'vocab.txt').write_text('\n'.join(words))
    BertTokenizerFast(str(folder / 'vocab.txt')).save_pretrained(folder)
    config = BertConfig(vocab_size=len(words), num_hidden_layers=2)
    BertModel(config, add_pooling_layer=False).save_pretrained(folder)


def with_bert(node: Any, folder: str) -> Any:
    """Return a copy of a model's config that reads BERT from a folder."""
    if isinstance(node, dict):
        return {key: with_bert(value, folder) for key, value in node.items()}
    if isinstance(node, list | tuple):
        return type(node)(with_bert(value, folder) for value in node)
    return folder if node == BERT else node


def build(package: str, model: dict) -> torch.nn.Module:
    torch.manual_seed(0)
    init_default_scope(package)
    built = MODELS.build(ConfigDict(copy.deepcopy(model)))
    built = revert_sync_batchnorm(built)
    if model['type'] in FROM_CHECKPOINT:
        for parameter in built.parameters():
            if parameter.ndim > 1:
                torch.nn.init.normal_(parameter, std=0.02)
    else:
        built.init_weights()
    return built


def train_one_step(model: torch.nn.Module, batch: dict):
    """Run the model's own training step and require finite losses."""
    model.train()
    for module in model.modules():
        # One step must do for the statistics, or the predictions overflow.
        if isinstance(module, torch.nn.modules.batchnorm._BatchNorm):
            module.momentum = 1.0
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(parameters, lr=1e-5)
    losses = model.train_step(batch, OptimWrapper(optimizer))
    for name, loss in losses.items():
        if not torch.isfinite(torch.as_tensor(loss)).all():
            raise FloatingPointError(f'{name} is {loss}')


def is_headless(model: torch.nn.Module) -> bool:
    """Return whether a model of mmpretrain is a backbone to take features from."""
    return getattr(model, 'head', model) is None


def predict(model: torch.nn.Module, batch: dict):
    """Run the model's own test step, or extract features where it has none."""
    model.eval()
    with torch.no_grad():
        if is_self_supervised(type(model).__name__) or is_headless(model):
            inputs = model.data_preprocessor(batch)['inputs']
            first = inputs[0] if isinstance(inputs, list) else inputs
            return model(first, mode='tensor')
        if hasattr(model, 'prototype_inited'):
            # Search among the batch itself instead of a dataset.
            inputs = model.data_preprocessor(batch)['inputs']
            features = model.extract_feat(inputs)
            model.prototype = features[-1] if isinstance(features, tuple) else features
        return model.test_step(batch)


def attempt(package: str, config: Config, size: int, report: Callable[..., Any]):
    """Try a model at one image size. `report` receives each stage that passed."""
    model = model_of(package, config, size)
    with tempfile.TemporaryDirectory() as folder:
        if repr(BERT) in repr(model):
            write_bert(Path(folder))
            model = with_bert(model, folder)
        built = build(package, model)
    parameters = sum(p.numel() for p in built.parameters())
    report(stage='build', parameters=parameters, size=size)
    if parameters > MAX_PARAMETERS:
        raise MemoryError(f'not run: {parameters / 1e6:.0f} million parameters')
    torch.manual_seed(1)
    trained, tested = batches(package, config, model, size)
    try:
        if is_headless(built):
            report(untrained='no head')
        else:
            train_one_step(built, copy.deepcopy(trained))
            report(stage='step')
    except NotImplementedError as error:
        reason, detail = classify(error)
        if reason != 'design':
            raise
        report(untrained=detail)
    predict(built, tested)
    report(stage='predict')


def try_model(package: str, path: str, report: Callable[..., Any]):
    """Try a model at the sizes that might suit it, until one does."""
    config = load(package, path)
    # Some configs of mmdet train a backbone with mmpretrain.
    package = config.get('default_scope', package)
    # As in the first iteration of a runner; some losses warm up.
    MessageHub.get_current_instance().update_info_dict({'iter': 0, 'epoch': 0})
    failures = set()
    sizes = list(sizes_to_try(package, config))
    while sizes:
        size = sizes.pop(0)
        try:
            return attempt(package, config, size, report)
        # A model can fail in any way, and the sweep records which.
        except Exception as error:  # noqa: BLE001
            reason, detail = classify(error)
            trace = traceback.format_exc(limit=-3)
            report(reason=reason, detail=detail, failed_at=size, trace=trace)
            if reason not in ('error', PACKAGE_ERROR):
                return None
            # A failure that stays the same leaves the config's own size to try.
            if detail in failures:
                del sizes[:-1]
            failures.add(detail)
        gc.collect()
    return None

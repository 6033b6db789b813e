"""Write an untrained BERT, in place of the one that mmdet downloads."""

import string
from pathlib import Path
from typing import Any

BERT = 'bert-base-uncased'
SPECIAL = ('[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]')
NUM_LAYERS = 2


def write_bert(folder: Path):
    """Write a BERT of the usual width with few layers and a vocabulary of letters."""
    from transformers import BertConfig, BertModel, BertTokenizerFast

    letters = [*string.ascii_lowercase, *string.digits]
    words = [*SPECIAL, *'.?,-', *letters, *(f'##{letter}' for letter in letters)]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / 'vocab.txt').write_text('\n'.join(words))
    BertTokenizerFast(str(folder / 'vocab.txt')).save_pretrained(folder)
    config = BertConfig(vocab_size=len(words), num_hidden_layers=NUM_LAYERS)
    BertModel(config, add_pooling_layer=False).save_pretrained(folder)


def reads_bert(node: Any) -> bool:
    """Return whether a model's config names BERT anywhere."""
    if isinstance(node, dict):
        node = list(node.values())
    return node == BERT or (
        isinstance(node, list | tuple) and any(map(reads_bert, node))
    )


def with_bert(node: Any, folder: Path) -> Any:
    """Return a copy of a model's config that reads BERT from a folder."""
    if isinstance(node, dict):
        return {key: with_bert(value, folder) for key, value in node.items()}
    if isinstance(node, list | tuple):
        return type(node)(with_bert(value, folder) for value in node)
    return str(folder) if node == BERT else node

from .build import build_dataset
from .checked_dataset import DataError
from .checks import prepare_dataloader
from .loaders import build_dataloader

__all__ = [
    'DataError',
    'build_dataloader',
    'build_dataset',
    'prepare_dataloader',
]

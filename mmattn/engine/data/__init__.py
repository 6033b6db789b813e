from .build import build_dataset, innermost_dataset, raw_channels
from .checked_dataset import DataError
from .checks import prepare_dataloader
from .loaders import build_dataloader

__all__ = [
    'DataError',
    'build_dataloader',
    'build_dataset',
    'innermost_dataset',
    'prepare_dataloader',
    'raw_channels',
]

from .build import build_dataset
from .checked_dataset import DataError

__all__ = [
    'DataError',
    'build_dataset',
]

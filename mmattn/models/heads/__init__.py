from .pooled_mlp import PooledMLP

__all__ = ['PooledMLP']

"""Checks of settings that several layers have."""

from mmattn.errors import UserError


def check_heads(embed_dims: int, num_heads: int):
    """Raise a ValueError unless the heads divide the channels."""
    if embed_dims % num_heads:
        raise UserError(f'{embed_dims} channels do not split into {num_heads} heads')

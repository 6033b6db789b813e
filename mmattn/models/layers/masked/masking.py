"""Schemes of MaiT, and explicit lists, of the masked heads of each layer.

Li, Ardestani and Hassoun, "MaiT: Leverage Attention Masks for More Efficient Image
Transformers", https://arxiv.org/abs/2207.03006, section 5.3. In a layer of masked and
global heads, the masked ones have the lowest indices, as in its section 4.3.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from mmattn.errors import UserError
from mmattn.ops.masked_attention import resolve_heads

SCHEMES = 'none', 'sch1', 'sch2', 'soft'


class LayerMasking(NamedTuple):
    """Masked heads of a layer, ascending, and whether their masks are soft."""

    heads: tuple[int, ...]
    soft: bool


# Entry of a list of layers.
LayerEntry = int | str | Sequence[int] | Mapping | LayerMasking


def resolve_masking(
    masking: str | Sequence[LayerEntry], depth: int, num_heads: int
) -> list[LayerMasking]:
    """Return the masking of each layer, from the input upwards.

    Args:
        masking: one of
            'none': no masks;
            'sch1': one masked head in every layer;
            'sch2': all heads but one in the first third of the layers, none in the last
            sixth, and one in between. The paper gives layers 0-7, 20-23 and 9-19 of 24,
            and does not mention layer 8, which has one here;
            'soft': soft masks for all heads, except in the last eighth of the layers,
            which is layers 21-23 of 24;
            or a list with an entry for each layer: the number of hard-masked heads or
            their indices, 'soft' for soft masks on all heads, a dict of `heads` (such a
            number or indices) and `soft` (False by default), or a `LayerMasking`.
            Thirds, sixths and eighths are rounded down.
        depth: number of layers.
        num_heads: heads of each layer.

    Raises:
        ValueError: unknown scheme or entry, a list of another length, or heads that do
            not exist.
    """
    if isinstance(masking, str):
        counts = _scheme(masking, depth, num_heads)
        return [
            LayerMasking(tuple(range(n)), masking == 'soft' and n > 0) for n in counts
        ]
    if len(masking) != depth:
        raise UserError(
            f'masking must be one of {list(SCHEMES)} or an entry for each of {depth} '
            f'layers, got {len(masking)} entries'
        )
    return [_layer(entry, num_heads) for entry in masking]


def _layer(entry: LayerEntry, num_heads: int) -> LayerMasking:
    match entry:
        case LayerMasking():
            heads, soft = entry
        case 'soft':
            heads, soft = num_heads, True
        case {'heads': heads, **others} if set(others) <= {'soft'}:
            soft = others.get('soft', False)
        case str() | Mapping():
            raise UserError(
                'an entry of masking must be a number of heads, their indices, '
                f"'soft' or a dict of `heads` and `soft`, got {entry!r}"
            )
        case _:
            heads, soft = entry, False
    if not isinstance(soft, bool):
        raise UserError(f'`soft` must be True or False, got {entry!r}')
    heads = resolve_heads(heads, num_heads)
    return LayerMasking(heads, soft and bool(heads))


def _scheme(name: str, depth: int, num_heads: int) -> list[int]:
    if name not in SCHEMES:
        raise UserError(
            f'masking must be one of {list(SCHEMES)} or a list, got {name!r}'
        )
    if name == 'none':
        return [0] * depth
    if name == 'sch1':
        return [1] * depth
    if name == 'sch2':
        first, last = depth // 3, depth // 6
        return [num_heads - 1] * first + [1] * (depth - first - last) + [0] * last
    last = depth // 8
    return [num_heads] * (depth - last) + [0] * last

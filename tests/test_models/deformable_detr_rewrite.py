"""Deformable DETR's transformer written anew: one image, one head, one point at a time.

Functions of a state dict with the official names, in float64. Maps are (C, H, W),
padding masks (H, W), True at padding; nothing has a batch.
"""

import math

import torch


def linear(p, name, x):
    return x @ p[f'{name}.weight'].t() + p[f'{name}.bias']


def norm(p, name, x):
    x = x - x.mean(-1, keepdim=True)
    x = x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    return x * p[f'{name}.weight'] + p[f'{name}.bias']


def feed_forward(p, name, x):
    return linear(p, f'{name}.linear2', linear(p, f'{name}.linear1', x).clamp(min=0))


def bilinear(grid, x, y):
    """Samples (Q, D) of `grid` (H, W, D) at pixels x, y (Q,); 0 is a pixel's center."""
    H, W, _ = grid.shape
    out = 0
    for row in (y.floor(), y.floor() + 1):
        for column in (x.floor(), x.floor() + 1):
            weight = (1 - (y - row).abs()) * (1 - (x - column).abs())
            inside = (row >= 0) & (row < H) & (column >= 0) & (column < W)
            i, j = row.clamp(0, H - 1).long(), column.clamp(0, W - 1).long()
            out = out + (weight * inside)[:, None] * grid[i, j]
    return out


def ms_deform_attention(p, name, query, value, shapes, reference, padding, heads):
    """Queries (Q, C), values (S, C), reference (Q, L, 2 or 4), padding (S,) or None."""
    name = f'{name}.' if name else ''
    levels = len(shapes)
    value = linear(p, f'{name}value_proj', value)
    if padding is not None:
        value = torch.where(padding[:, None], 0, value)
    offsets = linear(p, f'{name}sampling_offsets', query)
    offsets = offsets.view(len(query), heads, levels, -1, 2)
    points = offsets.shape[3]
    weights = linear(p, f'{name}attention_weights', query).view(len(query), heads, -1)
    weights = weights.exp() / weights.exp().sum(-1, keepdim=True)
    width = value.shape[1] // heads
    outs = []
    for head in range(heads):
        out, start = 0, 0
        for level, (H, W) in enumerate(shapes):
            grid = value[start : start + H * W, head * width : (head + 1) * width]
            start += H * W
            for point in range(points):
                x, y = reference[:, level, :2].unbind(-1)
                dx, dy = offsets[:, head, level, point].unbind(-1)
                if reference.shape[-1] == 4:
                    w, h = reference[:, level, 2:].unbind(-1)
                    x, y = x + dx / points * w / 2, y + dy / points * h / 2
                    x, y = x * W, y * H
                else:
                    x, y = x * W + dx, y * H + dy
                samples = bilinear(grid.view(H, W, width), x - 0.5, y - 0.5)
                out = out + weights[:, head, level * points + point, None] * samples
        outs.append(out)
    return linear(p, f'{name}output_proj', torch.cat(outs, -1))


def attention(p, name, q, k, v, heads):
    weight, bias = p[f'{name}.in_proj_weight'], p[f'{name}.in_proj_bias']
    q, k, v = (
        x @ w.t() + b
        for x, w, b in zip((q, k, v), weight.chunk(3), bias.chunk(3), strict=True)
    )
    outs = []
    for start in range(0, q.shape[1], q.shape[1] // heads):
        head = slice(start, start + q.shape[1] // heads)
        scores = (q[:, head] @ k[:, head].t() * (heads / q.shape[1]) ** 0.5).exp()
        outs.append(scores / scores.sum(-1, keepdim=True) @ v[:, head])
    return linear(p, f'{name}.out_proj', torch.cat(outs, -1))


def sines(angle, count):
    """Encodings (..., count), channel by channel."""
    columns = []
    for channel in range(count):
        at = angle / 10000 ** (channel // 2 * 2 / count)
        columns.append(at.cos() if channel % 2 else at.sin())
    return torch.stack(columns, -1)


def sine_position(mask, channels):
    """Encodings (H, W, C)."""
    halves = []
    for axis in (0, 1):
        count = (~mask).double().cumsum(axis)
        last = count.select(axis, -1).unsqueeze(axis)
        angle = (count - 0.5) / (last + 1e-6) * 2 * math.pi
        halves.append(sines(angle, channels // 2))
    return torch.cat(halves, -1)


def valid_sides(mask):
    """Valid rows and columns of a mask (H, W)."""
    return int((~mask[:, 0]).sum()), int((~mask[0]).sum())


def centers(masks):
    """(x, y) of all pixels in valid sides, (S, 2)."""
    places = []
    for mask in masks:
        rows, columns = valid_sides(mask)
        for i in range(mask.shape[0]):
            for j in range(mask.shape[1]):
                places.append([(j + 0.5) / columns, (i + 0.5) / rows])
    return torch.tensor(places, dtype=torch.float64)


def spread(reference, masks):
    """References (Q, 2 or 4) in coordinates of each level, (Q, L, 2 or 4)."""
    levels = []
    for mask in masks:
        (rows, columns), (H, W) = valid_sides(mask), mask.shape
        scale = torch.tensor([columns / W, rows / H], dtype=torch.float64)
        levels.append(reference * scale.repeat(reference.shape[-1] // 2))
    return torch.stack(levels, 1)


def encode(p, maps, masks, heads):
    """Memory (S, C)."""
    shapes = [tuple(x.shape[1:]) for x in maps]
    x = torch.cat([x.flatten(1).t() for x in maps])
    positions = torch.cat(
        [
            sine_position(mask, len(x)).flatten(0, 1) + embed
            for x, mask, embed in zip(maps, masks, p['level_embed'], strict=True)
        ]
    )
    padding = torch.cat([mask.flatten() for mask in masks])
    reference = spread(centers(masks), masks)
    for name in layer_names(p, 'encoder'):
        arguments = x + positions, x, shapes, reference, padding, heads
        attended = ms_deform_attention(p, f'{name}.self_attn', *arguments)
        x = norm(p, f'{name}.norm1', x + attended)
        x = norm(p, f'{name}.norm2', x + feed_forward(p, name, x))
    return x


def decode(p, memory, masks, heads, queries, classify=None, boxes=None):
    """Hidden states, references, class logits and boxes of the first stage.

    `classify` is the first stage's branch, or None for one stage; `boxes` are the
    branches for refinement, or None.
    """
    shapes = [tuple(mask.shape) for mask in masks]
    padding = torch.cat([mask.flatten() for mask in masks])
    channels = memory.shape[1]
    scores = coordinates = None
    if classify is None:
        positions, x = p['query_embed.weight'].split(channels, dim=1)
        reference = linear(p, 'reference_points', positions).sigmoid()
    else:
        sizes = [
            0.05 * 2**level for level, (H, W) in enumerate(shapes) for _ in range(H * W)
        ]
        sizes = torch.tensor(sizes, dtype=torch.float64)[:, None].expand(-1, 2)
        proposals = torch.cat([centers(masks), sizes], 1)
        valid = ((proposals > 0.01) & (proposals < 0.99)).all(1) & ~padding
        logits = torch.where(valid[:, None], proposals.logit(), math.inf)
        kept = torch.where(valid[:, None], memory, 0)
        kept = norm(p, 'enc_output_norm', linear(p, 'enc_output', kept))
        scores, logits = classify(kept), boxes[-1](kept) + logits
        coordinates = logits.sigmoid()
        order = sorted(range(len(scores)), key=lambda s: -scores[s, 0].item())
        reference = coordinates[order[:queries]].detach()
        encoded = [
            sines(side * 2 * math.pi, channels // 2) for side in reference.unbind(1)
        ]
        encoded = linear(p, 'pos_trans', torch.cat(encoded, 1))
        positions, x = norm(p, 'pos_trans_norm', encoded).split(channels, dim=1)
    states, references = [], [reference]
    for index, name in enumerate(layer_names(p, 'decoder')):
        q = x + positions
        x = norm(
            p, f'{name}.norm2', x + attention(p, f'{name}.self_attn', q, q, x, heads)
        )
        arguments = memory, shapes, spread(reference, masks), padding, heads
        attended = ms_deform_attention(
            p, f'{name}.cross_attn', x + positions, *arguments
        )
        x = norm(p, f'{name}.norm1', x + attended)
        x = norm(p, f'{name}.norm3', x + feed_forward(p, name, x))
        if boxes is not None:
            delta = boxes[index](x)
            known = reference.clamp(1e-5, 1 - 1e-5).logit()
            rest = torch.zeros_like(delta[:, known.shape[1] :])
            reference = (delta + torch.cat([known, rest], 1)).sigmoid().detach()
        states.append(x)
        references.append(reference)
    return torch.stack(states), references, scores, coordinates


def layer_names(p, part):
    count = len(
        {name.split('.')[2] for name in p if name.startswith(f'{part}.layers.')}
    )
    return [f'{part}.layers.{index}' for index in range(count)]

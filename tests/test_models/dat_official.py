"""Names and shapes of official DATs, and their deformable attention in plain code."""

import torch
import torch.nn.functional as F
from golden import hashed_parameter

KERNELS, STRIDES = (9, 7, 5, 3), (8, 4, 2, 1)  # of the offset networks


def is_deformed(arch, version, stage, block):
    if version == 1:
        return bool(block % 2 and arch['num_groups'][stage])
    return stage == 3 or block % 2 == 1


def official_shapes(arch, version, side, num_classes=10, detector=False, window=7):
    """Names and shapes of an official checkpoint for images of side x side.

    DAT's have buffers.
    """
    dims = arch['embed_dims']
    shapes = {}

    def affine(name, *shape):
        shapes[f'{name}.weight'] = shape
        shapes[f'{name}.bias'] = shape[:1]

    if version == 1:
        affine('patch_proj.0', dims[0], 3, 4, 4)
        affine('patch_proj.1.norm', dims[0])
    else:
        affine('patch_proj.0', dims[0] // 2, 3, 3, 3)
        affine('patch_proj.1.norm', dims[0] // 2)
        affine('patch_proj.3', dims[0], dims[0] // 2, 3, 3)
        affine('patch_proj.4.norm', dims[0])
    for s, (C, M, G, depth) in enumerate(
        zip(dims, arch['num_heads'], arch['num_groups'], arch['depths'], strict=True)
    ):
        grid = side >> s + 2
        if s:
            down = f'down_projs.{s - 1}'
            shapes[f'{down}.0.weight'] = (C, dims[s - 1], *(version + 1,) * 2)
            affine(f'{down}.1.norm', C)
        if detector:
            affine(f'norms.{s}.norm', C)
        for d in range(depth):
            attn, mlp = f'stages.{s}.attns.{d}', f'stages.{s}.mlps.{d}'
            affine(f'stages.{s}.layer_norms.{2 * d}.norm', C)
            affine(f'stages.{s}.layer_norms.{2 * d + 1}.norm', C)
            if version == 1:
                affine(f'{mlp}.chunk.linear1', 4 * C, C)
                affine(f'{mlp}.chunk.linear2', C, 4 * C)
            else:
                affine(f'stages.{s}.local_perception_units.{d}', C, 1, 3, 3)
                affine(f'{mlp}.linear1.0', 4 * C, C, 1, 1)
                affine(f'{mlp}.dwc', 4 * C, 1, 3, 3)
                affine(f'{mlp}.linear2.0', C, 4 * C, 1, 1)
            if is_deformed(arch, version, s, d):
                affine(f'{attn}.conv_offset.0', C // G, 1, *(KERNELS[s],) * 2)
                affine(f'{attn}.conv_offset.1.norm', C // G)
                shapes[f'{attn}.conv_offset.3.weight'] = (2, C // G, 1, 1)
                for name in ('q', 'k', 'v', 'out'):
                    affine(f'{attn}.proj_{name}', C, C, 1, 1)
                shapes[f'{attn}.rpe_table'] = (M, *(2 * grid - 1,) * 2)
            elif version == 1:
                affine(f'{attn}.proj_qkv', 3 * C, C)
                affine(f'{attn}.proj_out', C, C)
                table = f'{attn}.relative_position_bias_table'
                shapes[table] = ((2 * window - 1) ** 2, M)
                shapes[f'{attn}.relative_position_index'] = (window**2, window**2)
                if d % 2:
                    count = (grid // window) ** 2
                    shapes[f'{attn}.attn_mask'] = (count, window**2, window**2)
            else:
                affine(f'{attn}.qkv', 3 * C, C)
                affine(f'{attn}.proj', C, C)
                shapes[f'{attn}.rpb'] = (M, 13, 13)
    if not detector:
        affine('cls_norm.norm', dims[3])
        affine('cls_head', num_classes, dims[3])
    return shapes


def official_weights(*args, **kwargs):
    return {
        name: hashed_parameter(name, shape)
        for name, shape in official_shapes(*args, **kwargs).items()
    }


def centers(side, align_corners):
    if align_corners:
        return torch.linspace(-1, 1, side, dtype=torch.float64)
    return (torch.arange(side).double() + 0.5) / side * 2 - 1


def deformed(p, x, heads, groups, version, stride, bias=None):
    """Return the deformable attention and its positions (B, G, K, 2), as (y, x).

    `p` has the layer's parameters by our names; x has the shape (B, C, H, W). A bias
    (B, M, N, K) replaces the one from the table.
    """
    (B, C, H, W), width = x.shape, p['conv_offset.0.weight'].shape[0]

    def linear(name, x):
        return F.conv1d(x, p[f'{name}.weight'].view(-1, C, 1), p[f'{name}.bias'])

    q = linear('proj_q', x.flatten(2)).view(B, C, H, W)
    h = F.conv2d(
        q.reshape(B * groups, width, H, W),
        p['conv_offset.0.weight'],
        p['conv_offset.0.bias'],
        stride=stride,
        padding=p['conv_offset.0.weight'].shape[-1] // 2,
        groups=width,
    ).movedim(1, -1)
    norm = p['conv_offset.1.weight'], p['conv_offset.1.bias']
    h = F.gelu(F.layer_norm(h, (width,), *norm, eps=1e-5))
    offset = h @ p['conv_offset.3.weight'].view(2, width).t()  # (B * G, Hk, Wk, 2)
    sides = torch.tensor(offset.shape[1:3])
    cells = torch.meshgrid(*(torch.arange(s) + 0.5 for s in sides), indexing='ij')
    cells = torch.stack(cells, -1).double()
    if version == 1:
        pos = offset.tanh() * 2 / sides + cells / sides * 2 - 1
    else:
        pos = (offset + cells / (sides - 1) * 2 - 1).clamp(-1, 1)
    sampled = F.grid_sample(
        x.reshape(B * groups, width, H, W), pos.flip(-1), align_corners=True
    ).reshape(B, C, -1)
    rows, columns = (centers(s, version == 2) for s in (H, W))
    queries = torch.stack(torch.meshgrid(rows, columns, indexing='ij'), -1)
    displacement = queries.view(1, H * W, 1, 2) - pos.view(B * groups, 1, -1, 2)
    if bias is None:
        table = p['rpe_table'].unflatten(0, (groups, -1)).repeat(B, 1, 1, 1)
        bias = F.grid_sample(table, displacement.flip(-1) / 2, align_corners=True)
        bias = bias.view(B, heads, H * W, -1)
    q, k, v = (
        t.reshape(B, heads, C // heads, -1)
        for t in (q, linear('proj_k', sampled), linear('proj_v', sampled))
    )
    scores = torch.einsum('bmcq,bmck->bmqk', q, k) / (C // heads) ** 0.5 + bias
    out = torch.einsum('bmqk,bmck->bmcq', scores.softmax(-1), v)
    out = linear('proj_out', out.reshape(B, C, H * W)).view(B, C, H, W)
    return out, pos.view(B, groups, -1, 2)

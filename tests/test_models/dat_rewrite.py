"""DAT and DAT++ from official state dicts, written plainly, channels first."""

import torch
import torch.nn.functional as F
from golden import hashed_parameter

from mmattn.ops.neighborhood_attention import neighborhood_attention_reference

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


def deformed(p, x, heads, groups, version, stride):
    """Return the deformable attention and its positions (B, G, K, 2), as (y, x).

    `p` has the layer's parameters by our names; x has the shape (B, C, H, W).
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
    bias = F.grid_sample(
        p['rpe_table'].unflatten(0, (groups, -1)).repeat(B, 1, 1, 1),
        displacement.flip(-1) / 2,
        align_corners=True,
    ).view(B, heads, H * W, -1)
    q, k, v = (
        t.reshape(B, heads, C // heads, -1)
        for t in (q, linear('proj_k', sampled), linear('proj_v', sampled))
    )
    scores = torch.einsum('bmcq,bmck->bmqk', q, k) / (C // heads) ** 0.5 + bias
    out = torch.einsum('bmqk,bmck->bmcq', scores.softmax(-1), v)
    out = linear('proj_out', out.reshape(B, C, H * W)).view(B, C, H, W)
    return out, pos.view(B, groups, -1, 2)


class Rewrite:
    """Compute the maps of the stages, without the norms that end them."""

    def __init__(self, weights, arch, version, window=7):
        self.weights, self.arch = weights, arch
        self.version, self.window = version, window

    def get(self, name):
        return self.weights.get(f'{name}.weight'), self.weights.get(f'{name}.bias')

    def norm(self, name, x):
        x = F.layer_norm(x.movedim(1, -1), x.shape[1:2], *self.get(f'{name}.norm'))
        return x.movedim(-1, 1)

    def conv(self, name, x, **kwargs):
        return F.conv2d(x, *self.get(name), **kwargs)

    def depthwise(self, name, x):
        return self.conv(name, x, padding=1, groups=x.shape[1])

    def linear(self, name, x):
        weight, bias = self.get(name)
        return F.conv2d(x, weight.view(*weight.shape[:2], 1, 1), bias)

    def deformed(self, name, x, s):
        p = {
            n.removeprefix(f'{name}.').replace('.norm.', '.'): weight
            for n, weight in self.weights.items()
            if n.startswith(f'{name}.')
        }
        M, G = self.arch['num_heads'][s], self.arch['num_groups'][s]
        stride = 1 if self.version == 1 else STRIDES[s]
        return deformed(p, x, M, G, self.version, stride)[0]

    def windows(self, name, x, M, shift):
        (B, C, H, W), w = x.shape, self.window
        x = x.roll((-shift, -shift), (2, 3))
        x = self.linear(f'{name}.proj_qkv', x)
        x = F.unfold(x, w, stride=w).view(B, 3, M, C // M, w * w, -1)
        q, k, v = x.permute(1, 0, 5, 2, 4, 3)  # (B, windows, M, N, D)
        y = torch.arange(w).repeat_interleave(w)
        i, j = y[:, None] - y + w - 1, y.view(w, w).t().reshape(-1)
        j = j[:, None] - j + w - 1
        table = self.weights[f'{name}.relative_position_bias_table']
        bias = table[i * (2 * w - 1) + j].permute(2, 0, 1)
        scores = q @ k.mT * (C // M) ** -0.5 + bias
        if shift:
            part = torch.zeros(1, 1, H, W).double()
            for edge in (w, shift):
                part[:, :, -edge:] += 1
                part[..., -edge:] += 3
            part = F.unfold(part, w, stride=w)[0].t()  # (windows, N)
            scores = scores - 100.0 * (part[:, None] != part[..., None])[None, :, None]
        out = (scores.softmax(-1) @ v).permute(0, 2, 4, 3, 1)  # (B, M, D, N, windows)
        out = F.fold(out.reshape(B, C * w * w, -1), (H, W), w, stride=w)
        return self.linear(f'{name}.proj_out', out).roll((shift, shift), (2, 3))

    def neighbors(self, name, x, M):
        _, C, H, W = x.shape
        x = F.pad(x, (0, max(0, 7 - W), 0, max(0, 7 - H))).movedim(1, -1)
        qkv = F.linear(x, *self.get(f'{name}.qkv')).unflatten(-1, (3, M, C // M))
        out = neighborhood_attention_reference(
            *qkv.unbind(3), self.weights[f'{name}.rpb']
        )[:, :H, :W]
        return F.linear(out.flatten(3), *self.get(f'{name}.proj')).movedim(-1, 1)

    def block(self, s, d, x):
        M, attn = self.arch['num_heads'][s], f'stages.{s}.attns.{d}'
        mlp = f'stages.{s}.mlps.{d}'
        if self.version == 2:
            x = x + self.depthwise(f'stages.{s}.local_perception_units.{d}', x)
        h = self.norm(f'stages.{s}.layer_norms.{2 * d}', x)
        if is_deformed(self.arch, self.version, s, d):
            x = x + self.deformed(attn, h, s)
        elif self.version == 1:
            x = x + self.windows(attn, h, M, (self.window + 1) // 2 if d % 2 else 0)
        else:
            x = x + self.neighbors(attn, h, M)
        h = self.norm(f'stages.{s}.layer_norms.{2 * d + 1}', x)
        if self.version == 1:
            h = F.gelu(self.linear(f'{mlp}.chunk.linear1', h))
            return x + self.linear(f'{mlp}.chunk.linear2', h)
        h = self.conv(f'{mlp}.linear1.0', h)
        h = F.gelu(h + self.depthwise(f'{mlp}.dwc', h))
        return x + self.conv(f'{mlp}.linear2.0', h)

    def __call__(self, x):
        if self.version == 1:
            x = self.norm('patch_proj.1', self.conv('patch_proj.0', x, stride=4))
        else:
            x = self.conv('patch_proj.0', x, stride=2, padding=1)
            x = F.gelu(self.norm('patch_proj.1', x))
            x = self.conv('patch_proj.3', x, stride=2, padding=1)
            x = self.norm('patch_proj.4', x)
        maps = []
        for s, depth in enumerate(self.arch['depths']):
            if s:
                down = f'down_projs.{s - 1}'
                x = self.conv(f'{down}.0', x, stride=2, padding=self.version - 1)
                x = self.norm(f'{down}.1', x)
            for d in range(depth):
                x = self.block(s, d, x)
            maps.append(x)
        return maps

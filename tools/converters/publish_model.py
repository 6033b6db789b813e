"""Write the weights of a trained model as a small file to share.

    publish_model.py work_dirs/mask_rcnn_ivit_n_hela weights.safetensors

keeps only the weights, without the state of the optimizer. Matrices and kernels are
stored in half precision. Tensors of one dimension, such as norms, keep their dtype,
because they are small and have the widest range. `Predictor`, `tools/test.py` and
`load_from` read the file; the parameters of the model stay in float32.

`make demo` and `make demo-seg` write such files, and `mmattn://hela-ivit-n` and
`mmattn://fashion-scenes-ivit-n` name them.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from mmengine.runner import CheckpointLoader
from safetensors.torch import save
from torch import Tensor

import mmattn
from mmattn.apis.find import run_checkpoint
from mmattn.cli.terminal import add_trust, command_parser, run_main
from mmattn.engine import trusted_checkpoints
from mmattn.errors import UserError
from mmattn.files.atomic import write_atomically
from mmattn.weights.load import find_weights

DTYPES = {'float16': torch.float16, 'bfloat16': torch.bfloat16}


def rounded(weights: Mapping[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    """Return the weights, with floating-point tensors of two dimensions and more cast.

    Raises:
        ValueError: a finite weight is beyond the range of `dtype`.
    """
    found = {}
    for name, value in weights.items():
        if value.is_floating_point() and value.dim() > 1:
            cast = value.to(dtype)
            if (cast.isinf() & value.isfinite()).any():
                most = value[value.isfinite()].abs().max()
                raise UserError(
                    f'{name} has weights up to {most:.3g}, and {dtype} ends at '
                    f'{torch.finfo(dtype).max:.3g}: pass --dtype bfloat16'
                )
            value = cast
        # Tensors of one storage cannot be saved.
        found[name] = value.detach().clone(memory_format=torch.contiguous_format)
    return found


def publish(source: Path, out: Path, dtype: str = 'float16', force: bool = False):
    """Write the weights of a work dir or a checkpoint to a .safetensors file.

    Raises:
        FileNotFoundError: there is no checkpoint.
        ValueError: it holds no weights, one of them is beyond the range of `dtype`, or
            `out` exists or has another suffix. Nothing is written.
    """
    if out.suffix != '.safetensors':
        raise UserError(f'the file to write must end in .safetensors, got {out}')
    if out.exists() and not force:
        raise UserError(f'{out} already exists; --force overwrites it')
    checkpoint = run_checkpoint(source) if source.is_dir() else source
    weights = find_weights(
        CheckpointLoader.load_checkpoint(str(checkpoint), 'cpu'), str(checkpoint)
    )
    weights = {name: value for name, value in weights.items() if torch.is_tensor(value)}
    metadata = dict(format='pt', mmattn_version=mmattn.__version__)
    content = save(rounded(weights, DTYPES[dtype]), metadata)
    out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(out, content)
    print(f'{checkpoint} -> {out}, {len(content) / 1e6:.1f} MB in {dtype}')


def main(argv: Sequence[str] | None = None):
    parser = command_parser(__doc__)
    parser.add_argument(
        'source',
        type=Path,
        help='work dir (its best checkpoint, else the last) or file',
    )
    parser.add_argument('out', type=Path, help='.safetensors file to write')
    parser.add_argument('--dtype', choices=list(DTYPES), default='float16')
    parser.add_argument(
        '--force', action='store_true', help='overwrite OUT if it exists'
    )
    add_trust(parser)
    args = parser.parse_args(argv)
    with trusted_checkpoints(args.trust_checkpoint):
        publish(args.source, args.out, args.dtype, args.force)


if __name__ == '__main__':
    run_main(main)

"""Registration of an operator and its gradients with PyTorch.

Every operator registers a pair of custom operators, so that `torch.compile` and
`torch.export` see one node each for its forward and its backward.
"""

from collections.abc import Callable, Mapping, Sequence
from types import ModuleType

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import get_proxy_mode

from .backend import REFERENCE, check_cotangent
from .precision import compute_dtype

DECOMPOSITIONS: dict[torch._ops.OpOverload, Callable] = {}


def register(
    name: str,
    backends: Mapping[str, ModuleType],
    definition: Callable[..., Tensor],
    *,
    tensors: str,
    settings: str = '',
    outputs: Callable[..., Tensor | tuple[Tensor, ...]],
    saved: Sequence[str] = (),
    double_backward: tuple[Callable, Callable] | None = None,
    decomposition: Callable[..., Tensor] | None = None,
) -> Callable[..., Tensor]:
    """Register `torch.ops.mmattn.<name>` and `torch.ops.mmattn.<name>_backward`.

    Args:
        name: the operator's name.
        backends: modules by name. `forward(*tensors, **settings)` returns the output
            and the saved outputs. `backward(grad, *saved, *tensors, **settings)`
            returns a gradient for each tensor, None where the tensor is None.
        definition: the reference, called as `forward`. PyTorch differentiates it.
        tensors: the tensor arguments as in a schema: 'Tensor q, Tensor? bias'.
        settings: the other arguments as in a schema: 'SymInt[] grid'. The last argument
            of both operators is the backend.
        outputs: called as `forward`, with `backend` as one more keyword. It returns
            empty tensors of the shapes and dtypes that `forward` returns.
        saved: names of the outputs that `backward` is given: 'out' for the output
            itself, and those that `forward` returns after it.
        double_backward: the autograd formula of the backward operator and its
            `setup_context`. With it the backward operator returns a gradient for each
            tensor, an empty one where the tensor is None. Without it optional tensors
            make the backward operator return a list of those that are not None.
        decomposition: the operator in plain PyTorch operators for exported graphs,
            called as `forward`. It returns the output. Defaults to the definition.

    Returns:
        A function `(*tensors, backend, **settings)` that returns the output.
    """
    setting_names = [setting.split()[-1] for setting in settings.split(', ') if setting]
    num_tensors, num_saved = tensors.count('Tensor'), len(saved)
    num_outputs = len({'out', *saved})
    arguments = ', '.join(filter(None, (tensors, settings, 'str backend')))
    saved_arguments = ''.join(f'Tensor {output}, ' for output in saved)
    returns_list = 'Tensor?' in tensors and double_backward is None

    def parse(args, count):
        """Split arguments into `count` tensors, settings by name, and the backend."""
        *values, backend = args[count:]
        values = (tuple(x) if isinstance(x, list) else x for x in values)
        return args[:count], dict(zip(setting_names, values, strict=True)), backend

    @torch.library.custom_op(
        f'mmattn::{name}',
        mutates_args=(),
        schema=f'({arguments}) -> {_tensors(num_outputs)}',
    )
    def forward(*args):
        inputs, values, backend = parse(args, num_tensors)
        return backends[backend].forward(*inputs, **values)

    @forward.register_fake
    def _(*args):
        inputs, values, backend = parse(args, num_tensors)
        return outputs(*inputs, backend=backend, **values)

    @torch.library.custom_op(
        f'mmattn::{name}_backward',
        mutates_args=(),
        schema=f'(Tensor grad, {saved_arguments}{arguments}) -> '
        + ('Tensor[]' if returns_list else _tensors(num_tensors)),
    )
    def backward(*args):
        inputs, values, backend = parse(args, 1 + num_saved + num_tensors)
        with torch.autocast(inputs[0].device.type, enabled=False):
            grads = backends[backend].backward(*inputs, **values)
        if returns_list:
            return [grad for grad in grads if grad is not None]
        return tuple(inputs[0].new_empty(0) if x is None else x for x in grads)

    @backward.register_fake
    def _(*args):
        inputs = args[1 + num_saved :][:num_tensors]
        if returns_list:
            return [_empty_like(x) for x in inputs if x is not None]
        return tuple(
            inputs[0].new_empty(0) if x is None else _empty_like(x) for x in inputs
        )

    # The ONNX exporter reads PyTorch's table, and we pass ours to torch.export.
    @torch._decomp.register_decomposition(forward._opoverload)
    @torch._decomp.register_decomposition(forward._opoverload, DECOMPOSITIONS)
    def decompose(*args):
        inputs, values, backend = parse(args, num_tensors)
        if get_proxy_mode() is None:
            # With symbolic sizes PyTorch asks this table for shapes and strides.
            return outputs(*inputs, backend=backend, **values)
        # Exported graphs view outputs, whose strides are those of the operator.
        out = (decomposition or definition)(*inputs, **values).contiguous()
        # What only a backward pass reads is dead code here.
        unread = [out.new_empty(0) for _ in range(num_outputs - 1)]
        return (out, *unread) if unread else out

    operator = getattr(torch.ops.mmattn, name)
    backward_operator = getattr(torch.ops.mmattn, f'{name}_backward')

    def setup_context(ctx, inputs, output):
        ctx.settings = inputs[num_tensors:]
        kept = output[num_outputs - num_saved :] if num_saved else ()
        ctx.save_for_backward(*kept, *inputs[:num_tensors])

    def differentiate(ctx, grad, *_):
        check_cotangent(name, grad)
        kept = ctx.saved_tensors  # once: checkpointing hands them out only once
        grads = iter(backward_operator(grad, *kept, *ctx.settings))
        inputs = kept[num_saved:]
        if returns_list:
            grads = [None if x is None else next(grads) for x in inputs]
        else:
            grads = [
                None if x is None else grad
                for x, grad in zip(inputs, grads, strict=True)
            ]
        return *grads, *[None] * len(ctx.settings)

    forward.register_autograd(differentiate, setup_context=setup_context)
    if double_backward:
        formula, setup = double_backward
        backward.register_autograd(formula, setup_context=setup)

    def call(*inputs, backend, **values):
        if backend == REFERENCE:
            return definition(*inputs, **values)
        values = [values[setting] for setting in setting_names]
        result = operator(*inputs, *values, backend)
        return result if num_outputs == 1 else result[0]

    return call


def out_and_lse(q: Tensor, *tensors: Tensor | None, **settings):
    """Return empty tensors for the output and the softmax statistics of an attention.

    The output is shaped as q, and the log of each row's sum of exponentials is
    (B, M, N).
    """
    B, N, M, _ = q.shape
    return _empty_like(q), q.new_empty(B, M, N, dtype=compute_dtype(q.dtype))


def _tensors(count: int) -> str:
    return 'Tensor' if count == 1 else f'({", ".join(["Tensor"] * count)})'


def _empty_like(x: Tensor) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)

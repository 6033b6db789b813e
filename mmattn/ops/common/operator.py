"""The frame of every operator: its schema, its gradients and the choice of a backend.

Each backend says what it does not support; the operator chooses among them here, by the
argument `backend`, then `MMATTN_BACKEND`. `OPERATORS` has every operator by its name.
"""

import functools
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import get_proxy_mode

from mmattn.errors import UserError

from .derivatives import check_cotangent, needs_reference, runs_eagerly
from .exporting import is_exporting
from .inspection import Attention, Flops
from .precision import compute_dtype

logger = logging.getLogger('mmattn')

BACKEND_VARIABLE = 'MMATTN_BACKEND'
REFERENCE = 'reference'

OPERATORS: dict[str, 'Operator'] = {}
LIBRARY = torch.library.Library('mmattn', 'FRAGMENT')


class Operator:
    """Register and call `torch.ops.mmattn.<name>` and its `<name>_backward`.

    `torch.compile` and `torch.export` see one node each for forward and backward.

    Args:
        name: the operator's name.
        reference: the definition in plain PyTorch, called with the tensors by position
            and the settings by name. PyTorch differentiates it.
        backends: modules by name, fastest first. `unsupported(*tensors)` returns why
            one does not support a call, or None. `forward(*tensors, **settings)`
            returns the output and the saved outputs. `backward(grad, *saved, *tensors,
            **settings)` returns a gradient for each tensor, None where it is None.
            `prefers_reference(*tensors, needs_grad=...)`, which one may have, returns
            whether the reference is faster: by timings on a CPU, by the counts of
            `tools.gpu.report` on a GPU.
        tensors: the tensor arguments as in a schema: 'Tensor q, Tensor? bias'.
        settings: the other arguments as in a schema: 'SymInt[] grid'. The last argument
            of both registered operators is the backend.
        outputs: called as `forward`, with `backend` as one more keyword. It returns
            empty tensors of the shapes and dtypes that `forward` returns.
        example: called with a device and a dtype. It returns the tensors and the
            settings of a small call.
        flops: how calls count.
        attention: called as `forward`, and returns the attention of the call; None if
            its rows cannot be read.
        saved: names of the outputs that `backward` is given: 'out' for the output
            itself, and those that `forward` returns after it.
        decomposition: the operator in plain PyTorch operators for exported graphs,
            called as `forward`. It returns the output. Defaults to the reference.

    The backward operator returns a gradient for each tensor, an empty one where the
    tensor is None. Backends compute first gradients only; those of the gradients, which
    are rarely needed, differentiate the definition twice.
    """

    def __init__(
        self,
        name: str,
        reference: Callable[..., Tensor],
        backends: Mapping[str, ModuleType],
        *,
        tensors: str,
        settings: str = '',
        outputs: Callable[..., Tensor | tuple[Tensor, ...]],
        example: Callable[[str, torch.dtype], tuple[tuple, dict]],
        flops: Flops,
        attention: Callable[..., Attention] | None = None,
        saved: Sequence[str] = (),
        decomposition: Callable[..., Tensor] | None = None,
    ):
        self.name, self.reference, self.backends = name, reference, dict(backends)
        self.outputs, self.example = outputs, example
        self.flops, self.attention = flops, attention
        self.decomposition = decomposition or reference
        self.settings = [text.split()[-1] for text in settings.split(', ') if text]
        self.num_tensors, self.num_saved = tensors.count('Tensor'), len(saved)
        self.num_outputs = len({'out', *saved})
        arguments = ', '.join(filter(None, (tensors, settings, 'str backend')))
        given = ''.join(f'Tensor {output}, ' for output in saved)
        grads = _tensors(self.num_tensors)
        self.schema = f'({arguments}) -> {_tensors(self.num_outputs)}'
        self.backward_schema = f'(Tensor grad, {given}{arguments}) -> {grads}'
        self._register()
        OPERATORS[name] = self

    def __call__(
        self, *tensors: Tensor | None, backend: str | None = None, **settings
    ) -> Tensor:
        """Return the output, by the requested backend or the one that `choose` returns.

        Raises:
            ValueError: see `choose`.
        """
        backend = self.choose(*tensors, requested=backend)
        if backend == REFERENCE:
            return self.reference(*tensors, **settings)
        values = [_without_tensors(settings[name]) for name in self.settings]
        result = self.forward(*tensors, *values, backend)
        return result if self.num_outputs == 1 else result[0]

    def choose(self, *tensors: Tensor | None, requested: str | None = None) -> str:
        """Return the name of the backend that runs a call.

        Calls that only plain PyTorch differentiates get the reference, see
        `needs_reference`, and so do those for which it is faster. An explicit request
        is obeyed.

        Args:
            tensors: the operator's tensors. Only their meta data is read.
            requested: a backend's name, or None to choose. None defaults to the
                environment variable `MMATTN_BACKEND`, if it is set.

        Raises:
            ValueError: the requested backend does not exist or does not support the
                call.
        """
        if requested := self.requested(requested, *tensors):
            return requested
        if needs_reference(*tensors):
            return REFERENCE
        rejected = []
        for name, kernels in self.backends.items():
            if reason := kernels.unsupported(*tensors):
                rejected.append(f'{name}: {reason}')
            elif self._is_slow(name, tensors):
                return REFERENCE
            else:
                break
        else:
            name = REFERENCE
        if rejected and tensors[0].is_cuda:
            _log_once(f'{self.name} runs on {name!r}: {"; ".join(rejected)}')
        return name

    def requested(self, requested: str | None, *tensors: Tensor | None) -> str | None:
        """Return the backend that a caller or `MMATTN_BACKEND` requests, or None.

        Raises:
            ValueError: see `choose`.
        """
        requested = requested or os.environ.get(BACKEND_VARIABLE)
        if not requested:
            return None
        names = [*self.backends, REFERENCE]
        if requested not in names:
            raise UserError(
                f'{self.name}: backend must be one of {names}, got {requested!r}'
            )
        if requested == REFERENCE:
            return requested
        if reason := self.backends[requested].unsupported(*tensors):
            raise UserError(
                f'{self.name}: backend {requested!r} cannot run this call: {reason}'
            )
        if needs_reference(*tensors):
            raise UserError(
                f'{self.name}: backend {requested!r} supports neither forward-mode '
                f'derivatives nor torch.func.grad; use None or {REFERENCE!r}'
            )
        return requested

    def unsupported(self, *tensors: Tensor | None) -> dict[str, str]:
        """Return why backends do not support a call, by the names of those backends."""
        reasons = {
            name: kernels.unsupported(*tensors)
            for name, kernels in self.backends.items()
        }
        return {name: reason for name, reason in reasons.items() if reason}

    def reference_backward(
        self, grad: Tensor, *tensors: Tensor | None, **settings
    ) -> tuple[Tensor | None, ...]:
        """Return the gradients of the definition, each in its tensor's dtype.

        They are None where a tensor is None.
        """
        given = [i for i, x in enumerate(tensors) if x is not None]

        def attend(*values: Tensor) -> Tensor:
            inputs = dict(zip(given, values, strict=True))
            return self.reference(*map(inputs.get, range(len(tensors))), **settings)

        with torch.autocast(grad.device.type, enabled=False):
            grads = torch.func.vjp(attend, *(tensors[i] for i in given))[1](grad)
        grads = dict(zip(given, grads, strict=True))
        return tuple(map(grads.get, range(len(tensors))))

    def attention_of(self, *args) -> Attention:
        """Return the attention of a call of the registered operator."""
        inputs, settings, _ = self._parse(args, self.num_tensors)
        return self.attention(*inputs, **settings)

    def decompose(self, *args):
        """Return the outputs in plain PyTorch operators, for exported graphs."""
        inputs, settings, backend = self._parse(args, self.num_tensors)
        if get_proxy_mode() is None:
            # With symbolic sizes PyTorch asks this table for shapes and strides.
            return self.outputs(*inputs, backend=backend, **settings)
        # Exported graphs view outputs, which have the operator's strides.
        out = self.decomposition(*inputs, **settings).contiguous()
        # What only a backward pass reads is dead code here.
        unread = [out.new_empty(0) for _ in range(self.num_outputs - 1)]
        return (out, *unread) if unread else out

    def _is_slow(self, name: str, tensors: Sequence[Tensor | None]) -> bool:
        """Return whether the reference is faster than a backend.

        Exported graphs, which run at all sizes, keep the operator. Compiled and traced
        graphs keep the backend 'torch'.
        """
        prefers_reference = getattr(self.backends[name], 'prefers_reference', None)
        is_fixed = is_exporting() or (name == 'torch' and not runs_eagerly())
        if prefers_reference is None or is_fixed:
            return False
        needs_grad = torch.is_grad_enabled() and any(
            x is not None and x.requires_grad for x in tensors
        )
        return prefers_reference(*tensors, needs_grad=needs_grad)

    def _register(self):
        """Define both operators, their fakes, their gradients and the decomposition."""
        backward = f'{self.name}_backward'
        define(self.name, self.schema, self._forward, self._fake_forward)
        define(backward, self.backward_schema, self._backward, self._fake_backward)
        register = functools.partial(torch.library.register_autograd, lib=LIBRARY)
        register(f'mmattn::{self.name}', self._grads, setup_context=self._save)
        register(
            f'mmattn::{backward}',
            self._second_grads,
            setup_context=self._save_for_second_grads,
        )
        self.forward = getattr(torch.ops.mmattn, self.name)
        self.backward = getattr(torch.ops.mmattn, backward)
        # The ONNX exporter reads PyTorch's table; we pass ours to torch.export.
        torch._decomp.register_decomposition(self.forward.default)(self.decompose)

    def _parse(self, args: Sequence, count: int) -> tuple[Sequence, dict, str]:
        """Split arguments into `count` tensors, settings by name, and the backend."""
        *values, backend = args[count:]
        values = (tuple(x) if isinstance(x, list) else x for x in values)
        return args[:count], dict(zip(self.settings, values, strict=True)), backend

    def _forward(self, *args):
        inputs, settings, backend = self._parse(args, self.num_tensors)
        return self.backends[backend].forward(*inputs, **settings)

    def _fake_forward(self, *args):
        inputs, settings, backend = self._parse(args, self.num_tensors)
        return self.outputs(*inputs, backend=backend, **settings)

    def _backward(self, *args):
        count = 1 + self.num_saved + self.num_tensors
        inputs, settings, backend = self._parse(args, count)
        with torch.autocast(inputs[0].device.type, enabled=False):
            grads = self.backends[backend].backward(*inputs, **settings)
        return tuple(inputs[0].new_empty(0) if x is None else x for x in grads)

    def _fake_backward(self, *args):
        inputs = args[1 + self.num_saved :][: self.num_tensors]
        return tuple(
            inputs[0].new_empty(0) if x is None else _empty_like(x) for x in inputs
        )

    def _save(self, ctx, inputs, output):
        ctx.settings = inputs[self.num_tensors :]
        kept = output[self.num_outputs - self.num_saved :] if self.num_saved else ()
        ctx.save_for_backward(*kept, *inputs[: self.num_tensors])

    def _grads(self, ctx, grad: Tensor, *_):
        check_cotangent(self.name, grad)
        saved = ctx.saved_tensors  # once: checkpointing hands them out only once
        grads = self.backward(grad, *saved, *ctx.settings)
        pairs = zip(saved[self.num_saved :], grads, strict=True)
        grads = [None if x is None else dx for x, dx in pairs]
        return *grads, *[None] * len(ctx.settings)

    def _save_for_second_grads(self, ctx, inputs, output):
        grad, *others = inputs
        tensors = others[self.num_saved :][: self.num_tensors]
        ctx.settings = others[self.num_saved + self.num_tensors :]
        ctx.save_for_backward(grad, *tensors)

    def _second_grads(self, ctx, *cotangents: Tensor):
        saved = ctx.saved_tensors
        given = [i for i, x in enumerate(saved) if x is not None]
        _, settings, _ = self._parse((*saved[1:], *ctx.settings), self.num_tensors)

        def first_grads(*values: Tensor) -> tuple[Tensor, ...]:
            inputs = dict(zip(given, values, strict=True))
            inputs = map(inputs.get, range(len(saved)))
            grads = self.reference_backward(*inputs, **settings)
            return tuple(grads[i - 1] for i in given[1:])

        with torch.autocast(saved[0].device.type, enabled=False):
            pull = torch.func.vjp(first_grads, *(saved[i] for i in given))[1]
            grads = pull(tuple(cotangents[i - 1] for i in given[1:]))
        grads = dict(zip(given, grads, strict=True))
        dgrad, *dtensors = map(grads.get, range(len(saved)))
        return dgrad, *[None] * self.num_saved, *dtensors, *[None] * len(ctx.settings)


def _without_tensors(setting):
    """Return integers for sizes, which are tensors while `torch.jit.trace` records."""
    if torch.jit.is_tracing() and isinstance(setting, tuple):
        return [int(size) for size in setting]
    return setting


def define(name: str, schema: str, kernel: Callable, fake: Callable):
    """Define an operator of our namespace, with what it returns for fake tensors.

    The first call of what `torch.library.custom_op` defines imports PyTorch's compiler,
    which takes 1.5 s and 160 MB.
    """
    LIBRARY.define(f'{name}{schema}', tags=torch.Tag.pt2_compliant_tag)
    LIBRARY.impl(name, kernel, 'CompositeExplicitAutograd')
    torch.library.register_fake(f'mmattn::{name}', fake, lib=LIBRARY)


def out_and_statistics(q: Tensor, *tensors: Tensor | None, backend: str, **settings):
    """Return empty tensors for the output and the softmax statistics of an attention.

    The output is shaped as q, and the log of each row's sum of exponentials is
    (B, M, N). The backend 'torch' computes no statistics.
    """
    B, N, M, _ = q.shape
    shape = (0,) if backend == 'torch' else (B, M, N)
    return _empty_like(q), q.new_empty(shape, dtype=compute_dtype(q.dtype))


def _tensors(count: int) -> str:
    return 'Tensor' if count == 1 else f'({", ".join(["Tensor"] * count)})'


def _empty_like(x: Tensor) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


@functools.cache
def _log_once(message: str):
    logger.warning(message)

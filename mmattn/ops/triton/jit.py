"""The decorator of kernels in Triton."""

import inspect
from collections.abc import Callable

import triton


def kernel(function: Callable):
    """Compile a kernel once for all sizes, as training on images of many sizes needs.

    Triton compiles anew where an integer is 1, or becomes or ceases to be a multiple
    of 16. This is kept for strides, which widen the loads of rows and hardly change in
    a model. It is kept for the addresses of tensors, too.

    Args:
        function: names of arguments end in '_ptr' for tensors, and in '_stride' for
            strides. The others are sizes, scalars and constants, which are annotated.
    """
    sizes = [
        name
        for name, argument in inspect.signature(function).parameters.items()
        if argument.annotation is argument.empty  # tl.constexpr
        and not name.endswith(('_ptr', '_stride'))
    ]
    return triton.jit(function, do_not_specialize=sizes)

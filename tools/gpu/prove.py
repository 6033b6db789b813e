"""Execute a call of an operator as compiled, and compare it with its definition."""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import torch

from tools.benchmark.real_shapes import Call
from tools.gpu.execute import Executed, Fault, Mutation, executed


class Proof(NamedTuple):
    """Hold what a call did: the largest error, what was wrong, and its launches.

    The error is in units of the tests' tolerance, so up to 1 is right.
    """

    error: float
    reports: Counter
    fault: str
    launches: Sequence[Executed]


def prove(
    call: Call,
    capability: int,
    dtype: torch.dtype,
    mutation: Mutation | None = None,
) -> Proof:
    """Execute both passes of a call as compiled for a capability.

    Args:
        call, capability, dtype: what to execute.
        mutation: changes the PTX of kernels.
    """
    fault, error = '', float('inf')
    with executed(capability, mutation) as launches:
        try:
            error = max(call.errors_on('triton', dtype).values())
        except Fault as found:
            fault = str(found)
    reports = sum((x.reports for x in launches), Counter())
    return Proof(error, reports, fault, launches)
